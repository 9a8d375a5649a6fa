//! Members of an etcd cluster of three that die, stop, or are cut off: while a lock is held, and waited for.
//!
//! The witnesses are the commands, as for other faults: the old one records when it lived, and so does the next one.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use serde_json::json;
use tempfile::TempDir;

use crate::support::calm::{in_time, judge, late};
use crate::support::etcd::Member;
use crate::support::processes::send;
use crate::support::proxy::{Mode, Proxy};
use crate::support::{Etcd, Holder, LONG, LeaseServer, Lockrun, Queue, Running, Store, eventually, memory, witness};

/// The lease of the holders.
const TTL: Duration = Duration::from_secs(4);

/// "The lock is never stale for more than ttl + 1 s"; etcd looks for expired leases twice a second, and a new leader
/// restarts all leases. The rest is for a machine that has to start a few interpreters.
const STALE: Duration = Duration::from_secs(4 + 1 + 3);

/// How often each fault happens. `SUITE_RUNS` asks for more.
fn runs() -> usize {
    let asked = std::env::var("SUITE_RUNS").ok();
    asked.map_or(1, |asked| asked.parse().expect("SUITE_RUNS is a number"))
}

/// A run that holds a lock in a cluster of three, and one that waits for it.
struct Case {
    etcd: Etcd,
    old: Running,
    next: Running,
    record: PathBuf,
    _records: TempDir,
}

impl Case {
    /// Starts both, with the chosen member first in their URLs.
    fn new(first: impl Fn(&Etcd) -> usize) -> Self {
        let etcd = Etcd::of(3);
        let mut members: Vec<&Member> = etcd.members().iter().collect();
        members.rotate_left(first(&etcd));
        let url = Etcd::url_of(&members);
        let records = memory::directory();
        let record = records.path().join("lives");
        let call = Lockrun::at(&url).key("k").args(["--store-timeout", "2s", "--kill-after", "500ms", "-v"]);
        let mut old = call.clone().args(["--ttl", "4s"]).command(witness::command(&record, "old", &[])).spawn();
        old.wait_for_line("ready");
        let mut next = call.args(["--ttl", "10m", "--wait"]).command(witness::command(&record, "next", &[])).spawn();
        if !next.comes_to(|next| next.stderr().contains("waiting")) || old.has_ended() {
            late(&format!("the old run has ended too early: {}", old.stderr()));
        }
        Case { etcd, old, next, record, _records: records }
    }

    /// With the leader first, or last.
    fn with_leader(is_first: bool) -> Self {
        Self::new(|etcd| {
            let leader = etcd.members().iter().position(|it| std::ptr::eq(it, etcd.leader())).expect("one of them");
            if is_first { leader } else { (leader + 1) % 3 }
        })
    }

    /// The run that holds the lock goes on for longer than its lease, and ends as its command ends.
    #[track_caller]
    fn goes_on(&mut self, fault: &str) {
        let until = Instant::now() + TTL * 3 / 2;
        eventually(LONG, "it is longer than the lease", || Instant::now() > until || self.old.has_ended());
        if self.old.has_ended() {
            late(&format!("{fault}: the old run has ended: {}", self.old.stderr()));
        }
        let is_command =
            |pid: &i32| std::fs::read_link(format!("/proc/{pid}/exe")).is_ok_and(|exe| !exe.ends_with("lockrun"));
        let commands: Vec<i32> = self.old.processes().into_iter().filter(is_command).collect();
        assert_eq!(commands.len(), 1, "it runs");
        send(commands[0], Signal::SIGKILL);
    }

    /// The run that holds the lock ends, because its lease is lost.
    #[track_caller]
    fn is_lost(&mut self) {
        eventually(LONG, "the old run has ended", || self.old.has_ended());
        assert!(self.old.stderr().contains("lost"), "{}", self.old.stderr());
    }

    /// The next run gets the lock, after the old command's death.
    #[track_caller]
    fn passes_on(mut self, fault: &str) {
        eventually(LONG, "the next one comes", || self.next.has_line("ready") || self.next.has_ended());
        self.next.wait_for_line("ready");
        eventually(LONG, "the next one stamps", || witness::lives(&self.record).len() == 2);
        let said = [self.old.stderr(), self.next.stderr()].concat();
        self.next.kill_everything();
        let margin = witness::smallest_margin(&witness::lives(&self.record)).expect("two lives") / 1_000_000;
        assert!(margin > 0, "{fault}: an overlap of {} ms\n{said}", -margin);
        println!("{fault}: margin {margin} ms");
    }
}

/// Lets a fault happen as often as `SUITE_RUNS` says.
fn each(case: impl Fn()) {
    for _ in 0..runs() {
        judge(&case);
    }
}

// "The loss of a minority, without any loss of a lock": COMMAND goes on, and its lock is handed off when it has ended.
#[test]
fn the_leader_is_killed() {
    each(|| {
        let mut case = Case::with_leader(true);
        case.etcd.leader().kill();
        case.goes_on("leader killed");
        case.passes_on("leader killed");
    });
}

// The same for the leader if lockrun asks another member.
#[test]
fn a_leader_that_is_not_asked_is_killed() {
    each(|| {
        let mut case = Case::with_leader(false);
        case.etcd.leader().kill();
        case.goes_on("another leader killed");
        case.passes_on("another leader killed");
    });
}

// "The member that lockrun talks to stopped": connections stay, and nothing is answered.
#[test]
fn the_member_that_is_asked_is_stopped() {
    each(|| {
        let mut case = Case::with_leader(false);
        let leader = case.etcd.leader();
        let at = case.etcd.members().iter().position(|it| std::ptr::eq(it, leader)).expect("one of them");
        case.etcd.members()[(at + 1) % 3].pause();
        case.goes_on("member stopped");
        case.passes_on("member stopped");
    });
}

// And if it is the leader that is stopped.
#[test]
fn the_leader_is_stopped() {
    each(|| {
        let mut case = Case::with_leader(true);
        let leader = case.etcd.leader();
        leader.pause();
        case.goes_on("leader stopped");
        case.passes_on("leader stopped");
    });
}

// A member without a leader drops requests: each member is asked again while there is time.
#[test]
fn requests_are_lost_during_an_election() {
    let etcd = Etcd::of(1);
    let members: Vec<Proxy> = (0..3).map(|_| Proxy::before(&etcd)).collect();
    for member in &members {
        member.set(Mode::Swallow);
    }
    let places: Vec<String> = members.iter().map(|member| format!("127.0.0.1:{}", member.port())).collect();
    let call = Lockrun::at(&format!("etcd://{}", places.join(","))).key("k").args(["--store-timeout", "4s"]);
    let run = call.command(["echo", "ran"]).spawn();
    eventually(LONG, "each is asked", || members.iter().all(|member| member.connections() > 0));
    members[1].set(Mode::Pass);
    run.wait().exited(0).printed("ran\n").silent();
}

// "Majority stopped": COMMAND is dead before the lease can pass on, newcomers get an error, and everything goes on when
// the majority is back.
#[test]
fn a_majority_is_stopped() {
    each(|| {
        let mut case = Case::with_leader(true);
        case.etcd.members()[..2].iter().for_each(Member::pause);
        let url = case.etcd.url_at(case.etcd.port());
        let newcomer = Lockrun::at(&url).key("other").args(["--store-timeout", "2s"]).command(["true"]);
        let told = newcomer.run().exited(69).printed("");
        in_time(told.took, Duration::from_secs(4), "a newcomer is told");
        case.is_lost();
        case.etcd.members()[..2].iter().for_each(Member::resume);
        // As soon as they have elected a leader.
        let what = "they answer again";
        eventually(LONG, what, || newcomer.run().status == Some(0));
        case.passes_on("majority stopped");
    });
}

// "Lease revoked", by hand or by another program: the lock stays held until it is renewed under another lease.
#[test]
fn the_lease_is_revoked() {
    each(|| {
        let mut case = Case::with_leader(true);
        for held in case.etcd.lease_keys("k") {
            case.etcd.ask("/v3/lease/revoke", &json!({ "ID": held.lease }));
        }
        case.goes_on("lease revoked");
        case.passes_on("lease revoked");
    });
}

// "A crash frees it within ttl + 1 s."
#[test]
fn lockrun_is_killed_or_stopped() {
    for signal in [Signal::SIGKILL, Signal::SIGSTOP] {
        each(|| {
            let mut case = Case::with_leader(false);
            let met = Instant::now();
            case.old.signal(signal);
            case.next.wait_for_line("ready");
            in_time(met.elapsed(), STALE, "stale");
            case.passes_on(&format!("lockrun met by {signal}"));
        });
    }
}

// "It holds under crash, KILL or STOP": without its guardian the run ends, and its command before its lease.
#[test]
fn the_guardian_is_killed() {
    each(|| {
        let mut case = Case::with_leader(false);
        let guardians = case.old.guardians();
        assert_eq!(guardians.len(), 1);
        let met = Instant::now();
        send(guardians[0], Signal::SIGKILL);
        case.next.wait_for_line("ready");
        in_time(met.elapsed(), STALE, "stale");
        case.passes_on("guardian killed");
    });
}

// "Leader killed while 20 wait": they come one after the other, in their order.
#[test]
fn the_leader_is_killed_under_waiters() {
    each(|| {
        let store = Store::Etcd(Etcd::of(3));
        let etcd = store.as_etcd().expect("it is one");
        let holder = Holder::new(&store, "many");
        let mut queue = Queue::new(&store, "many");
        queue.join_and_hear(20);
        queue.settles();
        etcd.leader().kill();
        queue.settles();
        assert_eq!(queue.length(), 20);
        holder.end();
        queue.end().in_order(0..20);
    });
}

// The same while the lock is handed off from one to the other.
#[test]
fn members_are_killed_and_come_back_during_hand_offs() {
    each(|| {
        let store = Store::Etcd(Etcd::of(3));
        let etcd = store.as_etcd().expect("it is one");
        let holder = Holder::new(&store, "many");
        let mut queue = Queue::new(&store, "many").doing("sleep 0.3");
        queue.join_and_hear(20);
        holder.end();
        for member in etcd.members() {
            member.kill();
            member.start_again();
        }
        queue.end().in_order(0..20);
    });
}

// "A wake-up that is lost costs time, never exclusion": the leader dies just after the lock was handed to a waiter that
// has not heard of it.
#[test]
fn the_leader_is_killed_after_a_hand_off() {
    each(|| {
        let store = Store::Etcd(Etcd::of(3));
        let etcd = store.as_etcd().expect("it is one");
        let holder = Holder::new(&store, "k");
        let mut queue = Queue::new(&store, "k");
        queue.join_and_hear(3);
        queue.stop(0..1);
        let processes = queue.waiter(0).processes();
        let signal = |signal| processes.iter().for_each(|pid| send(*pid, signal));
        signal(Signal::SIGSTOP);
        let leader = etcd.leader();
        holder.end();
        leader.kill();
        signal(Signal::SIGCONT);
        queue.end().in_order(0..3);
    });
}

// A member that was away for long comes back with an old state of the cluster, which lockrun must not read.
#[test]
fn a_member_that_was_away_comes_back() {
    let etcd = Etcd::of(3);
    let [first, second, third] = etcd.members() else { panic!("three members") };
    let url = Etcd::url_of(&[first, second, third]);
    first.pause();
    let last = Etcd::url_of(&[second, third]);
    let mut holder = Lockrun::at(&last).key("k").sh("echo ready; read line || :").with_open_input();
    holder.run.wait_for_line("ready");
    first.resume();
    Lockrun::at(&url).key("k").command(["true"]).run().exited(75);
    holder.finish().exited(0);
    assert!(etcd.ask("/v3/maintenance/alarm", &json!({ "action": "GET" }))["alarms"].is_null());
}
