//! A lockrun that a debugger holds. It does not run, but it is not stopped either, so its guardian goes on renewing the
//! lease. However long that lasts, lockrun ends as the run has ended.

use nix::sys::ptrace;
use nix::sys::signal::Signal;
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::Pid;

use crate::support::catcher::Catcher;
use crate::support::events::Events;
use crate::support::hand::{break_lock, is_held};
use crate::support::holder::is_free;
use crate::support::lockrun::Open;
use crate::support::processes::{children, send, state};
use crate::support::shell::{PROMPT, enter, shell, written};
use crate::support::store::on_every_lease_store;
use crate::support::{Holder, LONG, Lockrun, Redis, Store, eventually};

/// More renewals than the buffer of a socket would have room for, if each were reported to a lockrun that does not
/// read.
const RENEWALS: u64 = 400;

/// Options for a lease that is renewed often, and long enough that it is not lost on a busy machine.
const OFTEN: [&str; 4] = ["--ttl", "10m", "--renew-every", "10ms"];

/// A process that is held as by a debugger.
struct Held(Pid);

impl Held {
    fn new(pid: i32) -> Self {
        let pid = Pid::from_raw(pid);
        ptrace::seize(pid, ptrace::Options::empty()).expect("it can be traced");
        ptrace::interrupt(pid).expect("it is stopped");
        assert!(matches!(waitpid(pid, None), Ok(WaitStatus::PtraceEvent(..))), "it has stopped");
        assert_eq!(state(pid.as_raw()), Some('t'));
        Held(pid)
    }

    fn let_go(self) {
        ptrace::detach(self.0, None).expect("it goes on");
    }
}

/// Starts `script` under the lock `key`, and holds lockrun once the script has said `ready`.
fn hold(call: Lockrun, script: &str) -> (Open, Held, i32) {
    let mut run = call.args(OFTEN).sh(&format!("echo ready; {script}")).with_open_input();
    run.run.wait_for_line("ready");
    let guardian = children(run.run.pid())[0];
    let held = Held::new(run.run.pid());
    (run, held, guardian)
}

/// Waits until the guardian, a child of a lockrun that is held and so does not reap it, has ended.
#[track_caller]
fn ends(guardian: i32) {
    eventually(LONG, "the guardian has ended", || state(guardian) == Some('Z'));
}

// "It ran and ended: COMMAND's own" status, although lockrun has read nothing of many renewals.
on_every_lease_store!(a_run_ends_as_its_command_ended, |store| {
    let events = Events::new();
    let (run, held, guardian) = hold(events.of(Lockrun::new(store)).key("held"), "read line || :; exit 7");
    let before = store.server().requests();
    eventually(LONG, "the lease was renewed often", || store.server().requests() > before + RENEWALS);
    let run = run.close();
    ends(guardian);
    assert!(is_free(store, "held"));
    held.let_go();
    run.wait().exited(7).printed("ready\n").silent();
    assert_eq!(events.names(), ["acquired", "started", "finished", "released"]);
});

/// What ends a run that is held.
enum By {
    /// The command's input ends.
    Input,
    /// `--max-runtime`.
    Time,
    /// `lockrun break --now`.
    Break,
    /// The guardian gets this signal.
    Guardian(Signal),
}

// The same for every other way in which a run can end: each status, and each event once and in order.
#[test]
fn a_run_ends_as_it_ended() {
    type Names = &'static [&'static str];
    let store = Store::Redis(Redis::start());
    let all: Names = &["acquired", "started", "finished", "released"];
    let killed: Names = &["acquired", "started", "killed", "finished", "released"];
    let lost: Names = &["acquired", "started", "lost", "killed", "finished"];
    let wait: Names = &["--descendants", "wait"];
    let ways: [(&str, Names, &str, By, i32, Names); 8] = [
        ("status", &[], "read line || :; exit 5", By::Input, 5, all),
        ("signal", &[], "read line || :; kill -TERM $$", By::Input, 128 + 15, all),
        ("own-signal", &[], "read line || :; kill -KILL $$", By::Input, 128 + 9, all),
        ("left-behind", wait, "exec 3<&0; (read line <&3 || :; exit 1) & exit 6", By::Input, 6, all),
        ("time", &["--max-runtime", "9s"], "exec sleep 600", By::Time, 124, killed),
        ("lost", &[], "exec sleep 600", By::Break, 79, lost),
        ("killed", &[], "exec sleep 600", By::Guardian(Signal::SIGKILL), 125, killed),
        ("told", &[], "trap 'exit 3' TERM; while :; do sleep 0.1; done", By::Guardian(Signal::SIGTERM), 3, all),
    ];
    let runs = ways.map(|way| {
        let events = Events::new();
        let call = events.of(Lockrun::new(&store)).key(way.0).args(way.1);
        (hold(call, way.2), events, way)
    });
    let server = store.server();
    let (before, count) = (server.requests(), u64::try_from(runs.len()).expect("few"));
    eventually(LONG, "the leases were renewed often", || server.requests() > before + count * RENEWALS);
    for ((run, held, guardian), events, (key, _, _, by, status, names)) in runs {
        let run = match by {
            By::Input => run.close(),
            By::Time => run.run,
            By::Break => {
                break_lock(&store, key, &["--now"]).exited(0);
                run.run
            }
            By::Guardian(signal) => {
                send(guardian, signal);
                run.run
            }
        };
        ends(guardian);
        held.let_go();
        let output = run.wait();
        match status {
            129.. => output.died_of(Signal::try_from(status - 128).expect("a signal")),
            _ => output.exited(status),
        };
        assert_eq!(events.names(), names, "{key}");
        assert!(is_free(&store, key), "{key}");
    }
}

// "126, 127: COMMAND cannot be executed, is not found": also if lockrun was held since before its turn came.
on_every_lease_store!(a_command_that_does_not_start, |store| {
    for (program, status) in [("/nonexistent/command", 127), ("/etc/passwd", 126)] {
        let holder = Holder::new(store, "unstarted");
        let events = Events::new();
        let call = events.of(Lockrun::new(store)).key("unstarted").arg("--wait").command([program]);
        let run = call.spawn();
        eventually(LONG, "it waits", || store.server().waiting("unstarted").len() == 1);
        let (held, guardian) = (Held::new(run.pid()), children(run.pid())[0]);
        holder.end();
        ends(guardian);
        assert!(!is_held(store, "unstarted"));
        held.let_go();
        run.wait().exited(status);
        assert_eq!(events.names(), ["waiting", "acquired", "failed", "released"]);
    }
});

// "Ctrl-Z stops both and returns the prompt": also if lockrun does not run when it is pressed, and the command was
// stopped and continued often before.
#[test]
fn the_last_stop_of_the_command_counts() {
    let store = Store::Redis(Redis::start());
    let mut terminal = shell(&store);
    let catcher = Catcher::new();
    // It does not catch TSTP.
    enter(&mut terminal, &format!("lockrun -k tty --ttl 10m {}", catcher.of(&["SIGUSR1"])));
    let command = written(&catcher.pid_file());
    let lockrun = terminal.foreground().as_raw();
    eventually(LONG, "lockrun has its guardian", || children(lockrun).len() == 1);
    let held = Held::new(lockrun);
    for _ in 0..RENEWALS {
        for (signal, is_stopped) in [(Signal::SIGSTOP, true), (Signal::SIGCONT, false)] {
            send(command, signal);
            eventually(LONG, "it has its effect", || (state(command) == Some('T')) == is_stopped);
        }
    }
    terminal.type_keys("\x1a");
    eventually(LONG, "the command is stopped", || state(command) == Some('T'));
    held.let_go();
    terminal.wait_for("Stopped");
    terminal.wait_for(PROMPT);
    enter(&mut terminal, "fg; echo status $?");
    terminal.wait_for("lockrun");
    enter(&mut terminal, "last");
    terminal.wait_for("got last");
    terminal.wait_for("status 3");
    terminal.wait_for(PROMPT);
    assert!(is_free(&store, "tty"));
}
