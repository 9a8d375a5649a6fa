//! A run on a terminal: control keys, job control, the foreground.

use std::process::Command;
use std::time::Duration;

use nix::sys::signal::Signal;
use tempfile::TempDir;

use crate::support::catcher::Catcher;
use crate::support::holder::is_free;
use crate::support::lockrun::PROGRAM;
use crate::support::namespace::with_mounts;
use crate::support::processes::{find_program, is_alive, send, state};
use crate::support::proxy::Mode;
use crate::support::pty::Terminal;
use crate::support::shell::{OldAndNext, PROMPT, enter, shell, written};
use crate::support::store::{on_every_lease_store, on_every_store, on_files_and_redis};
use crate::support::{LONG, eventually};

/// Waits until this program leads the foreground process group, and is not stopped.
#[track_caller]
fn runs_in_the_foreground(terminal: &Terminal, program: &str) {
    eventually(LONG, &format!("{program} runs in the foreground"), || {
        let leader = terminal.foreground().as_raw();
        let name = std::fs::read_to_string(format!("/proc/{leader}/comm")).unwrap_or_default();
        name.trim_end() == program && state(leader) != Some('T')
    });
}

// "What the terminal sends to the group is then not sent again": Ctrl-C arrives once.
on_files_and_redis!(an_interrupt_arrives_once, |store| {
    let mut terminal = shell(store);
    let catcher = Catcher::new();
    enter(&mut terminal, &format!("lockrun -k tty {}; echo status $?", catcher.of(&["SIGINT", "SIGUSR1"])));
    terminal.wait_for("ready");
    // A duplicate that came before the first was caught would merge with it, but not each time.
    for _ in 0..10 {
        terminal.type_keys("\x03");
        terminal.wait_for("caught SIGINT");
        // lockrun, which leads the group, forwards one signal after the other: a duplicate would come before this one.
        send(terminal.foreground().as_raw(), Signal::SIGUSR1);
        let more = terminal.wait_for("caught SIGUSR1");
        assert!(!more.contains("SIGINT"), "it came again: {more:?}");
    }
    enter(&mut terminal, "last");
    terminal.wait_for("got last");
    terminal.wait_for("status 3");
    terminal.wait_for(PROMPT);
    assert!(is_free(store, "tty"));
});

// The same where no /dev is mounted, as in a chroot: the terminal is there nevertheless, and COMMAND reads it in the
// foreground.
#[test]
fn a_terminal_without_its_file() {
    let directory = TempDir::new().expect("a temporary directory");
    let url = format!("file:{}", directory.path().display());
    let mut command = Command::new(find_program("sh"));
    command.args(["-c", &with_mounts("mount -t tmpfs none /dev"), "sh", PROGRAM, "--store", &url, "-k", "tty"]);
    command.args(["sh", "-c", "echo ready; read word; echo got $word"]);
    let mut terminal = Terminal::start(command, &[]);
    terminal.wait_for("ready");
    terminal.type_keys("enough\r");
    terminal.wait_for("got enough");
    assert!(terminal.wait().success());
}

// The same as the first process of a PID namespace, where lockrun's process group is led by a process outside: COMMAND
// reads the terminal in the foreground, and Ctrl-C reaches it.
on_files_and_redis!(a_terminal_in_a_pid_namespace, |store| {
    let catcher = Catcher::new();
    let script = format!("exec {PROGRAM} -k tty {}", catcher.of(&["SIGINT"]));
    let mut terminal = shell(store);
    enter(
        &mut terminal,
        &format!("(unshare -p -f --mount-proc sh -c '{}'; echo status $?)", script.replace('\'', "'\\''")),
    );
    terminal.wait_for("ready");
    terminal.type_keys("\x03");
    terminal.wait_for("caught SIGINT");
    enter(&mut terminal, "last");
    terminal.wait_for("got last");
    terminal.wait_for("status 3");
    terminal.wait_for(PROMPT);
    assert!(is_free(store, "tty"));
});

// "Where a signal ended it, lockrun dies of the same signal": Ctrl-C ends a script that runs lockrun, too.
on_files_and_redis!(an_interrupt_ends_what_started_it, |store| {
    let mut terminal = shell(store);
    enter(&mut terminal, "for n in 1 2 3; do lockrun -k tty sh -c 'echo round; exec sleep 600'; done");
    terminal.wait_for("round");
    terminal.type_keys("\x03");
    let seen = terminal.wait_for(PROMPT);
    assert!(!seen.contains("round"), "the loop went on: {seen:?}");
    assert!(is_free(store, "tty"));
});

// "The terminal and job control reach COMMAND as they were": an interactive shell under lockrun reads the terminal and
// has job control.
on_files_and_redis!(an_interactive_shell_has_job_control, |store| {
    let mut terminal = shell(store);
    let inner = "PS1='inner> ' lockrun -k tty bash --norc --noprofile --noediting -i";
    enter(&mut terminal, inner);
    let greeting = terminal.wait_for("inner> ");
    assert!(!greeting.contains("no job control"), "{greeting:?}");
    assert!(!greeting.contains("cannot set terminal"), "{greeting:?}");
    enter(&mut terminal, "sleep 600");
    runs_in_the_foreground(&terminal, "sleep");
    terminal.type_keys("\x1a");
    terminal.wait_for("Stopped");
    terminal.wait_for("inner> ");
    enter(&mut terminal, "fg");
    runs_in_the_foreground(&terminal, "sleep");
    terminal.type_keys("\x03");
    terminal.wait_for("inner> ");
    enter(&mut terminal, "read line; echo \"<$line>\"");
    enter(&mut terminal, "typed");
    terminal.wait_for("<typed>");
    enter(&mut terminal, "exit 5");
    terminal.wait_for(PROMPT);
    enter(&mut terminal, "echo status $?");
    terminal.wait_for("status 5");
    assert!(is_free(store, "tty"));
});

// "Ctrl-Z stops both and returns the prompt; `fg` within the lease resumes both."
on_files_and_redis!(a_run_can_be_suspended_and_resumed, |store| {
    let mut terminal = shell(store);
    let script = "echo ready; while read word; do echo got $word; done; exit 3";
    enter(&mut terminal, &format!("lockrun -k tty --ttl 60s bash -c '{script}'"));
    terminal.wait_for("ready");
    for word in ["first", "second"] {
        terminal.type_keys("\x1a");
        terminal.wait_for("Stopped");
        terminal.wait_for(PROMPT);
        assert!(!is_free(store, "tty"), "suspended, but within the lease");
        enter(&mut terminal, "fg");
        terminal.wait_for("lockrun");
        enter(&mut terminal, word);
        terminal.wait_for(&format!("got {word}"));
    }
    terminal.type_keys("\x04");
    terminal.wait_for(PROMPT);
    enter(&mut terminal, "echo status $?");
    terminal.wait_for("status 3");
    assert!(is_free(store, "tty"));
});

// "A run that is suspended past its lease is ended", before the lock passes on.
on_every_lease_store!(a_run_suspended_past_its_lease_is_dead, |store| {
    let mut scene = OldAndNext::new(store, &[]);
    scene.terminal.type_keys("\x1a");
    scene.terminal.wait_for("Stopped");
    scene.next.wait_for_line("ready");
    // A CONT now finds nothing that could stamp on.
    enter(&mut scene.terminal, "fg");
    scene.terminal.wait_for(PROMPT);
    scene.the_old_one_was_dead(1);
});

// "It shares lockrun's group like any job of a shell, so that pipelines keep working and nobody steals the foreground."
on_files_and_redis!(a_pager_reads_the_keyboard, |store| {
    let mut terminal = shell(store);
    enter(&mut terminal, "stty rows 10 cols 80");
    terminal.wait_for(PROMPT);
    enter(&mut terminal, "lockrun -k tty seq 1 1000 | LESS= less; echo status ${PIPESTATUS[0]}");
    terminal.wait_for("9\r\n");
    terminal.type_keys(" ");
    terminal.wait_for("17\r\n");
    terminal.type_keys("G");
    terminal.wait_for("1000\r\n");
    terminal.type_keys("q");
    terminal.wait_for("status 0");
    assert!(is_free(store, "tty"));
});

// "While it waits and stderr is a terminal, one line refreshed in place says who holds the lock; it is gone when
// COMMAND starts."
on_every_store!(a_waiter_says_whom_it_waits_for, |store| {
    let holder = crate::support::Holder::new(store, "tty");
    let mut terminal = shell(store);
    enter(&mut terminal, "lockrun -k tty --wait echo it runs");
    terminal.wait_for(&format!("pid {}", holder.pid()));
    // The line may be drawn once more, or not.
    terminal.watch(Duration::from_millis(100));
    holder.end();
    let line = terminal.wait_for("it runs");
    let last = line.rsplit('\n').next().expect("a line");
    assert!(last.contains('\r') || last == "it runs", "the line is gone: {last:?}");
    terminal.wait_for(PROMPT);
});

// "One line refreshed in place", which is gone before anything else is printed: a wait that ends without the lock.
on_every_store!(the_line_of_a_wait_is_erased_before_a_message, |store| {
    let holder = crate::support::Holder::new(store, "tty");
    let mut terminal = shell(store);
    enter(&mut terminal, "lockrun -k tty --wait 200ms true");
    let seen = terminal.wait_for("gave up");
    let (line, _) = seen.rsplit_once("lockrun: lock").expect("a message");
    assert!(line.contains("waiting") && line.ends_with("\r\x1b[K"), "{seen:?}");
    terminal.wait_for(PROMPT);
    holder.end();
});

// "A signal ends a wait": Ctrl-C at a waiter returns the prompt, and the command never runs.
on_every_store!(an_interrupt_ends_a_wait, |store| {
    let holder = crate::support::Holder::new(store, "tty");
    let mut terminal = shell(store);
    enter(&mut terminal, "lockrun -k tty --wait -v echo it runs");
    terminal.wait_for("waiting");
    terminal.wait_for(&format!("pid {}", holder.pid()));
    terminal.type_keys("\x03");
    let seen = terminal.wait_for(PROMPT);
    assert!(!seen.contains("it runs"), "{seen:?}");
    enter(&mut terminal, "echo status $?");
    terminal.wait_for("status 130");
});

// "What the terminal sends to the group is then not sent again": but a Ctrl-C that comes while lockrun starts is not
// lost.
on_every_store!(an_interrupt_that_came_before_everything_counts, |store| {
    let directory = TempDir::new().expect("a temporary directory");
    let trace = directory.path().join("trace");
    let mut terminal = shell(store);
    let script = format!("echo ready; read word; exec {PROGRAM} -k tty touch {}", trace.display());
    enter(&mut terminal, &format!("env --block-signal=INT sh -c '{script}'"));
    terminal.wait_for("ready");
    terminal.type_keys("\x03");
    enter(&mut terminal, "go");
    terminal.wait_for(PROMPT);
    enter(&mut terminal, "echo status $?");
    terminal.wait_for("status 130");
    assert!(!trace.exists(), "the command was started");
    assert!(is_free(store, "tty"));
});

// "A signal ends a wait", and the wait for an answer too: Ctrl-C while the lock is on its way.
on_every_lease_store!(an_interrupt_ends_an_attempt, |store| {
    let proxy = store.proxy();
    // From now on a Redis server has the scripts.
    assert!(is_free(store, "tty"));
    // Long enough to press a key, and within the time that a request may take.
    proxy.set(Mode::DelayAnswers(Duration::from_secs(3)));
    let directory = TempDir::new().expect("a temporary directory");
    let trace = directory.path().join("trace");
    let mut terminal = shell(store);
    enter(&mut terminal, &format!("lockrun --store {} -k tty touch {}", proxy.url(), trace.display()));
    eventually(LONG, "the request is on its way", || proxy.changes() > 0);
    terminal.type_keys("\x03");
    terminal.wait_for(PROMPT);
    enter(&mut terminal, "echo status $?");
    terminal.wait_for("status 130");
    assert!(!trace.exists(), "the command was started");
    assert!(is_free(store, "tty"));
});

// "Ctrl-Z stops both": but a user who stops COMMAND alone will continue COMMAND alone, and lockrun is there when it
// ends.
on_files_and_redis!(a_stop_of_the_command_alone_stops_no_more, |store| {
    let directory = TempDir::new().expect("a temporary directory");
    let (id, go) = (directory.path().join("id"), directory.path().join("go"));
    let mut terminal = shell(store);
    let script = format!("echo $$ >{}; while ! [ -e {} ]; do sleep 0.01; done; exit 3", id.display(), go.display());
    enter(&mut terminal, &format!("lockrun -k tty --ttl 60s sh -c '{script}'; echo status $?"));
    let command = written(&id);
    send(command, Signal::SIGSTOP);
    eventually(LONG, "the command is stopped", || state(command) == Some('T'));
    // A fixed time on purpose: nothing may happen meanwhile.
    let seen = terminal.watch(Duration::from_millis(300));
    assert!(!seen.contains("Stopped"), "{seen:?}");
    send(command, Signal::SIGCONT);
    eventually(LONG, "the command goes on", || state(command) != Some('T'));
    std::fs::write(&go, "").expect("our own directory");
    terminal.wait_for("status 3");
    terminal.wait_for(PROMPT);
    assert!(is_free(store, "tty"));
});

// "TERM is for all of COMMAND's processes": also for those that it left behind and that lockrun waits for.
on_every_store!(what_is_waited_for_can_be_ended, |store| {
    let directory = TempDir::new().expect("a temporary directory");
    let (id, left) = (directory.path().join("id"), directory.path().join("left"));
    let mut terminal = shell(store);
    let script = format!("echo $$ >{}; sleep 600 & echo $! >{}; exit 3", id.display(), left.display());
    enter(&mut terminal, &format!("lockrun -k tty --descendants wait sh -c '{script}'"));
    let (command, left) = (written(&id), written(&left));
    eventually(LONG, "the command has ended", || !is_alive(command));
    assert!(!is_free(store, "tty"));
    send(terminal.foreground().as_raw(), Signal::SIGTERM);
    eventually(LONG, "what it left behind has ended", || !is_alive(left));
    terminal.wait_for(PROMPT);
    assert!(is_free(store, "tty"));
});

// "One line refreshed in place": only in the foreground, and not over the prompt of a shell that has put the waiter
// into the background.
on_every_store!(a_waiter_in_the_background_draws_nothing, |store| {
    let holder = crate::support::Holder::new(store, "tty");
    let mut terminal = shell(store);
    enter(&mut terminal, "lockrun -k tty --wait -v echo it runs &");
    terminal.wait_for("waiting");
    terminal.wait_for("\n");
    // A fixed time on purpose: nothing may happen meanwhile, though in the foreground the line is drawn every second.
    let seen = terminal.watch(Duration::from_millis(1500));
    assert!(!seen.contains(['\x1b']), "{seen:?}");
    assert!(!seen.contains("pid"), "{seen:?}");
    holder.end();
    let seen = terminal.wait_for("it runs");
    assert!(!seen.contains(['\x1b']), "{seen:?}");
});
