//! Waiting for a lock in files: in turn, whatever becomes of the waiters.

use std::fs;
use std::process::Command;
use std::time::Duration;

use nix::sys::resource::Resource;
use nix::sys::signal::Signal;
use tempfile::TempDir;

use crate::support::birth::Birth;
use crate::support::hand::{is_held, release, status, token, until_waiting};
use crate::support::namespace::{as_first_process, with_limits};
use crate::support::processes::{children, is_alive, send, state};
use crate::support::pty::Terminal;
use crate::support::{Holder, LONG, Lockrun, Queue, Running, Store, eventually};

/// Starts a waiter; returns when it is in the kernel's queue, or at the turnstile if it is the first.
fn wait_for(store: &Store, key: &str, say: &str, count: usize) -> Running {
    let waiter = Lockrun::new(store).key(key).arg("--wait").command(["echo", say]).spawn();
    until_waiting(store, key, count);
    waiter
}

// "Waiters get the lock in the order in which they came."
#[test]
fn thirty_waiters_in_order() {
    const WAITERS: usize = 30;
    let store = Store::file();
    let holder = Holder::new(&store, "thirty");
    let mut queue = Queue::new(&store, "thirty");
    for number in 1..=WAITERS {
        queue.join(1);
        until_waiting(&store, "thirty", number);
    }
    holder.end();
    queue.end().in_order(0..WAITERS);
}

// "... skips dead ones": also the one at the turnstile, however it died.
#[test]
fn the_first_in_the_queue_is_killed() {
    let store = Store::file();
    let holder = Holder::new(&store, "killed");
    let waiters: Vec<_> = (1..=4).map(|number| wait_for(&store, "killed", "ran", number)).collect();
    for waiter in &waiters[..2] {
        waiter.signal(Signal::SIGKILL);
    }
    until_waiting(&store, "killed", 2);
    waiters[2].signal(Signal::SIGTERM);
    until_waiting(&store, "killed", 1);
    holder.end();
    let last = waiters.into_iter().last().expect("there are four");
    last.wait().exited(0).printed("ran\n").silent();
    assert!(!is_held(&store, "killed"));
}

// The same from a terminal, where a line that is refreshed says how the wait goes.
#[test]
fn a_line_on_a_terminal_costs_no_place() {
    let store = Store::file();
    let holder = Holder::new(&store, "line");
    let mut queue = Queue::new(&store, "line");
    queue.join(1);
    until_waiting(&store, "line", 1);
    // Its writes take so long that the others could overtake it.
    let mut slow = Command::new("strace");
    slow.args(["-f", "-qq", "-o", "/dev/null", "-e", "trace=write", "-e", "inject=write:delay_enter=100000"]);
    slow.args(queue.newcomer("terminal", &["--wait"]).words());
    let mut terminal = Terminal::start(slow, &[]);
    until_waiting(&store, "line", 2);
    queue.join(1);
    until_waiting(&store, "line", 3);
    terminal.watch(Duration::from_millis(100));
    for _refresh in 0..2 {
        terminal.wait_for("waiting");
    }
    holder.end();
    assert_eq!(terminal.wait().code(), Some(0));
    eventually(LONG, "all have run", || queue.begun().len() == 3);
    assert_eq!(queue.begun(), ["0", "terminal", "1"]);
}

/// Starts a run that waits behind another waiter, in the kernel's queue.
fn wait_behind(store: &Store, key: &str, call: impl FnOnce(Lockrun) -> Running) -> Running {
    let waiter = call(Lockrun::new(store).key(key).command(["echo", "ran"]));
    until_waiting(store, key, 2);
    waiter
}

// "lockrun gets TERM, INT, HUP while it waits: the signal terminates it": also as the first process of a container,
// which gets only signals that it handles.
#[test]
fn the_first_process_of_a_container_waits() {
    let store = Store::file();
    let script = as_first_process();
    let holder = Holder::new(&store, "container");
    let first = wait_for(&store, "container", "first", 1);
    for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP] {
        for wait in ["--wait", "--wait=1h"] {
            let waiter = wait_behind(&store, "container", |call| call.arg(wait).in_shell(&script).spawn_alone());
            send(children(waiter.pid())[0], signal);
            // It cannot kill itself by a signal, so its status names the signal.
            waiter.wait().exited(128 + signal as i32).printed("").silent();
            until_waiting(&store, "container", 1);
        }
    }
    holder.end();
    first.wait().exited(0).printed("first\n").silent();
    assert!(!is_held(&store, "container"));
}

// The same if these signals were blocked when lockrun was started; they end a wait at the turnstile, too.
#[test]
fn a_blocked_signal_ends_a_wait() {
    let store = Store::file();
    let blocked = [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP, Signal::SIGUSR1, Signal::SIGALRM];
    let birth = Birth { blocked: blocked.map(|signal| signal as i32).to_vec(), ..Birth::default() };
    let holder = Holder::new(&store, "blocked");
    let first = wait_for(&store, "blocked", "first", 1);
    for signal in blocked {
        for wait in ["--wait", "--wait=1h"] {
            let waiter = wait_behind(&store, "blocked", |call| call.arg(wait).birth(birth.clone()).spawn());
            waiter.signal(signal);
            waiter.wait().died_of(signal).printed("").silent();
            until_waiting(&store, "blocked", 1);
        }
    }
    holder.end();
    first.wait().exited(0).printed("first\n").silent();
}

// "A signal that was ignored when lockrun started stays ignored"; and the wait has changed nothing for the command.
#[test]
fn an_ignored_signal_ends_no_wait() {
    let store = Store::file();
    let birth = Birth {
        ignored: [Signal::SIGHUP, Signal::SIGUSR1, Signal::SIGALRM].map(|signal| signal as i32).to_vec(),
        blocked: vec![Signal::SIGTERM as i32],
        ..Birth::default()
    };
    let call = Lockrun::new(&store).key("ignored").command(["grep", "^Sig[BIC]", "/proc/self/status"]).birth(birth);
    let alone = call.alone().exited(0);
    let holder = Holder::new(&store, "ignored");
    let first = wait_for(&store, "ignored", "first", 1);
    let waiter = call.clone().arg("--wait").spawn();
    until_waiting(&store, "ignored", 2);
    for signal in [Signal::SIGHUP, Signal::SIGUSR1, Signal::SIGALRM] {
        waiter.signal(signal);
    }
    call.arg("--wait=500ms").run().exited(75).printed("");
    holder.end();
    first.wait().exited(0).printed("first\n").silent();
    waiter.wait().exited(0).printed(&alone.stdout()).silent();
}

// A wait that cannot be limited, because this user has too many pending signals for another timer, says so.
#[test]
fn a_limit_on_pending_signals() {
    let store = Store::file();
    let holder = Holder::new(&store, "signals");
    let first = wait_for(&store, "signals", "first", 1);
    let limited = Birth { limits: vec![(Resource::RLIMIT_SIGPENDING, 0, 0)], ..Birth::default() };
    let call = Lockrun::new(&store).key("signals").arg("--wait=1h").birth(limited).command(["echo", "ran"]);
    call.run().exited(69).printed("").said("cannot create the timer that ends the wait").said("ulimit -i");
    holder.end();
    first.wait().exited(0).printed("first\n").silent();
}

// A message that no one can read any more ends no wait, wherever in the queue.
#[test]
fn a_closed_standard_error_ends_no_wait() {
    let store = Store::file();
    let holder = Holder::new(&store, "unread");
    // The reader is gone before lockrun begins.
    let script = "exec 3>&1; { (trap '' PIPE; while echo; do :; done) 2>/dev/null; \"$@\" 2>&1 >&3; echo $? >&3; } | :";
    let start = |count: usize| {
        let call = Lockrun::new(&store).key("unread").args(["--wait", "-v"]).command(["echo", "ran"]);
        let waiter = call.in_shell(script).spawn_alone();
        until_waiting(&store, "unread", count);
        waiter
    };
    let (first, second) = (start(1), start(2));
    holder.end();
    for waiter in [first, second] {
        waiter.wait().printed("ran\n0\n");
    }
}

// "Ctrl-Z stops both and returns the prompt": a run that is stopped in this way gives its turn to the next, and joins
// the queue again.
#[test]
fn the_next_waiter_is_stopped() {
    let store = Store::file();
    let holder = Holder::new(&store, "lunch");
    let first = wait_for(&store, "lunch", "first", 1);
    let second = wait_for(&store, "lunch", "second", 2);
    first.signal(Signal::SIGTSTP);
    eventually(LONG, "the first is stopped", || state(first.pid()) == Some('T'));
    holder.end();
    second.wait().exited(0).printed("second\n").silent();
    assert!(!is_held(&store, "lunch"), "the lock is not for who is away");
    let ours = token(&store, "lunch", &["--ttl", "10m"]);
    first.signal(Signal::SIGCONT);
    until_waiting(&store, "lunch", 1);
    release(&store, "lunch", &ours).exited(0);
    first.wait().exited(0).printed("first\n").silent();
}

// ... also if nothing has happened meanwhile.
#[test]
fn a_waiter_that_is_continued_stands_in_the_queue() {
    let store = Store::file();
    let holder = Holder::new(&store, "back");
    let first = wait_for(&store, "back", "first", 1);
    let second = wait_for(&store, "back", "second", 2);
    for waiter in [&first, &second] {
        waiter.signal(Signal::SIGTSTP);
        until_waiting(&store, "back", 1);
        waiter.signal(Signal::SIGCONT);
        until_waiting(&store, "back", 2);
    }
    holder.end();
    for (waiter, said) in [(first, "first\n"), (second, "second\n")] {
        waiter.wait().exited(0).printed(said).silent();
    }
}

// The same from a terminal, by its key.
#[test]
fn a_stop_from_the_terminal_leaves_the_turnstile() {
    let store = Store::file();
    let holder = Holder::new(&store, "keys");
    let mut shell = Command::new("bash");
    shell.args(["--norc", "--noprofile", "-i"]);
    let mut terminal = Terminal::start(shell, &[("PS1", "prompt> ")]);
    terminal.wait_for("prompt> ");
    let words = Lockrun::new(&store).key("keys").args(["--wait", "echo", "my turn"]).words();
    let words: Vec<String> = words.iter().map(|word| format!("'{}'", word.to_str().expect("plain"))).collect();
    terminal.type_keys(&format!("{}\n", words.join(" ")));
    until_waiting(&store, "keys", 1);
    terminal.wait_for("waiting");
    terminal.type_keys("\x1a");
    terminal.wait_for("Stopped");
    let second = Lockrun::new(&store).key("keys").arg("--wait").command(["echo", "second"]).spawn();
    holder.end();
    second.wait().exited(0).printed("second\n");
    terminal.type_keys("fg\n");
    terminal.wait_for("my turn\r\n");
}

// "`--fail`: when held": never for a free lock, however many others look at it or try.
#[test]
fn a_free_lock_is_never_called_held() {
    let store = Store::file();
    let directory = TempDir::new().expect("a temporary directory");
    token(&store, "other", &[]);
    // The storm: commands that look at the lock, or try to change it under a wrong token or fence.
    let busy: Vec<Running> = [
        Lockrun::other("status", &store).key("calm"),
        Lockrun::other("prune", &store).args(["--older-than", "1h"]),
        Lockrun::other("renew", &store).key("calm").args(["--token", "strange"]),
        Lockrun::other("break", &store).key("calm").args(["--fence", "1"]),
    ]
    .into_iter()
    .map(|call| call.in_shell("while :; do \"$@\" >/dev/null 2>&1; done").spawn_alone())
    .collect();
    let log = directory.path().join("log");
    // No other run uses the lock, so none of these may fail.
    for _ in 0..100 {
        let output = Lockrun::new(&store).key("calm").arg("--fail").command(["true"]).run();
        output.exited(0).silent();
        fs::write(&log, "ran").expect("a file");
    }
    for mut run in busy {
        assert!(!run.has_ended(), "{}", run.stderr());
    }
}

// "Exclusion" and "`--fail`": of many that try at once, at least one gets the lock, and several only one after the
// other.
#[test]
fn a_storm_of_tries() {
    let store = Store::file();
    let directory = TempDir::new().expect("a temporary directory");
    let log = directory.path().join("log");
    let script = format!("echo in >>{0}; echo out >>{0}", log.display());
    let once = "got=0; for i in $(seq 25); do \"$@\" 2>/dev/null && got=$((got + 1)); done; echo $got";
    let runs: Vec<_> = (0..6)
        .map(|_| Lockrun::new(&store).key("storm").arg("--fail").sh(&script).in_shell(once).spawn_alone())
        .collect();
    let got: usize =
        runs.into_iter().map(|run| run.wait().exited(0).stdout().trim().parse::<usize>().expect("a count")).sum();
    assert!(got > 0);
    assert_eq!(fs::read_to_string(&log).expect("somebody has run"), "in\nout\n".repeat(got));
}

// "A run that comes later, also with `--fail` or `--skip`, does not get the lock before them": while the lock is held,
// runs that only try do not overtake the waiters.
#[test]
fn tries_do_not_overtake() {
    const WAITERS: usize = 10;
    let store = Store::file();
    let holder = Holder::new(&store, "overtake");
    let mut queue = Queue::new(&store, "overtake");
    for number in 1..=WAITERS {
        // Long enough for runs that only try to come while it runs.
        queue.join_to("sleep 0.05");
        until_waiting(&store, "overtake", number);
    }
    let tries = queue.newcomer("newcomer", &["--fail"]).in_shell("while :; do \"$@\" 2>/dev/null; done");
    let tries: Vec<_> = (0..2).map(|_| tries.spawn_alone()).collect();
    holder.end();
    eventually(LONG, "a newcomer has run", || queue.begun().iter().any(|tag| tag == "newcomer"));
    drop(tries);
    let begun = queue.begun();
    let first = begun.iter().position(|tag| tag == "newcomer").expect("just seen");
    // A waiter that wakes while a try passes the turnstile goes to the end of the kernel's queue.
    let mut before = begun[..first].to_vec();
    before.sort();
    assert_eq!(before, (0..WAITERS).map(|number| number.to_string()).collect::<Vec<_>>());
}

// "The lock file ... is never unlinked" by lockrun; if someone else unlinks it, the waiters find the file that others
// lock.
#[test]
fn the_file_is_removed_under_its_waiters() {
    let store = Store::file();
    let holder = Holder::new(&store, "removed");
    let first = wait_for(&store, "removed", "first", 1);
    let second = wait_for(&store, "removed", "second", 2);
    fs::remove_file(store.locks().join("removed")).expect("the lock has a file");
    let new = Holder::new(&store, "removed");
    holder.end();
    until_waiting(&store, "removed", 2);
    assert_eq!(status(&store, "removed")["holders"][0]["pid"], new.pid());
    new.end();
    first.wait().exited(0).printed("first\n").silent();
    second.wait().exited(0).printed("second\n").silent();
}

// "`--wait`" if the kernel reports no changes, because this user has too many watches, lockrun polls.
#[test]
fn without_news_of_changes_it_is_looked_for_them() {
    // A limit of a namespace of our own, not of the machine.
    let none = with_limits("echo 0 >/proc/sys/user/max_inotify_instances");
    let store = Store::file();
    let holder = Holder::new(&store, "blind");
    let call = Lockrun::new(&store).key("blind").args(["--wait", "-v"]).command(["echo", "ran"]);
    let mut waiter = call.in_shell(&none).spawn_alone();
    waiter.wait_for_stderr("waiting");
    until_waiting(&store, "blind", 1);
    holder.end();
    waiter.wait().exited(0).printed("ran\n");
}

// "The kernel's lock passes to the command, so it stays held for as long as the command lives": and then goes to the
// waiter.
#[test]
fn the_lock_of_a_killed_lockrun_goes_to_the_next_waiter() {
    let store = Store::file();
    // Repeated: the kernel reports that a file is closed before it releases its locks.
    for _ in 0..20 {
        let mut holder = Holder::new(&store, "orphan");
        let waiter = wait_for(&store, "orphan", "next", 1);
        let run = holder.run();
        let command = run.command();
        run.signal(Signal::SIGKILL);
        eventually(LONG, "lockrun is dead", || !is_alive(run.pid()));
        assert!(is_held(&store, "orphan") && is_alive(command));
        until_waiting(&store, "orphan", 1);
        assert_eq!(waiter.stdout(), "");
        send(command, Signal::SIGKILL);
        waiter.wait().exited(0).printed("next\n").silent();
    }
}

// "One that is stopped in the middle must not hold up the others without a word": status 69 with the reason, and no
// lock; all other locks are still listed.
#[test]
fn a_record_that_is_in_use_for_ever() {
    let store = Store::file();
    token(&store, "used", &["--ttl", "10m"]);
    token(&store, "other", &["--ttl", "10m"]);
    // A process that holds the record's own lock, and sleeps.
    let script = "import fcntl, struct, sys, time
file = open(sys.argv[1], 'r+')
fcntl.fcntl(file, 37, struct.pack('hhqqi4x', fcntl.F_WRLCK, 0, 1 << 40, 1, 0))
print('ready', flush=True)
time.sleep(600)";
    let path = store.locks().join("used");
    let mut sleeper = Lockrun::bare().command(["python3", "-c", script, path.to_str().expect("plain")]).spawn_alone();
    sleeper.wait_for_line("ready");
    let calls = [
        Lockrun::new(&store).key("used").command(["echo", "ran"]),
        Lockrun::other("status", &store).key("used"),
        Lockrun::other("release", &store).key("used").args(["--token", "strange"]),
    ];
    let all = Lockrun::other("status", &store).spawn();
    for run in calls.map(|call| call.spawn()) {
        run.wait().exited(69).printed("").said("has been in use for 5s");
    }
    let all = all.wait().exited(69).said("has been in use for 5s");
    assert!(all.stdout().contains("\nother ") && !all.stdout().contains("\nused "), "{all}");
    drop(sleeper);
    assert!(is_held(&store, "used"));
}
