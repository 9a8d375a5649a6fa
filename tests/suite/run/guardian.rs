//! Under a lease the guardian does the work: it waits, runs the command and releases. What happens when it or lockrun
//! dies or is stopped, mostly before COMMAND starts; for the rest see `faults` and `outliving`.

use std::fs;
use std::time::Duration;

use nix::libc;
use nix::sys::ptrace;
use nix::sys::signal::Signal;
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::Pid;
use tempfile::TempDir;

use crate::support::birth::Birth;
use crate::support::calm::{held_in_time, judge, late, stays_in_time_for};
use crate::support::hand::is_held;
use crate::support::holder::is_free;
use crate::support::processes::{children, is_alive, is_pending, send, state};
use crate::support::proxy::Mode;
use crate::support::store::on_every_lease_store;
use crate::support::{Holder, LONG, Lockrun, Queue, Redis, Running, Store, eventually, memory, witness};

/// Two waiters. The lock was handed to the first of them while its guardian was stopped.
struct Scene<'a> {
    queue: Queue<'a>,
    /// The first waiter's guardian.
    guardian: i32,
}

impl<'a> Scene<'a> {
    fn new(store: &'a Store, key: &str, options: &[&str]) -> Self {
        let holder = Holder::new(store, key);
        let mut queue = Queue::new(store, key).with(options);
        queue.join(2);
        queue.settles();
        let guardian = guardian_of(&mut queue, 0);
        stop(guardian);
        holder.end();
        Scene { queue, guardian }
    }
}

/// Returns the guardian of a waiter.
fn guardian_of(queue: &mut Queue<'_>, number: usize) -> i32 {
    let guardians = children(queue.waiter(number).pid());
    assert_eq!(guardians.len(), 1, "{guardians:?}");
    guardians[0]
}

#[track_caller]
pub(crate) fn stop(pid: i32) {
    send(pid, Signal::SIGSTOP);
    eventually(LONG, "it stands still", || state(pid) == Some('T'));
}

// "Nothing outlives lockrun": killed while it waits, it takes its guardian with it, which leaves the queue.
on_every_lease_store!(lockrun_is_killed_while_it_waits, |store| {
    let holder = Holder::new(store, "killed-waiting");
    let mut queue = Queue::new(store, "killed-waiting");
    queue.join(2);
    let guardian = guardian_of(&mut queue, 0);
    let waiter = queue.take(0);
    waiter.signal(Signal::SIGKILL);
    waiter.wait_and_leave(|output| {
        output.died_of(Signal::SIGKILL);
        eventually(LONG, "the guardian has gone, too", || !is_alive(guardian));
    });
    eventually(LONG, "its place is free", || queue.length() == 1);
    holder.end();
    queue.end().in_order([1]);
});

// The same when the lock was handed to it: the next waiter goes on when that lease has expired.
on_every_lease_store!(lockrun_is_killed_when_the_lock_is_handed_to_it, |store| {
    let Scene { mut queue, guardian } = Scene::new(store, "killed-holding", &["--ttl", "3s"]);
    send(queue.waiter(0).pid(), Signal::SIGKILL);
    eventually(LONG, "the guardian has gone, too", || !is_alive(guardian));
    queue.kill(0);
    queue.end().in_order([1]);
});

// "A wait that is cut short leaves the queue", also when it was the guardian that was killed.
on_every_lease_store!(the_guardian_is_killed_while_it_waits, |store| {
    let holder = Holder::new(store, "guardian-killed");
    let mut queue = Queue::new(store, "guardian-killed");
    queue.join(2);
    send(guardian_of(&mut queue, 0), Signal::SIGKILL);
    queue.take(0).wait().exited(125).said("guardian");
    eventually(LONG, "its place is free", || queue.length() == 1);
    holder.end();
    queue.end().in_order([1]);
});

// The same when the lock was handed to it: lockrun gives it up.
on_every_lease_store!(the_guardian_is_killed_when_the_lock_is_handed_to_it, |store| {
    let Scene { mut queue, guardian } = Scene::new(store, "holder-killed", &[]);
    send(guardian, Signal::SIGKILL);
    eventually(LONG, "the guardian is dead", || !is_alive(guardian));
    queue.take(0).wait().exited(125).said("guardian");
    queue.end().in_order([1]);
});

// "Nothing outlives lockrun", whatever was ignored when it started.
on_every_lease_store!(a_guardian_that_ignores_signals_goes_with_lockrun, |store| {
    let holder = Holder::new(store, "ignoring");
    let waiter =
        Lockrun::new(store).key("ignoring").arg("--wait").sh(":").in_shell("trap '' TERM; exec \"$@\"").spawn_alone();
    let place = || store.server().waiting("ignoring").len();
    eventually(LONG, "it waits", || place() == 1);
    let guardian = children(waiter.pid())[0];
    waiter.signal(Signal::SIGKILL);
    eventually(LONG, "the guardian has gone, too", || !is_alive(guardian));
    assert_eq!(place(), 0);
    holder.end();
});

// "Nothing outlives lockrun": its guardian goes with it even if it is stopped, because the run was suspended while it
// waited, or on its own while the command runs.
on_every_lease_store!(a_stopped_guardian_goes_with_lockrun, |store| {
    let stands_still = |pid| state(pid) == Some('T');
    // As a job of cron: no shell or kernel continues its process group.
    let call = Lockrun::new(store).key("left").args(["--wait", "--ttl", "none"]).sh("echo ready; exec sleep 600");
    let call = call.birth(Birth { session: true, ..Birth::default() });
    let mut holder = call.spawn();
    holder.wait_for_line("ready");
    let mut waiter = call.spawn();
    eventually(LONG, "it waits", || store.server().waiting("left").len() == 1);
    let guardians = [&waiter, &holder].map(|run| children(run.pid())[0]);
    waiter.signal(Signal::SIGTSTP);
    eventually(LONG, "all of it is suspended", || stands_still(waiter.pid()) && stands_still(guardians[0]));
    stop(guardians[1]);
    for (run, guardian) in [&mut waiter, &mut holder].into_iter().zip(guardians) {
        run.signal(Signal::SIGKILL);
        // A process that is dying has lost its environment, and so its mark.
        let is_gone = |run: &mut Running| run.has_ended() && run.processes().is_empty() && !is_alive(guardian);
        eventually(LONG, "nothing of the run is left", || is_gone(run));
    }
    assert_eq!(store.server().waiting("left").len(), 0);
    assert!(!is_held(store, "left"));
});

// If lockrun is stopped, COMMAND does not start, even if the lock is granted meanwhile: it starts when lockrun is
// continued.
on_every_lease_store!(nothing_begins_while_lockrun_is_stopped, |store| {
    let server = store.server();
    server.pause();
    let mut run = Lockrun::new(store).key("stopped").args(["--ttl", "60s"]).command(["echo", "begun"]).spawn();
    // It asks for no lock while lockrun is stopped, so it has to be on its way before that.
    let is_socket =
        |entry: fs::DirEntry| fs::read_link(entry.path()).is_ok_and(|it| it.to_string_lossy().starts_with("socket:"));
    let has_connection =
        |pid: &i32| fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten().any(is_socket);
    eventually(LONG, "its guardian has connected", || children(run.pid()).first().is_some_and(has_connection));
    stop(run.pid());
    server.resume();
    eventually(LONG, "the lock is its own", || is_held(store, "stopped"));
    // Meanwhile other runs come and go.
    Lockrun::new(store).key("another").command(["true"]).run().exited(0);
    assert_eq!(run.stdout(), "");
    send(run.pid(), Signal::SIGCONT);
    run.wait_for_line("begun");
    run.wait().exited(0);
});

// "Signals": those that end a wait end it even if the guardian is stopped.
on_every_lease_store!(a_wait_whose_guardian_is_stopped_can_be_ended, |store| {
    let holder = Holder::new(store, "stopped-guardian");
    let mut queue = Queue::new(store, "stopped-guardian");
    queue.join(1);
    let guardian = guardian_of(&mut queue, 0);
    stop(guardian);
    let waiter = queue.take(0);
    waiter.signal(Signal::SIGTERM);
    waiter.wait().died_of(Signal::SIGTERM);
    assert!(!is_alive(guardian), "the guardian is still there");
    assert_eq!(queue.length(), 0);
    holder.end();
});

// A signal to lockrun also arrives if its guardian is being stopped at that moment: a STOP signal takes effect when the
// process next gets a processor.
on_every_lease_store!(a_signal_arrives_at_a_guardian_that_is_about_to_stop, |store| {
    let call = Lockrun::new(store).key("stopping").args(["--ttl", "none"]);
    let mut run = call.sh("echo ready; exec sleep 600").spawn();
    run.wait_for_line("ready");
    let guardian = Pid::from_raw(children(run.pid())[0]);
    ptrace::seize(guardian, ptrace::Options::empty()).expect("it can be traced");
    ptrace::interrupt(guardian).expect("it is stopped");
    waitpid(guardian, None).expect("it has stopped");
    send(guardian.as_raw(), Signal::SIGSTOP);
    run.signal(Signal::SIGTERM);
    eventually(LONG, "it was relayed", || is_pending(guardian.as_raw(), Signal::SIGTERM));
    // Time enough for lockrun to look at a guardian that is not stopped yet.
    Lockrun::new(store).key("another").command(["true"]).run().exited(0);
    ptrace::detach(guardian, None).expect("it goes on");
    run.wait().died_of(Signal::SIGTERM);
    assert!(is_free(store, "stopping"));
});

// "A wake-up that comes late is judged by H alone": one that is read after the lease has ended starts nothing, and the
// waiter waits again.
on_every_lease_store!(a_wake_up_is_read_after_the_lease, |store| {
    let holder = Holder::new(store, "refused");
    let mut queue = Queue::new(store, "refused").with(&["--ttl", "2s"]);
    let gate = TempDir::new().expect("a temporary directory");
    let opened = gate.path().join("opened");
    queue.join(1);
    queue.join_to(&format!("until [ -e '{}' ]; do sleep 0.01; done", opened.display()));
    queue.settles();
    let late = guardian_of(&mut queue, 0);
    stop(late);
    holder.end();
    queue.have_begun(&["1"]);
    let asleep = queue.asleep();
    send(late, Signal::SIGCONT);
    eventually(LONG, "the first one waits again", || queue.asleep() > asleep);
    assert_eq!(queue.begun(), ["1"], "its command has not begun");
    std::fs::write(&opened, "").expect("the gate opens");
    queue.end().in_order([1, 0]);
});

// "From COMMAND's first instruction no other run holds the same key": a lease that expired before COMMAND could start
// was not lost while COMMAND ran, whatever `--on-lost` says.
on_every_lease_store!(nothing_begins_when_the_lease_is_over, |store| {
    // The first run creates the tables, if the store has any.
    Lockrun::at(&store.url()).key("too-late").command(["true"]).run().exited(0);
    let proxy = store.proxy();
    proxy.set(Mode::Delay(Duration::from_millis(300)));
    let call = Lockrun::at(&proxy.url()).key("too-late").args(["--ttl=8s", "--on-lost=warn"]);
    let run = call.command(["echo", "ran"]).spawn();
    // The answer is on its way.
    eventually(LONG, "the lock is granted", || is_held(store, "too-late"));
    let guardian = children(run.pid())[0];
    stop(guardian);
    held_in_time(run.stdout().is_empty(), "it has not begun");
    eventually(LONG, "its lease has ended", || !is_held(store, "too-late"));
    send(guardian, Signal::SIGCONT);
    run.wait().exited(69).printed("");
    assert!(is_free(store, "too-late"));
});

// "If that fails, COMMAND's own status still counts": the release may take longer than what is left of the lease.
on_every_lease_store!(a_command_that_has_ended_keeps_its_status_while_the_store_is_away, |store| {
    let server = store.server();
    let directory = TempDir::new().expect("a temporary directory");
    let events = directory.path().join("events");
    let mut run = Lockrun::new(store)
        .key("slow-release")
        .args(["--ttl", "3s", "--kill-after", "200ms", "--store-timeout", "1500ms", "--events"])
        .arg(&events)
        .sh("echo ready; sleep 1.5")
        .spawn();
    run.wait_for_line("ready");
    server.pause();
    let finished = run.wait();
    server.resume();
    let told = std::fs::read_to_string(&events).expect("the events");
    assert_eq!(told.matches("\"event\":\"finished\"").count(), 1, "{told}");
    assert!(!told.contains("\"event\":\"killed\""), "{told}");
    finished.exited(0);
});

// "126, 127: COMMAND cannot be executed, is not found", however long it takes to release the lock then.
on_every_lease_store!(a_command_that_is_not_found_keeps_its_status_while_the_store_is_away, |store| {
    let proxy = store.proxy();
    // From now on a Redis server has the scripts.
    Lockrun::new(store).key("not-found").command(["true"]).run().exited(0);
    // It acquires the lock, and the answer to its release comes only when the lease has expired.
    let call = Lockrun::at(&proxy.url()).key("not-found").args(["--ttl", "3s", "--kill-after", "300ms"]);
    let call = call.args(["--renew-every", "600ms", "--store-timeout", "1800ms"]).command(["/nonexistent/command"]);
    proxy.set(Mode::DelayAnswers(Duration::from_millis(1500)));
    call.run().exited(127).said("not found");
});

// lockrun does not read every renewal message, yet it learns how the run ended when there were many.
on_every_lease_store!(an_end_after_many_renewals_is_noticed, |store| {
    let server = store.server();
    let call = Lockrun::new(store).key("many-renewals").args(["--ttl", "1h", "--renew-every", "10ms"]);
    let run = call.sh("read line || :; exit 7").with_open_input();
    eventually(LONG, "the lease was renewed often", || server.requests() > 400);
    run.finish().exited(7).silent();
});

// "Nothing outlives lockrun's lease" if the guardian is stopped as soon as the command has started: also if it started
// late in the lease, because the store was slow and lockrun had just looked.
on_every_lease_store!(a_guardian_is_stopped_late_in_the_lease, |store| {
    let proxy = store.proxy();
    let records = memory::directory();
    let record = records.path().join("record");
    let options = ["--ttl", "6s", "--renew-every", "500ms", "--store-timeout", "5s", "--kill-after", "0"];
    let call = |url: &str, tag| Lockrun::at(url).key("late").args(options).command(witness::command(&record, tag, &[]));
    // From now on a Redis server has the scripts.
    Lockrun::new(store).key("late").command(["true"]).run().exited(0);
    proxy.set(Mode::DelayAnswers(Duration::from_millis(4900)));
    let old = call(&proxy.url(), "old").spawn();
    let keys = || is_held(store, "late");
    eventually(LONG, "the lock is its own, and it does not know yet", keys);
    let guardian = Pid::from_raw(children(old.pid())[0]);
    ptrace::seize(guardian, ptrace::Options::PTRACE_O_TRACEVFORKDONE).expect("it can be traced");
    // A little less than the answer takes.
    stays_in_time_for(Duration::from_millis(4700), "it does not know yet", || old.stdout().is_empty());
    old.signal(Signal::SIGWINCH);
    while !matches!(waitpid(guardian, None), Ok(WaitStatus::PtraceEvent(_, _, libc::PTRACE_EVENT_VFORK_DONE))) {
        if ptrace::cont(guardian, None).is_err() {
            late("lockrun has taken over from its guardian");
        }
    }
    proxy.set(Mode::Pass);
    eventually(LONG, "the lease is over", || !is_held(store, "late"));
    let mut next = call(&store.url(), "next").arg("--wait").spawn();
    waitpid(guardian, None).expect("lockrun has killed it");
    next.wait_for_line("ready");
    next.kill_everything();
    old.wait().exited(79);
    let lives = witness::lives(&record);
    assert!(witness::smallest_margin(&lives).is_none_or(|margin| margin > 0), "{lives:?}");
});

/// Executes sleep(1) at a priority at which it hardly gets a processor while others want one. Giving back its memory
/// then takes many seconds.
const SLOW: &str = "
import mmap, os
memory = mmap.mmap(-1, 512 << 20)
memory.madvise(mmap.MADV_NOHUGEPAGE)
for page in range(0, len(memory), mmap.PAGESIZE):
    memory[page] = 1
os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
print('ready', flush=True)
os.execv('/bin/sleep', ['sleep', '600'])
";

// "COMMAND and all that lockrun must stop is dead", in time: recent kernels make a reader of /proc/PID/stat wait while
// that process, which may be anyone's, executes a program. The test depends on the order: on a busy machine that
// process may be quicker than lockrun.
#[test]
fn a_preexisting_child_that_executes_a_program_is_not_waited_for() {
    judge(|| {
        let store = Store::Redis(Redis::start());
        let processors = std::thread::available_parallelism().expect("a number").get();
        let call = Lockrun::bare().command(["sh", "-c", "echo ready; while :; do :; done"]);
        let mut busy: Vec<_> = (0..2 * processors).map(|_| call.spawn_alone()).collect();
        for busy in &mut busy {
            busy.wait_for_line("ready");
        }
        let mut child = Lockrun::bare().command(["python3", "-c", SLOW]).spawn_alone();
        child.wait_for_line("ready");
        let name = || std::fs::read_to_string(format!("/proc/{}/comm", child.pid())).expect("it lives");
        let call = Lockrun::new(&store).key("k").args(["--max-runtime", "100ms", "--kill-after", "100ms"]);
        // One is in a session of its own.
        let mut run = call.sh("setsid sleep 600 & exec sleep 600").spawn();
        eventually(LONG, "the run has ended", || run.has_ended());
        let name = name();
        // It cannot be found by its environment while it is executing a program, and the busy processes keep it from
        // finishing that.
        child.signal(Signal::SIGKILL);
        for busy in &busy {
            busy.signal(Signal::SIGKILL);
        }
        run.wait().exited(124);
        held_in_time(name != "sleep\n", "lockrun has ended before the child has executed its program");
    });
}
