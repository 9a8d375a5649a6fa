//! The mailboxes of waiters on Redis: mail that is lost, late or read by another client.

use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use crate::support::hand::holders;
use crate::support::holder::is_free;
use crate::support::proxy::Mode;
use crate::support::queue::now;
use crate::support::resp::Reply;
use crate::support::slots::{SharedRecord, Slot, TELL};
use crate::support::store::on_redis;
use crate::support::{Holder, LONG, LeaseServer, Lockrun, Queue, eventually, processes, redis_keys, stays_true_for};

// "Unknown (an error, possibly done: clean up by token)": a request that arrives after its cancellation acquires
// nothing, even if the mailbox has mail that the waiter had not read when its place in the queue was removed.
on_redis!(a_cancellation_is_not_hidden_behind_old_mail, |store, redis| {
    // The server knows the scripts from then on.
    assert!(is_free(store, "mail"));
    let proxy = store.proxy();
    let holder = Holder::new(store, "mail");
    let call = Lockrun::at(&proxy.url()).key("mail").args(["--wait", "--ttl", "none", "--store-timeout", "1s"]);
    let waiter = call.sh(":").spawn();
    eventually(LONG, "it sleeps", || redis.asleep() == 1);
    let token = redis.waiting("mail").remove(0);
    let mailbox = redis_keys::mailbox("mail", &token);
    // The waiter is cut off while it looks at the lock, gets mail, and is not heard from until the queue has expired.
    proxy.set(Mode::HoldUpTo(u64::MAX));
    redis.ask(&["RPUSH", &mailbox, ""]);
    eventually(LONG, "it has tried another connection", || proxy.connections() >= 2);
    redis.ask(&["RPUSH", &mailbox, "1 0"]);
    redis.ask(&["DEL", &redis_keys::queue("mail"), &redis_keys::places("mail")]);
    waiter.signal(Signal::SIGTERM);
    waiter.wait().died_of(Signal::SIGTERM);
    // Its last request arrives first: the cancellation.
    proxy.set(Mode::HoldUpTo(proxy.connections() - 1));
    let first = || redis.ask(&["LRANGE", &mailbox, "0", "0"]).texts();
    eventually(LONG, "its cancellation arrives", || first() == ["cancelled"]);
    holder.end();
    let before = redis.requests();
    proxy.set(Mode::Pass);
    eventually(LONG, "a late look arrives", || redis.requests() > before);
    assert!(is_free(store, "mail"), "held by a run that has ended");
});

// "Redis commands a second of one idle waiter": a waiter whose connection is closed whenever it waits tries again, but
// not without a pause.
on_redis!(a_connection_that_is_closed_at_each_wait, |store, redis| {
    // The server knows the scripts from then on.
    assert!(is_free(store, "closed"));
    let proxy = store.proxy();
    let holder = Holder::new(store, "closed");
    proxy.set(Mode::CloseAt("\r\nBLPOP\r\n"));
    let call = Lockrun::at(&proxy.url()).key("closed").args(["--wait", "-v", "--store-timeout", "1s"]);
    let mut next = call.command(["echo", "ran"]).spawn();
    next.wait_for_stderr("waiting");
    let (before, started) = (redis.requests(), Instant::now());
    stays_true_for(Duration::from_secs(2), "it waits", || next.stdout().is_empty());
    let asked = redis.requests() - before;
    let most = 10 + started.elapsed().as_secs() * 4;
    assert!(asked <= most, "asked {asked} times in {:?}", started.elapsed());
    proxy.set(Mode::Pass);
    holder.end();
    next.wait().exited(0).printed("ran\n");
});

// "A crash leaves nothing behind": also of a lock with `--ttl none` that was handed to a dead waiter. Its lease is that
// of its place until it renews that.
on_redis!(a_lock_without_a_lease_is_handed_to_a_dead_waiter, |store, redis| {
    let holder = Holder::new(store, "both");
    let mut second = Lockrun::new(store).key("both").args(["--wait", "--ttl", "none"]).sh(":").spawn();
    eventually(LONG, "the second one waits", || redis.asleep() == 1);
    let token = redis.waiting("both").remove(0);
    second.signal(Signal::SIGSTOP);
    eventually(LONG, "the waiter stands still", || processes::state(second.pid()) == Some('T'));
    second.kill_everything();
    holder.end();
    let ends: f64 = redis.ask(&["ZSCORE", &redis_keys::holders("both"), &token]).text().parse().expect("it ends");
    assert!(ends.is_finite(), "the lease of a place ends");
    Queue::new(store, "both").leaves_only_what_goes();
});

// "A wake-up that is lost costs time, never exclusion": another client reads the mail of the waiter to which the lock
// was handed. When the waiter next asks, it learns that it holds the lock.
on_redis!(mail_that_is_taken, |store, redis| {
    let holder = Holder::new(store, "taken");
    let mut queue = Queue::new(store, "taken").with(&["--ttl", "6s"]);
    queue.join(2);
    queue.stop([0]);
    let first = redis.waiting("taken").remove(0);
    let mailbox = redis_keys::mailbox("taken", &first);
    // The server drops the waiter's connection, so the mail is not read by a client that stands still.
    redis.ask(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
    let freed_at = now();
    holder.end();
    let mail = redis.ask(&["BLPOP", &mailbox, "5"]);
    assert!(mail.list()[1].text().ends_with(" 0"), "the lock was handed over: {mail:?}");
    queue.signal_all(Signal::SIGCONT);
    queue.end().in_order([0, 1]).without_gap(freed_at, Duration::from_secs(4));
});

// A mail that says what is not true any more, or that another client wrote, starts nothing if its fence is none that
// was issued since the waiter asked.
on_redis!(mail_with_an_old_fence, |store, redis| {
    let holder = Holder::new(store, "old");
    let mut queue = Queue::new(store, "old");
    queue.join(1);
    let fence = redis.ask(&["GET", &redis_keys::fence("old")]).text().to_owned();
    let mailbox = redis_keys::mailbox("old", &redis.waiting("old")[0]);
    for mail in [format!("{fence} 0"), "1 0".into(), "granted".into(), String::new()] {
        let before = redis.requests();
        redis.ask(&["RPUSH", &mailbox, &mail]);
        eventually(LONG, "it asks again", || redis.requests() > before && redis.asleep() == 1);
        assert!(queue.begun().is_empty(), "it took {mail:?} for the lock");
    }
    holder.end();
    queue.end().in_order([0]);
});

// "In turn": a slot whose holder died is the first waiter's; a newcomer that finds it free hands it off.
on_redis!(a_new_waiter_hands_off_the_slot_of_a_dead_one, |store, redis| {
    let holder = Slot::take(&Lockrun::new(store).key("faults").args(["--slots", "2"]));
    let proxy = store.proxy();
    let dead = Slot::take(&Lockrun::at(&proxy.url()).key("faults").args(["--slots", "2", "--ttl", "1s"]));
    let mut queue = Queue::new(store, "faults").with(&["--slots", "2"]).doing(TELL);
    queue.join(2);
    // So that they do not notice it by themselves.
    queue.stop([0, 1]);
    // One of its processes may see another one die, and release the slot before it dies itself.
    proxy.set(Mode::Swallow);
    dead.kill();
    eventually(LONG, "the lease has run out", || holders(store, "faults") == 1);
    let first = redis.waiting("faults").remove(0);
    Lockrun::new(store).key("faults").args(["--slots", "2"]).sh(":").run().exited(75);
    let granted = redis.ask(&["ZSCORE", &redis_keys::holders("faults"), &first]);
    assert!(matches!(granted, Reply::Text(_)), "the slot stays unused: {granted:?}");
    queue.signal_all(Signal::SIGCONT);
    SharedRecord::read(&queue.all_end(), 2).in_any_order(0..2);
    holder.end();
    queue.nothing_is_left();
});
