//! Faults of the network, the server and lockrun itself, while a command runs that does not want to end.
//!
//! The witnesses are the commands: the old one, its child and a grandchild that left for a session of its own write
//! down when they lived, and so does the next holder, which waits for the lock over an undisturbed connection.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use tempfile::TempDir;

use crate::support::birth::Birth;
use crate::support::calm::{in_time, late};
use crate::support::holder::is_free;
use crate::support::processes::{send, state};
use crate::support::proxy::{Mode, Proxy};
use crate::support::store::{on_every_lease_store, on_postgres};
use crate::support::{LONG, LeaseServer, Lockrun, Running, Store, eventually, memory, witness};

/// The lease of the old holders. Long enough for a busy machine to start their commands and to renew it.
const TTL: Duration = Duration::from_secs(5);

/// "The lock is never stale for more than ttl + 1 s"; the rest is for a machine that has to start a few interpreters.
const STALE: Duration = Duration::from_secs(5 + 1 + 3);

/// Runs that meet the fault at once, each with a lock of its own. `SUITE_RUNS` asks for more.
fn runs() -> usize {
    let asked = std::env::var("SUITE_RUNS").ok();
    asked.map_or(4, |asked| asked.parse().expect("SUITE_RUNS is a number"))
}

/// An old holder behind a network that can be disturbed, and the next one, if it waits already.
struct Case {
    key: String,
    old: Running,
    next: Option<Running>,
    record: PathBuf,
}

impl Case {
    /// Starts the old holder, through the proxy; it may wait long for a busy server.
    #[track_caller]
    fn hold(url: &str, key: &str, record: PathBuf) -> Self {
        let words = witness::command(&record, "old", &["fork", "setsid"]);
        let call =
            Lockrun::at(url).key(key).args(["--ttl", "5s", "--kill-after", "500ms", "--store-timeout", "2s", "-v"]);
        // The first one as cron starts its jobs.
        let session = key == "fault-0";
        let mut old = call.birth(Birth { session, ..Birth::default() }).command(words).spawn();
        if !old.comes_to(|old| old.has_line("ready") && witness::lives(&record)[0].processes == 3) {
            late(&format!("the old run has ended: {}", old.stderr()));
        }
        Case { key: key.to_owned(), old, next: None, record }
    }

    /// Starts the next holder, over an undisturbed connection. The length of its own lease makes no difference: it
    /// begins when the old one has ended.
    #[track_caller]
    fn queue(&mut self, store: &Store) {
        let words = witness::command(&self.record, "next", &[]);
        let call = Lockrun::new(store).key(&self.key).args(["--ttl", "10m", "--wait", "-v"]);
        self.next = Some(call.command(words).spawn());
    }
}

struct Scene<'a> {
    store: &'a Store,
    proxy: Proxy,
    cases: Vec<Case>,
    _records: TempDir,
}

impl<'a> Scene<'a> {
    fn new(store: &'a Store) -> Self {
        let proxy = store.proxy();
        let records = memory::directory();
        let keys = (0..runs()).map(|number| format!("fault-{number}"));
        let cases = keys.map(|key| Case::hold(&proxy.url(), &key, records.path().join(&key))).collect();
        Self { store, proxy, cases, _records: records }
    }

    /// With the next holders waiting.
    fn with_queue(store: &'a Store) -> Self {
        let mut scene = Self::new(store);
        for case in &mut scene.cases {
            case.queue(store);
        }
        for case in &mut scene.cases {
            let next = case.next.as_mut().expect("just started");
            let waits = |next: &Running| next.stderr().contains("waiting");
            next.comes_to(|next| waits(next) || next.has_line("ready"));
            if !waits(next) || case.old.has_ended() {
                late(&format!("the old run has lost its lease too early: {}", case.old.stderr()));
            }
        }
        scene
    }

    /// Waits for the next holders, compares the lives and prints the smallest margin.
    #[track_caller]
    fn judge(mut self, fault: &str) {
        let mut smallest = i64::MAX;
        let met = Instant::now();
        for case in self.cases.iter_mut().filter(|case| case.next.is_none()) {
            case.queue(self.store);
        }
        // Waits for all of them first: ending one takes time, in which the others have long started.
        for case in &mut self.cases {
            case.next.as_mut().expect("it has come").wait_for_line("ready");
            in_time(met.elapsed(), STALE, &format!("{fault}: stale"));
        }
        for mut case in self.cases {
            let mut next = case.next.take().expect("it has come");
            eventually(LONG, "the next holder stamps", || witness::lives(&case.record).len() == 2);
            let said = [case.old.stderr(), next.stderr()].concat();
            next.kill_everything();
            let lives = witness::lives(&case.record);
            assert_eq!((lives[0].tag.as_str(), lives[0].processes), ("old", 3), "{fault}");
            let margin = witness::smallest_margin(&lives).expect("two lives");
            let ends = lives[0].ends_before(lives[1].first);
            assert!(margin > 0, "{fault}: {}: an overlap of {} ms; {ends}\n{said}", case.key, -margin / 1_000_000);
            smallest = smallest.min(margin);
        }
        println!("{fault}: smallest margin {} ms", smallest / 1_000_000);
    }
}

/// The old holder ended by itself, with 79 where the network or the server was at fault.
#[track_caller]
fn all_lost(scene: &mut Scene<'_>) {
    for case in &mut scene.cases {
        eventually(LONG, "the old run has ended", || case.old.has_ended());
        assert_eq!(case.old.processes(), Vec::<i32>::new());
        assert!(case.old.stderr().contains("lost"), "{}", case.old.stderr());
    }
}

// "Exclusion holds under a network cut of any length in any direction": traffic swallowed silently.
on_every_lease_store!(traffic_is_swallowed, |store| {
    let mut scene = Scene::with_queue(store);
    scene.proxy.set(Mode::Swallow);
    all_lost(&mut scene);
    scene.judge("traffic swallowed");
});

// "... in any direction": the requests arrive and renew the lease, but lockrun never learns of it.
on_every_lease_store!(replies_are_swallowed, |store| {
    let mut scene = Scene::with_queue(store);
    scene.proxy.set(Mode::SwallowReplies);
    all_lost(&mut scene);
    scene.judge("replies swallowed");
});

// The same where the server answers until it has renewed the lease, and its answers are lost after that.
on_postgres!(answers_are_swallowed, |store, _postgres| {
    let mut scene = Scene::with_queue(store);
    scene.proxy.set(Mode::SwallowAnswers);
    all_lost(&mut scene);
    scene.judge("answers swallowed");
});

// And where the second half of a request never arrives: the first half does not block the lock for long.
on_postgres!(the_network_is_cut_within_a_request, |store, postgres| {
    let mut scene = Scene::with_queue(store);
    scene.proxy.set(Mode::SwallowAt(postgres.word()));
    all_lost(&mut scene);
    scene.judge("cut within a request");
});

// "Exclusion holds under a network cut": connections reset, old and new.
on_every_lease_store!(connections_are_reset, |store| {
    let mut scene = Scene::with_queue(store);
    scene.proxy.set(Mode::Reset);
    all_lost(&mut scene);
    scene.judge("connections reset");
});

// "Exclusion holds under slow or hanging stores": the server stands still for longer than the lease.
on_every_lease_store!(the_server_is_stopped, |store| {
    let mut scene = Scene::new(store);
    store.server().pause();
    all_lost(&mut scene);
    store.server().resume();
    scene.judge("server stopped");
});

// "Exclusion holds under a store restarted with its data": it was away for longer than the lease.
on_every_lease_store!(the_server_is_away, |store| {
    let mut scene = Scene::new(store);
    store.server().kill();
    all_lost(&mut scene);
    store.server().start_again();
    scene.judge("server restarted");
});

// "A reply that comes after H does not rescue the lease."
on_every_lease_store!(replies_come_too_late, |store| {
    let mut scene = Scene::with_queue(store);
    scene.proxy.set(Mode::Delay(TTL));
    all_lost(&mut scene);
    scene.judge("replies late");
});

// "H counts from when the request was sent", not from when its answer came: here that makes nearly two seconds.
on_every_lease_store!(the_lock_is_granted_late, |store| {
    let (proxy, records) = (store.proxy(), memory::directory());
    let record = records.path().join("record");
    // From now on a Redis server has the scripts.
    assert!(is_free(store, "late"));
    proxy.set(Mode::DelayAnswers(Duration::from_millis(1900)));
    let terms = ["--ttl", "14s", "--renew-every", "9s", "--store-timeout", "2300ms", "--kill-after", "100ms"];
    let old = Lockrun::at(&proxy.url()).key("late").args(terms).command(witness::command(&record, "old", &[]));
    let mut old = old.spawn();
    if !old.comes_to(|old| old.has_line("ready")) {
        late(&format!("the old run has ended: {}", old.stderr()));
    }
    proxy.set(Mode::Swallow);
    let mut case = Case { key: "late".into(), old, next: None, record };
    case.queue(store);
    case.next.as_mut().expect("just started").wait_for_line("ready");
    let margin = witness::smallest_margin(&witness::lives(&case.record));
    assert!(margin.is_some_and(|margin| margin > 0), "the old command has lived {margin:?} ns beside the next one");
    case.old.wait().exited(79);
});

// "If lockrun is killed, a guardian sees it: the command's processes are dead before the lease can pass on."
on_every_lease_store!(lockrun_is_killed, |store| {
    let scene = Scene::with_queue(store);
    for case in &scene.cases {
        case.old.signal(Signal::SIGKILL);
    }
    scene.judge("lockrun killed");
});

// "If lockrun is stopped, a guardian sees it."
on_every_lease_store!(lockrun_is_stopped, |store| {
    let scene = Scene::with_queue(store);
    for case in &scene.cases {
        case.old.signal(Signal::SIGSTOP);
    }
    scene.judge("lockrun stopped");
});

// "It holds under crash, KILL or STOP of lockrun": whichever of its processes it is.
on_every_lease_store!(the_guardian_is_killed, |store| {
    let mut scene = Scene::with_queue(store);
    for case in &scene.cases {
        let guardians = case.old.guardians();
        assert!(!guardians.is_empty(), "a lease store has a guardian");
        for pid in guardians {
            send(pid, Signal::SIGKILL);
        }
    }
    // Without a guardian the command ends, and lockrun with it; this test watches that end.
    for case in &mut scene.cases {
        eventually(LONG, "the old run has ended", || case.old.has_ended());
    }
    scene.judge("guardian killed");
});

// "A guardian sees it": a stopped guardian is as good as none, but lockrun keeps the promise alone.
on_every_lease_store!(the_guardian_is_stopped_and_the_network_cut, |store| {
    let mut scene = Scene::with_queue(store);
    for case in &scene.cases {
        for pid in case.old.guardians() {
            send(pid, Signal::SIGSTOP);
        }
    }
    scene.proxy.set(Mode::Swallow);
    for case in &mut scene.cases {
        eventually(LONG, "the old command is dead", || witness::lives(&case.record).len() == 2);
    }
    scene.judge("guardian stopped, traffic swallowed");
});

// "It holds under STOP of lockrun": of all its processes at once, as `pkill -STOP -f lockrun` does, where the command
// goes on.
on_every_lease_store!(lockrun_and_its_guardian_are_stopped, |store| {
    let mut scene = Scene::with_queue(store);
    for case in &scene.cases {
        let ours = case.old.guardians().into_iter().chain([case.old.pid()]);
        for pid in ours {
            send(pid, Signal::SIGSTOP);
        }
    }
    all_lost(&mut scene);
    scene.judge("lockrun and its guardian stopped");
});

// "If lockrun is killed or stopped, the guardian kills the command's processes; if the guardian is, lockrun does": here
// one after the other is, and what the kernel does for the command would not suffice.
on_every_lease_store!(lockrun_is_stopped_and_the_guardian_killed, |store| {
    let call = Lockrun::new(store).key("orphan").args(["--ttl", "10m"]);
    let script = "trap '' TERM; setsid sleep 600 & echo ready; sleep 600; sleep 600";
    let mut run = call.command(["setpriv", "--pdeathsig", "clear", "sh", "-c", script]).spawn();
    run.wait_for_line("ready");
    run.signal(Signal::SIGSTOP);
    eventually(LONG, "lockrun is stopped", || state(run.pid()) == Some('T'));
    for pid in run.guardians() {
        send(pid, Signal::SIGKILL);
    }
    eventually(LONG, "nothing of it is left", || run.has_ended() && run.processes().is_empty());
    assert!(is_free(store, "orphan"), "nobody has it any more");
});

// "The local deadline counts from before the request left": from the first request, if the server received a waiter's
// claim but the connection closed before the answer, and the waiter learns that it has the lock only by another
// request, some time later.
on_every_lease_store!(the_answer_to_a_claim_is_lost_and_then_the_network, |store| {
    let proxy = store.proxy();
    let records = memory::directory();
    let record = records.path().join("claim");
    let hold = || Lockrun::new(store).key("claim").arg("--wait").sh("echo ready; exec sleep 600").spawn();
    let is_awaited = || store.server().waiting("claim").len() == 1 && store.server().asleep() == 1;
    let mut first = hold();
    first.wait_for_line("ready");
    // A run that gets the lock in turn, so that a Redis server has the scripts for that.
    let mut holder = hold();
    eventually(LONG, "it waits", is_awaited);
    first.signal(Signal::SIGTERM);
    holder.wait_for_line("ready");
    let case = |url: &str| Lockrun::at(url).key("claim").args(["--ttl", "9s", "--kill-after", "500ms", "--wait"]);
    let old = case(&proxy.url()).command(witness::command(&record, "old", &[]));
    let mut old = old.spawn();
    eventually(LONG, "it waits", is_awaited);
    // Less than the store's time-out.
    proxy.set(Mode::LoseAnswer(proxy.connections(), Duration::from_millis(1200)));
    holder.signal(Signal::SIGTERM);
    old.wait_for_line("ready");
    proxy.set(Mode::Swallow);
    let next = case(&store.url()).command(witness::command(&record, "next", &[])).spawn();
    witness::begins_after_the_other(next, &record);
});

// "At once when lockrun dies": long before the lease would have run out.
on_every_lease_store!(the_command_of_a_killed_lockrun_is_dead_at_once, |store| {
    let call = Lockrun::new(store).key("orphan").args(["--ttl", "10m"]);
    let mut run = call.sh("trap '' TERM; setsid sleep 600 & echo ready; sleep 600; sleep 600").spawn();
    run.wait_for_line("ready");
    run.signal(Signal::SIGKILL);
    eventually(LONG, "nothing of it is left", || run.processes().is_empty());
});
