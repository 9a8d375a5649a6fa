//! Requests that Redis rejects, for ever or for a while, and answers that no script gives.

use std::os::unix::net::UnixStream;

use nix::sys::signal::Signal;
use serde_json::Value;

use crate::support::hand::{status, until_waiting};
use crate::support::holder::is_free;
use crate::support::lockrun::waiting_for_its_end;
use crate::support::places::keep_their_places;
use crate::support::proxy::Mode;
use crate::support::resp::Reply;
use crate::support::store::on_redis;
use crate::support::{Holder, LONG, LeaseServer, Lockrun, Queue, Redis, Store, eventually, redis_keys};

// The same of a server that rejects everything for a while: it is demoted, and promoted again.
on_redis!(a_release_that_is_rejected_is_tried_again, |store, redis| {
    let proxy = store.proxy();
    let run = waiting_for_its_end(&Lockrun::at(&proxy.url()).key("demoted").args(["--ttl", "none"]));
    redis.ask(&["REPLICAOF", "127.0.0.1", "1"]);
    let run = run.close();
    eventually(LONG, "it has tried", || rejected(redis) >= 2);
    redis.ask(&["REPLICAOF", "NO", "ONE"]);
    run.wait().exited(0).silent();
    assert!(is_free(store, "demoted"));
});

/// Returns how many writes the server has rejected because it was a replica.
fn rejected(redis: &Redis) -> u64 {
    let statistics = redis.ask(&["INFO", "errorstats"]);
    let count = statistics.text().lines().find_map(|line| line.strip_prefix("errorstat_READONLY:count="));
    count.map_or(0, |count| count.trim().parse().expect("a count"))
}

// "A wait that is cut short leaves the queue": also if the server rejects that for a while.
on_redis!(leaving_the_queue_is_tried_again, |store, redis| {
    let proxy = store.proxy();
    let _holder = Holder::with(&Lockrun::new(store).key("left").args(["--ttl", "1h"]), &[]);
    let waiter = Lockrun::at(&proxy.url()).key("left").arg("--wait").command(["true"]).spawn();
    until_waiting(store, "left", 1);
    redis.ask(&["REPLICAOF", "127.0.0.1", "1"]);
    let before = rejected(redis);
    waiter.signal(Signal::SIGTERM);
    eventually(LONG, "it has tried", || rejected(redis) >= before + 2);
    redis.ask(&["REPLICAOF", "NO", "ONE"]);
    waiter.wait().died_of(Signal::SIGTERM);
    assert_eq!(status(store, "left")["waiters"], Value::from([] as [i32; 0]));
});

// "SCRIPT FLUSH while waiting": the server forgets the scripts that it knew.
on_redis!(the_server_forgets_the_scripts, |store, redis| {
    keep_their_places(store, |_| {
        redis.ask(&["SCRIPT", "FLUSH"]);
    });
});

/// Waits until all ten sleep at the server.
#[track_caller]
fn all_sleep(redis: &Redis) {
    eventually(LONG, "all sleep", || redis.asleep() == 10);
}

// "When Redis goes away, a waiter goes on asking for a minute": also if the server is demoted for a moment, and rejects
// what a replica cannot do.
on_redis!(the_server_is_demoted_for_a_moment, |store, redis| {
    keep_their_places(store, |proxy| {
        all_sleep(redis);
        let connections = proxy.connections();
        redis.ask(&["REPLICAOF", "127.0.0.1", "1"]);
        eventually(LONG, "all have asked the replica", || proxy.connections() >= connections + 20);
        redis.ask(&["REPLICAOF", "NO", "ONE"]);
        all_sleep(redis);
    });
});

// The same with every answer by which a server rejects a request for a while, to a waiter's requests and to its
// waiting.
on_redis!(requests_are_rejected_for_a_while, |store, redis| {
    keep_their_places(store, |proxy| {
        for answer in [
            "-LOADING Redis is loading the dataset in memory\r\n",
            "-BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.\r\n",
            "-READONLY You can't write against a read only replica.\r\n",
            "-MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.\r\n",
            "-CLUSTERDOWN The cluster is down\r\n",
            "-MISCONF Redis is configured to save RDB snapshots, but it's currently unable to persist to disk.\r\n",
            "-ERR Error running script (call to f_0): @user_script:9: @user_script: 9: -READONLY You can't write\r\n",
            "-ERR max number of clients reached\r\n",
        ] {
            all_sleep(redis);
            let connections = proxy.connections();
            proxy.set(Mode::Answer(answer.as_bytes()));
            let clients = redis.ask(&["CLIENT", "LIST"]);
            for client in clients.text().lines().filter(|client| client.contains("cmd=blpop")) {
                let id = client.split(' ').next().and_then(|id| id.strip_prefix("id=")).expect("an id");
                redis.ask(&["CLIENT", "UNBLOCK", id]);
            }
            eventually(LONG, "all have tried again", || proxy.connections() >= connections + 20);
            proxy.set(Mode::Pass);
        }
        all_sleep(redis);
    });
});

// "What failed, on what, what it means, what to do": what a cluster rejects.
on_redis!(a_cluster_rejects_requests, |store, redis| {
    let proxy = store.proxy();
    for (answer, advice) in [
        (&b"-MOVED 3999 127.0.0.1:6381\r\n"[..], "write redis+cluster://"),
        (b"-ASK 3999 127.0.0.1:6381\r\n", "is moving the slot"),
        (b"-TRYAGAIN Multiple keys request during rehashing of slot\r\n", "is moving the slot"),
        (b"-CLUSTERDOWN Hash slot not served\r\n", "which slots have no node"),
    ] {
        proxy.set(Mode::Answer(answer));
        Lockrun::at(&proxy.url()).key("moving").command(["true"]).run().exited(69).said(advice);
    }
});

// "\"No answer\" is not: retry until it is time for TERM": also an answer to a renewal that no script gives, however
// deep it is, or large it claims to be. A thread with a small stack reads it.
on_redis!(renewals_whose_answers_are_beyond_all_bounds, |store, redis| {
    // The server knows the scripts from then on.
    assert!(is_free(store, "bounds"));
    let proxy = store.proxy();
    let call = Lockrun::at(&proxy.url()).key("bounds").args(["--ttl", "1h", "--renew-every", "100ms"]);
    let call = call.args(["--store-timeout", "1s"]);
    let mut run = call.sh("echo ready; read line || :").with_open_input();
    run.run.wait_for_line("ready");
    for answer in ["*1\r\n".repeat(99), "*1\r\n".repeat(100_000), "$2147483647\r\n".into(), "*1000000000\r\n".into()] {
        let before = redis.requests();
        proxy.set(Mode::Answer(answer.leak().as_bytes()));
        eventually(LONG, "three renewals were answered so", || {
            assert!(!run.run.has_ended(), "{}", run.run.stderr());
            redis.requests() >= before + 3
        });
    }
    proxy.set(Mode::Pass);
    run.finish().exited(0).silent();
    assert!(is_free(store, "bounds"), "held by a run that has ended");
});

// A lock that no lease would end may be left only by a request that the server has run.
#[test]
fn a_request_that_is_rejected_unread_leaves_nothing() {
    let redis = Redis::with_password("pw");
    redis.ask(&["ACL", "SETUSER", "weak", "on", ">pw", "~*", "+@all", "-eval", "-evalsha"]);
    for (user, why) in [("", "requires a password"), (":wrong@", "WRONGPASS"), ("weak:pw@", "lacks rights")] {
        let url = redis.url().replacen("://", &format!("://{user}"), 1);
        let call = Lockrun::at(&url).key("unread").args(["--ttl", "none"]);
        let output = call.command(["echo", "ran"]).run().exited(69).printed("").said(why);
        assert!(!output.stderr().contains("lockrun break"), "{output}");
    }
}

// The same for a server that has no AUTH, and runs the request in spite of the password: the error is that of AUTH, but
// the lock is not left.
#[test]
fn a_request_that_runs_although_its_password_is_rejected_leaves_nothing() {
    let store = Store::Redis(Redis::with_options(&["--rename-command", "AUTH", ""]));
    let url = store.url().replacen("://", "://:pw@", 1);
    let call = Lockrun::at(&url).key("open").args(["--ttl", "none"]);
    call.command(["echo", "ran"]).run().exited(69).printed("").said("rejects AUTH");
    assert!(is_free(&store, "open"), "held by a run that has ended");
}

// "What failed, on what, what it means, what to do": also if the server says it once, before it has read the password,
// and closes the connection.
#[test]
fn a_server_with_too_many_clients() {
    let redis = Redis::with_password("pw");
    let _last = UnixStream::connect(redis.socket()).expect("it listens");
    redis.ask(&["CONFIG", "SET", "maxclients", "1"]);
    let url = redis.url().replacen("://", "://:pw@", 1);
    let call = Lockrun::at(&format!("{url}/3")).key("many").args(["--ttl", "none"]);
    let output = call.command(["echo", "ran"]).run().exited(69).printed("").said("max number of clients reached");
    assert!(!output.stderr().contains("lockrun break"), "{output}");
}

// The same of an error that came while a script ran: Redis 6 puts it behind words of its own.
on_redis!(errors_of_scripts_as_redis_6_words_them, |store, redis| {
    let proxy = store.proxy();
    for (answer, advice) in [
        (
            &b"-ERR Error running script (call to f_0): @user_script:9: @user_script: 9: -READONLY You can't write\r\n"
                [..],
            "name the primary",
        ),
        (
            b"-ERR Error running script (call to f_0): @user_script:9: @user_script: 9: -OOM command not allowed\r\n",
            "out of memory",
        ),
    ] {
        proxy.set(Mode::Answer(answer));
        Lockrun::at(&proxy.url()).key("old").command(["true"]).run().exited(69).said(advice);
    }
});

// "69: the store refuses us": a user who may do everything but wait gets an error, and the server is not asked again
// and again.
on_redis!(a_user_who_may_not_wait, |store, redis| {
    // The server knows the scripts from then on.
    assert!(is_free(store, "refused"));
    redis.ask(&["ACL", "SETUSER", "hasty", "on", ">pw", "~*", "+@all", "-blpop"]);
    let holder = Holder::new(store, "refused");
    let before = redis.requests();
    let call = Lockrun::at(&redis.url().replacen("://", "://hasty:pw@", 1)).key("refused").arg("--wait");
    let mut run = call.command(["echo", "ran"]).spawn();
    eventually(LONG, "the run has ended", || run.has_ended());
    run.wait().exited(69).printed("").said("blpop");
    let asked = redis.requests() - before;
    assert!(asked <= 4, "asked {asked} times");
    holder.end();
    assert!(is_free(store, "refused"), "it still stands in the queue");
});

// "All changes are Lua scripts": also on a server that does not allow calling them by their hash.
#[test]
fn a_server_without_evalsha() {
    let cyrillic = "\u{436}".repeat(60);
    // The server says so, and quotes the arguments up to a number of bytes: under one of the last two keys, up to the
    // middle of a character.
    for key in ["renamed", &cyrillic, &format!("x{cyrillic}")] {
        let store = Store::Redis(Redis::with_options(&["--rename-command", "EVALSHA", ""]));
        let holder = Holder::new(&store, key);
        let mut queue = Queue::new(&store, key);
        queue.join(2);
        holder.end();
        queue.end().in_order([0, 1]);
    }
}

// "Retry until it is time for TERM": a server that is out of memory still renews existing leases.
on_redis!(a_server_out_of_memory_renews, |store, redis| {
    let call = Lockrun::new(store).key("full").args(["--ttl", "2s"]);
    let mut run = call.sh("echo ready; read line || :; exit 7").with_open_input();
    run.run.wait_for_line("ready");
    redis.ask(&["CONFIG", "SET", "maxmemory-policy", "noeviction"]);
    redis.ask(&["CONFIG", "SET", "maxmemory", "1"]);
    let ends = || {
        redis.ask(&["ZRANGE", &redis_keys::holders("full"), "0", "0", "WITHSCORES"]).list().get(1).map(Reply::number)
    };
    let before = ends().expect("it has a lease");
    eventually(LONG, "the lease has been extended beyond its end", || ends().is_some_and(|end| end > before + 2000));
    run.finish().exited(7).silent();
    assert_eq!(redis.keys().len(), 2, "{:?}", redis.keys());
});

// "Waiters get the lock in the order in which they came": also on a server that has run out of memory since they came,
// and no run that comes later gets it before them.
on_redis!(a_server_out_of_memory_keeps_the_order, |store, redis| {
    const WAITERS: usize = 4;
    let holder = Holder::new(store, "full");
    let mut queue = Queue::new(store, "full").doing("sleep 0.1");
    queue.join(WAITERS);
    redis.ask(&["CONFIG", "SET", "maxmemory-policy", "noeviction"]);
    redis.ask(&["CONFIG", "SET", "maxmemory", "1"]);
    holder.end();
    eventually(LONG, "all waiters have run", || {
        let newcomer = queue.newcomer("new", &["--fail", "-q"]).run();
        assert!(matches!(newcomer.status, Some(69 | 75)), "{newcomer}, after {:?}", queue.begun());
        queue.begun().len() == WAITERS
    });
    queue.end().in_order(0..WAITERS);
});

// "A Redis user (ACL) needs no more than this".
on_redis!(the_documented_rights_are_enough, |store, redis| {
    let page = include_str!("../../../docs/redis.md");
    let (_, rest) = page.split_once("\nACL SETUSER ").expect("the page names the rights");
    let words: Vec<&str> = rest.split("```").next().expect("some text").split_whitespace().collect();

    for ttl in ["none", "4s"] {
        let store = &store.another();
        let redis = store.as_redis().expect("a Redis");
        redis.ask(&[&["ACL", "SETUSER"], &words[..]].concat());
        let url = format!("redis://{}:{}@127.0.0.1:{}", words[0], words[2].trim_start_matches('>'), redis.port());
        let holder = Holder::with(&Lockrun::at(&url).key("rights").args(["--ttl", ttl]), &[]);
        let mut queue = Queue::through(&url, store, "rights").with(&["--ttl", ttl]);
        queue.join(5);
        if ttl == "none" {
            holder.end();
            queue.end().in_order(0..5);
            continue;
        }
        // So that some lose their places.
        queue.kill(0);
        queue.waiter(1).signal(Signal::SIGSTOP);
        holder.end();
        eventually(LONG, "three have run", || queue.begun().len() == 3);
        queue.signal_all(Signal::SIGCONT);
        queue.end().in_order([2, 3, 4, 1]);
    }
});
