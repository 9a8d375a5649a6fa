//! Another server becomes the primary: while a lock is held, waited for, and free.
//!
//! "After a failover no lock that could have been held before it is granted until the longest lease from before has run
//! out."
//!
//! The witnesses are the commands, as for other faults: the old one records when it lived, and so does the next one.

use std::fs;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use tempfile::TempDir;

use crate::support::calm::{held_in_time, in_time, judge, late};
use crate::support::deadline::happens_within;
use crate::support::failover::{
    Cluster, FAILED_OVER, Replicated as _, Service, cut_off_replicas, cut_off_sentinels, is_replicated,
};
use crate::support::processes::{children, send};
use crate::support::tls::Certificates;
use crate::support::{Holder, LONG, LeaseServer, Lockrun, Redis, Running, eventually, memory, redis_keys, witness};

/// A lease that outlasts a failover, which takes a few seconds, even on a busy machine.
const LONG_LEASE: &str = "20s";

/// How often each failover takes place. `SUITE_RUNS` asks for more.
fn runs() -> usize {
    let asked = std::env::var("SUITE_RUNS").ok();
    asked.map_or(1, |asked| asked.parse().expect("SUITE_RUNS is a number"))
}

/// A run that holds a lock, and the next one.
struct Case {
    url: String,
    key: String,
    old: Option<Running>,
    next: Option<Running>,
    records: TempDir,
}

impl Case {
    /// Returns a case in which no run has started.
    fn new(url: &str, key: &str) -> Self {
        Case { url: url.to_owned(), key: key.to_owned(), old: None, next: None, records: memory::directory() }
    }

    fn call(&self) -> Lockrun {
        Lockrun::at(&self.url).key(&self.key).args(["--kill-after", "500ms", "--store-timeout", "2s", "-v"])
    }

    fn stamps(&self, tag: &str) -> Vec<String> {
        witness::command(&self.records.path().join("lives"), tag, &[])
    }

    /// Starts the first run.
    #[track_caller]
    fn hold(&mut self, ttl: &str) {
        let mut old = self.call().args(["--ttl", ttl]).command(self.stamps("old")).spawn();
        old.wait_for_line("ready");
        self.old = Some(old);
    }

    /// Starts the second run, which waits in turn.
    #[track_caller]
    fn queue(&mut self) {
        let mut next = self.call().args(["--ttl", LONG_LEASE, "--wait"]).command(self.stamps("next")).spawn();
        next.comes_to(|next| next.stderr().contains("waiting") || next.has_line("ready"));
        self.next = Some(next);
    }

    /// Returns when the lease ends, as far as this server knows; 0 if it knows none.
    fn lease_end(&self, server: &Redis) -> i64 {
        let ends = server.ask(&["ZRANGE", &redis_keys::holders(&self.key), "0", "-1", "WITHSCORES"]);
        ends.words().get(1).map_or(0, |end| end.parse().expect("a time"))
    }

    /// The first one goes on: its lease is renewed on another server.
    #[track_caller]
    fn goes_on(&mut self, server: &Redis) {
        let before = self.lease_end(server);
        let mut old = self.old.take().expect("it has come");
        eventually(LONG, "the lease is renewed on the new primary", || {
            old.has_ended() || self.lease_end(server) > before
        });
        assert!(!old.has_ended(), "the first one has ended: {}", old.stderr());
        self.old = Some(old);
    }

    /// The first one's command ends.
    #[track_caller]
    fn ends(&self) {
        let old = self.old.as_ref().expect("it has come");
        let is_command =
            |pid: &i32| !fs::read_link(format!("/proc/{pid}/exe")).is_ok_and(|exe| exe.ends_with("lockrun"));
        let commands: Vec<i32> = old.processes().into_iter().filter(is_command).collect();
        assert_eq!(commands.len(), 1, "it runs");
        send(commands[0], Signal::SIGKILL);
    }

    /// The first one has lost its lock.
    #[track_caller]
    fn is_lost(&mut self) {
        let old = self.old.as_mut().expect("it has come");
        eventually(LONG, "the old run has ended", || old.has_ended());
        assert!(old.stderr().contains("lost"), "{}", old.stderr());
    }

    /// Asserts that the second run gets the lock, and only after the first one's command is dead. Returns the margin in
    /// milliseconds.
    #[track_caller]
    fn passes_on(mut self, what: &str) -> i64 {
        if self.next.is_none() {
            self.queue();
        }
        let next = self.next.as_mut().expect("it has come");
        // If no earlier leases are known, this takes half a minute.
        eventually(LONG * 3, "the next one comes", || next.has_line("ready") || next.has_ended());
        next.wait_for_line("ready");
        let record = self.records.path().join("lives");
        eventually(LONG, "the next one stamps", || witness::lives(&record).len() == 2);
        let said = [self.old.as_ref().expect("it has come").stderr(), next.stderr()].concat();
        next.kill_everything();
        let margin = witness::smallest_margin(&witness::lives(&record)).expect("two lives") / 1_000_000;
        assert!(margin > 0, "{what}: an overlap of {} ms\n{said}", -margin);
        println!("{what}: margin {margin} ms");
        margin
    }
}

// "Held locks that the new primary knows are renewed without a pause", and its command ends as it ends.
#[test]
fn sentinel_primary_killed() {
    for _ in 0..runs() {
        let service = Service::replicated();
        let mut case = Case::new(&service.url(), "known");
        case.hold(LONG_LEASE);
        case.queue();
        is_replicated(service.first(), 2);
        service.first().kill();
        let next = service.next_primary();
        case.goes_on(next);
        case.ends();
        case.passes_on("known to the new primary");
    }
}

// "A lost write becomes a delay, not a second run."
#[test]
fn sentinel_primary_killed_before_it_has_replicated() {
    for _ in 0..runs() {
        let service = Service::replicated();
        let mut case = Case::new(&service.url(), "lost");
        cut_off_replicas(service.first());
        case.hold("8s");
        service.first().kill();
        service.next_primary();
        case.queue();
        case.is_lost();
        case.passes_on("not known to the new primary");
    }
}

// The same for a lock that is acquired once a day: the length of its leases was recorded long ago.
#[test]
fn sentinel_primary_killed_after_a_quiet_day() {
    const DAY_MS: &str = "-86400000";
    for _ in 0..runs() {
        let service = Service::replicated();
        let mut case = Case::new(&service.url(), "daily");
        case.call().args(["--ttl", "8s"]).command(["true"]).run().exited(0);
        let primary = service.first();
        for length in primary.ask(&["HKEYS", "lockrun:failover"]).words() {
            if length.parse::<u64>().is_ok() {
                primary.ask(&["HINCRBY", "lockrun:failover", &length, DAY_MS]);
            }
        }
        is_replicated(primary, 2);
        cut_off_replicas(primary);
        case.hold("8s");
        primary.kill();
        service.next_primary();
        case.queue();
        case.is_lost();
        case.passes_on("not known to the new primary, after a quiet day");
    }
}

// "A holder on the old side learns from a majority of Sentinels that its primary is not the primary any more": also
// without a failover, if the Sentinels were told to watch another server.
#[test]
fn sentinels_are_told_of_another_primary() {
    let (service, other) = (Service::alone(), Redis::durable());
    let mut case = Case::new(&service.url(), "told");
    case.hold("8s");
    service.watch_instead(&other);
    case.is_lost();
    case.passes_on("at another server");
}

// The same if that is a replica that was promoted by hand: no epoch shows that.
#[test]
fn sentinels_are_told_of_a_replica() {
    let service = Service::replicated();
    let mut case = Case::new(&service.url(), "by-hand");
    case.call().args(["--ttl", "8s"]).command(["true"]).run().exited(0);
    is_replicated(service.first(), 2);
    cut_off_replicas(service.first());
    case.hold("8s");
    let replica = &service.servers()[1];
    replica.ask(&["REPLICAOF", "NO", "ONE"]);
    service.watch_instead(replica);
    case.queue();
    case.passes_on("promoted by hand");
}

// "A crash frees it within ttl + 1 s", and a failover withholds it for the longest lease or place: a waiter that has
// waited for that does not wait again.
#[test]
fn sentinel_primary_and_holder_killed() {
    // The place of the waiter, which is longer than the lease.
    const LONGEST: Duration = Duration::from_secs(20);
    judge(|| {
        let service = Service::replicated();
        let mut case = Case::new(&service.url(), "both");
        case.hold("8s");
        case.queue();
        is_replicated(service.first(), 2);
        case.old.as_mut().expect("it has come").kill_everything();
        service.first().kill();
        service.next_primary();
        let killed_at = Instant::now();
        case.next.as_mut().expect("it has come").wait_for_line("ready");
        let waited = killed_at.elapsed();
        in_time(waited, LONGEST * 3 / 2, "it has waited twice");
        assert!(waited > LONGEST / 2, "the place does not count: {waited:?}");
    });
}

// The same where there were locks before: the delay is that of the leases that the new primary knows of.
#[test]
fn sentinel_delay_is_that_of_the_longest_lease() {
    let service = Service::replicated();
    let call = Lockrun::at(&service.url()).args(["--ttl", "8s"]);
    call.clone().key("earlier").command(["true"]).run().exited(0);
    is_replicated(service.first(), 2);
    cut_off_replicas(service.first());
    let mut case = Case::new(&service.url(), "lost");
    case.hold("8s");
    service.first().kill();
    service.next_primary();
    call.clone().key("other").command(["true"]).run().exited(75).said("failed over");
    call.clone().key("other").args(["--wait", "1s"]).command(["true"]).run().exited(75).said("gave up after 1s");
    call.clone().key("other").arg("--skip").command(["true"]).run().exited(0).silent();
    let table = Lockrun::bare().args(["status", "--store", &service.url()]).run().exited(0).stdout();
    assert!(table.contains("withheld"), "{table}");
    let status = Lockrun::bare().args(["status", "--store", &service.url(), "other"]);
    let page = status.clone().run().exited(75).stdout();
    assert!(page.contains("state     withheld after a failover, for another "), "{page}");
    let status = status.arg("--json").run().exited(75).stdout();
    let status: serde_json::Value = serde_json::from_str(&status).expect("JSON");
    assert!(status[0]["withheld_ms"].as_u64().is_some_and(|left| left > 0), "{status}");
    let prune = Lockrun::bare().args(["prune", "--store", &service.url(), "earlier"]).run();
    prune.exited(75).printed("").said("it is withheld after a failover");
    let reserve = Lockrun::bare().args(["reserve", "--store", &service.url(), "--key", "n", "--from", "1"]);
    reserve.command(["true"]).run().exited(75).said("reserves nothing for another");
    case.passes_on("8 s");
}

// "A primary that is cut off from a majority of Sentinels cannot keep a command alive past its lease."
#[test]
fn sentinel_primary_cut_off() {
    for _ in 0..runs() {
        let service = Service::replicated();
        let mut case = Case::new(&service.url(), "cut-off");
        // Its earlier leases are known, and so is how long to wait.
        case.call().args(["--ttl", "8s"]).command(["true"]).run().exited(0);
        is_replicated(service.first(), 2);
        cut_off_replicas(service.first());
        case.hold("8s");
        cut_off_sentinels(service.first());
        service.next_primary();
        case.queue();
        case.is_lost();
        case.passes_on("the old primary lives");
    }
}

// "A place is a lease, as the lock is": the old primary hands the lock to a waiter after a majority has named another
// one. The new primary grants nothing until the place has ended, even if all leases that it knows are shorter.
#[test]
fn sentinel_primary_cut_off_hands_the_lock_over() {
    judge(|| {
        let service = Service::replicated();
        let mut case = Case::new(&service.url(), "moved");
        case.call().args(["--ttl", "8s"]).command(["true"]).run().exited(0);
        // It does not renew its lease, so it does not learn of the new primary before it releases the lock.
        let mut holder = case.call().args(["--ttl", "none"]).sh("echo ready; read line || :").with_open_input();
        holder.run.wait_for_line("ready");
        let waiter = case.call().args(["--ttl", "30s", "--wait"]).command(case.stamps("old"));
        let mut old = waiter.spawn();
        old.wait_for_stderr("waiting");
        is_replicated(service.first(), 2);
        cut_off_replicas(service.first());
        cut_off_sentinels(service.first());
        service.next_primary();
        let holder = holder.close();
        if !happens_within(Duration::from_secs(3), || old.has_line("ready")) {
            late("the waiter has asked again meanwhile, and has learnt of the new primary");
        }
        // It cannot renew its lease, and does not learn that it is not the holder.
        send(children(old.pid())[0], Signal::SIGSTOP);
        holder.wait().exited(0);
        case.old = Some(old);
        case.queue();
        case.passes_on("handed over by the old primary");
    });
}

// Names and passwords: those of the Sentinels and those of the servers.
#[test]
fn sentinels_have_credentials_of_their_own() {
    let service = Service::with_secret_sentinels("quiet");
    let run = |url: &str| Lockrun::at(url).key("secret").command(["echo", "ran"]).run();
    run(&format!("{}?sentinel_password=quiet", service.url())).exited(0).printed("ran\n").silent();
    let advice =
        "requires a password; give ?sentinel_password=PASSWORD (and &sentinel_user=NAME if the Sentinels have users)";
    // Those of the servers are none of the Sentinels'.
    for url in [service.url(), service.url().replacen("://", "://:quiet@", 1)] {
        let output = run(&url).exited(69).printed("").said(advice);
        assert!(!output.stderr().contains("quiet"));
    }
    let wrong = run(&format!("{}?sentinel_password=loud", service.url())).exited(69).printed("");
    let wrong = wrong.said("check sentinel_user and sentinel_password");
    assert!(!wrong.stderr().contains("loud"), "{}", wrong.stderr());
}

/// Over TLS, holds a lock through many leases, hands it off to a waiter, and reads its status.
#[track_caller]
fn is_kept_and_passed_on(url: &str, certificates: &Certificates, key: &str) {
    let url = format!("{}{}", url.replace("redis+", "rediss+"), certificates.client_query());
    let call = Lockrun::at(&url).key(key);
    let holder = Holder::with(&call.clone().args(["--ttl", "1s"]), &[]);
    let mut waiter = call.clone().args(["--wait", "-v"]).command(["echo", "ran"]).spawn();
    waiter.wait_for_stderr("waiting");
    // Leases as a clock: each of these ends before the next one begins.
    for _ in 0..3 {
        Lockrun::at(&url).key("clock").args(["--ttl", "2s", "--keep"]).command(["true"]).run().exited(0);
        Lockrun::at(&url).key("clock").args(["--wait"]).command(["true"]).run().exited(0);
    }
    let status = Lockrun::bare().args(["status", "--json", "--key", key, "--store", &url]).run().exited(75).stdout();
    assert!(status.contains("waited_ms"), "{status}");
    holder.end();
    waiter.wait().exited(0).printed("ran\n");
    // The message tells a client that it does not know the authority.
    let untrusted = url.replace("ca.crt", "untrusted.crt");
    Lockrun::at(&untrusted).key(key).command(["echo", "ran"]).run().exited(69).printed("").said("certificate");
}

// "`rediss+sentinel://`": Sentinels and servers that speak only TLS, and require a client's certificate.
#[test]
fn sentinel_over_tls() {
    let certificates = Certificates::make();
    let service = Service::with_certificates(&certificates);
    is_kept_and_passed_on(&service.url(), &certificates, "secret");
    // "A pipe": it is read once, for however many servers.
    let url = format!("{}{}", service.url().replace("redis+", "rediss+"), certificates.client_query());
    let call =
        Lockrun::at(&url.replace(&certificates.path("ca.crt"), "/dev/stdin")).key("piped").command(["echo", "ran"]);
    let piped = call.env("CA", certificates.path("ca.crt")).in_shell("cat \"$CA\" | \"$@\"");
    piped.alone().exited(0).printed("ran\n").silent();
}

// "`rediss+cluster://`", on each of the primaries.
#[test]
fn cluster_over_tls() {
    let certificates = Certificates::make();
    let cluster = Cluster::with_certificates(&certificates);
    for key in cluster.keys() {
        is_kept_and_passed_on(&cluster.url(), &certificates, &key);
    }
}

// Bad input: nothing is started, and the message says what is wrong.
#[test]
fn sentinels_that_know_nothing_of_it() {
    let service = Service::alone();
    let run = |url: &str| Lockrun::at(url).key("bad").command(["echo", "ran"]).run().exited(69).printed("");
    run(&service.url_of("other")).said("does not know the service \"other\"");
    for sentinel in service.sentinels() {
        sentinel.kill();
    }
    run(&service.url()).said("of its 3 Sentinels 0 answered").said("Connection refused");
}

// Two Sentinels of three are enough, one is not.
#[test]
fn a_majority_of_sentinels_is_asked() {
    let service = Service::replicated();
    let [_, second, third] = service.sentinels() else { panic!("three") };
    let run = || Lockrun::at(&service.url()).key("majority").command(["echo", "ran"]).run();
    run().exited(0).printed("ran\n");
    third.kill();
    run().exited(0).printed("ran\n");
    second.kill();
    run().exited(69).printed("").said("of its 3 Sentinels 1 answered");
}

/// How far the clock of the primary is ahead of its replicas' clocks in the next test, in ms. A fence that it gives out
/// is greater by as much; so the test writes one that is.
const AHEAD: u64 = 50_000;

// "Fences grow across any failover", also of several in a row, each to a server whose clock is behind by less than a
// minute, and which lacks the newest acquisitions.
#[test]
fn the_fence_grows_with_each_failover() {
    judge(fence_across_failovers);
}

fn fence_across_failovers() {
    let service = Service::replicated();
    let call = Lockrun::at(&service.url()).key("k").args(["--ttl", "2s", "--store-timeout", "300ms"]);
    let run = || {
        let call = call.clone().args(["--wait", "2m"]).sh("echo $LOCKRUN_FENCE");
        call.run().exited(0).stdout().trim().parse::<u64>().expect("a number")
    };
    let mut last = run();
    let mut replaced = Vec::new();
    while replaced.len() < 2 {
        eventually(FAILED_OVER, "the primary has a replica", || service.is_whole());
        let primary = service.primary();
        is_replicated(primary, 2 - replaced.len());
        cut_off_replicas(primary);
        primary.ask(&["SET", &redis_keys::fence("k"), &(run() + AHEAD).to_string()]);
        let unknown = run();
        held_in_time(service.primary().port() == primary.port(), "the primary stays until it is killed");
        assert!(unknown > last + AHEAD, "{unknown} is not ahead of {last}");
        replaced.push(primary.port());
        primary.kill();
        eventually(FAILED_OVER, "there is another primary", || !replaced.contains(&service.primary().port()));
        last = run();
        assert!(last > unknown, "the fence has gone back by {} ms", unknown - last);
    }
}

// "Held locks that the new primary knows are renewed without a pause", on each of the primaries.
#[test]
fn cluster_primary_killed() {
    for _ in 0..runs() {
        let cluster = Cluster::start();
        let mut cases: Vec<Case> = cluster.keys().iter().map(|key| Case::new(&cluster.url(), key)).collect();
        for case in &mut cases {
            case.hold(LONG_LEASE);
            case.queue();
        }
        is_replicated(&cluster.nodes()[1], 1);
        cluster.nodes()[1].kill();
        cluster.is_replaced(1, &[0, 2]);
        let servers = [0, 4, 2].map(|at| &cluster.nodes()[at]);
        for (case, server) in cases.iter_mut().zip(servers) {
            case.goes_on(server);
        }
        for case in cases {
            case.ends();
            case.passes_on("known to the new primary");
        }
    }
}

// "A lost write becomes a delay, not a second run": for a lock that was held before.
#[test]
fn cluster_primary_killed_before_it_has_replicated() {
    for _ in 0..runs() {
        let cluster = Cluster::start();
        let key = &cluster.keys()[0];
        let mut case = Case::new(&cluster.url(), key);
        case.call().args(["--ttl", "8s"]).command(["true"]).run().exited(0);
        is_replicated(&cluster.nodes()[0], 1);
        cut_off_replicas(&cluster.nodes()[0]);
        case.hold("8s");
        cluster.nodes()[0].kill();
        cluster.is_replaced(0, &[1, 2]);
        case.queue();
        case.is_lost();
        case.passes_on("not known to the new primary");
    }
}

// "Slots that migrate while locks on them are held and waited for."
#[test]
fn cluster_slot_moved() {
    for _ in 0..runs() {
        let cluster = Cluster::start();
        let key = &cluster.keys()[0];
        let mut case = Case::new(&cluster.url(), key);
        case.hold(LONG_LEASE);
        case.queue();
        cluster.move_slot(key, 2);
        case.goes_on(&cluster.nodes()[2]);
        case.ends();
        case.passes_on("moved");
    }
}
