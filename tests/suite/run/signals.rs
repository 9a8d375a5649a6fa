//! Signals: those sent to lockrun reach its command once, and those ignored or blocked stay so.

use std::process::Command;

use nix::sys::signal::Signal;

use crate::support::birth::Birth;
use crate::support::holder::is_free;
use crate::support::processes::{find_program, send, state};
use crate::support::store::on_files_and_redis;
use crate::support::{LONG, Lockrun, Running, Store, eventually};

/// Blocks all signals and prints the number of each one that arrives, after its own name and its id. A blocked signal
/// stays pending until it is taken, whatever its default action, and cannot be mistaken for another. With two names, a
/// child does the same under the second one. It ends after 60 seconds without a signal.
const LISTENER: &str = "
import os, signal, sys
signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 32))
name = sys.argv[1]
if len(sys.argv) > 2 and os.fork() == 0:
    name = sys.argv[2]
os.write(1, b'%s is %d\\n' % (name.encode(), os.getpid()))
while True:
    info = signal.sigtimedwait(range(1, 32), 60)
    if info is None:
        break
    os.write(1, b'%s got %d\\n' % (name.encode(), info.si_signo))
";

/// Returns all signals that a process can be sent and receive.
fn all() -> Vec<Signal> {
    let deadly = [Signal::SIGKILL, Signal::SIGSTOP];
    Signal::iterator().filter(|signal| (*signal as i32) < 32 && !deadly.contains(signal)).collect()
}

/// Signals that are meant for all of the command's processes.
const FOR_ALL: [Signal; 7] = [
    Signal::SIGINT,
    Signal::SIGTERM,
    Signal::SIGHUP,
    Signal::SIGQUIT,
    Signal::SIGTSTP,
    Signal::SIGCONT,
    Signal::SIGWINCH,
];

fn listen(store: &Store, options: &[&str], names: &[&str]) -> Running {
    let python = find_program("python3");
    let mut words = vec![python.to_str().expect("a plain path"), "-c", LISTENER];
    words.extend(names);
    // Nothing releases the lock of a listener that is killed.
    let key = format!("signals {options:?}");
    let run = Lockrun::new(store).key(key).args(options).command(words).spawn();
    eventually(LONG, "the listeners are ready", || {
        names.iter().all(|name| run.stdout().contains(&format!("{name} is ")))
    });
    run
}

/// Returns how often this listener got the signal.
fn count(run: &Running, name: &str, signal: Signal) -> usize {
    let wanted = format!("{name} got {}", signal as i32);
    run.stdout().lines().filter(|line| **line == wanted).count()
}

/// Sends each signal and waits until all listeners for which it is meant have it: a stop signal discards a pending
/// CONT, and the other way round.
#[track_caller]
fn send_each(run: &Running, listeners: &[&str], signals: &[Signal]) {
    for &signal in signals {
        let meant = if FOR_ALL.contains(&signal) { listeners } else { &listeners[..1] };
        let counts = || meant.iter().map(|name| count(run, name, signal)).collect::<Vec<_>>();
        let before = counts();
        run.signal(signal);
        let have_it = || counts().iter().zip(&before).all(|(now, before)| now > before);
        eventually(LONG, &format!("{signal} arrives"), have_it);
    }
}

// "Every signal from 1 to 31 that can be sent arrives exactly once."
on_files_and_redis!(every_signal_arrives_once, |store| {
    for options in [&[][..], &["--ttl", "none"]] {
        let run = listen(store, options, &["command"]);
        send_each(&run, &["command"], &all());
        // The listener takes pending signals lowest first: any duplicate is taken before this signal, which is the
        // second of its kind.
        send_each(&run, &["command"], &[Signal::SIGSYS]);
        for signal in all() {
            let times = count(&run, "command", signal);
            match signal {
                Signal::SIGSYS => assert_eq!(times, 2, "{signal} with {options:?}"),
                // "After TERM comes CONT, or a stopped command never sees it."
                Signal::SIGCONT => assert!((1..=2).contains(&times), "{signal} with {options:?}: {times}"),
                _ => assert_eq!(times, 1, "{signal} with {options:?}"),
            }
        }
    }
});

// "INT, TERM, HUP, QUIT, TSTP, CONT and WINCH are for all of COMMAND's processes, every other signal for COMMAND
// alone."
on_files_and_redis!(some_signals_are_for_all_processes, |store| {
    let run = listen(store, &[], &["command", "child"]);
    let listeners = ["command", "child"];
    send_each(&run, &listeners, &all());
    // Whatever else the child got is taken before this one.
    send_each(&run, &listeners, &[Signal::SIGWINCH]);
    for signal in all() {
        let times = count(&run, "child", signal);
        match signal {
            Signal::SIGWINCH => assert_eq!(times, 2, "{signal}"),
            Signal::SIGCONT => assert!((1..=2).contains(&times), "{signal}: {times}"),
            _ => assert_eq!(times, usize::from(FOR_ALL.contains(&signal)), "{signal}"),
        }
    }
});

// "A signal that was ignored when lockrun started stays ignored", by COMMAND and by lockrun itself.
on_files_and_redis!(ignored_signals_stay_ignored, |store| {
    let ignored = [Signal::SIGHUP, Signal::SIGUSR1, Signal::SIGPIPE];
    let mut run = Lockrun::new(store)
        .key("ignored")
        .sh("trap 'exit 3' WINCH; echo ready; while :; do sleep 0.01; done")
        .birth(Birth { ignored: ignored.map(libc).to_vec(), ..Birth::default() })
        .spawn();
    run.wait_for_line("ready");
    for signal in ignored {
        run.signal(signal);
    }
    // Signals are forwarded lowest first: each of those would have had its effect before this one.
    run.signal(Signal::SIGWINCH);
    run.wait().exited(3).silent();
});

fn libc(signal: Signal) -> i32 {
    signal as i32
}

// "Signal masks and ignored signals of the command equal those of the same command run alone."
on_files_and_redis!(masks_and_dispositions_are_untouched, |store| {
    use Signal::{SIGALRM, SIGCHLD, SIGCONT, SIGHUP, SIGINT, SIGPIPE, SIGQUIT, SIGTERM, SIGTSTP, SIGUSR1, SIGUSR2};
    let plain: Vec<i32> = Vec::new();
    let (first_real_time, last_real_time) = (34, 64);
    for (ignored, blocked) in [
        (plain.clone(), plain.clone()),
        ([SIGHUP, SIGUSR1, SIGPIPE].map(libc).to_vec(), plain.clone()),
        ([SIGINT, SIGQUIT, SIGTSTP].map(libc).to_vec(), [SIGPIPE].map(libc).to_vec()),
        (plain.clone(), [SIGTERM, SIGUSR2, SIGALRM].map(libc).to_vec()),
        ([SIGCHLD].map(libc).to_vec(), plain.clone()),
        (plain, [SIGCHLD, SIGCONT, SIGHUP].map(libc).to_vec()),
        (vec![first_real_time], vec![first_real_time + 1, last_real_time]),
    ] {
        let call = Lockrun::new(store).key("masks").command(["grep", "^Sig[BIC]", "/proc/self/status"]).birth(Birth {
            ignored: ignored.clone(),
            blocked: blocked.clone(),
            exact_signals: true,
            ..Birth::default()
        });
        let (alone, under) = (call.alone().exited(0), call.run().exited(0).silent());
        assert_eq!(under.stdout(), alone.stdout(), "ignored {ignored:?}, blocked {blocked:?}");
    }
});

// "COMMAND's own status", also if lockrun was started with SIGCHLD ignored.
on_files_and_redis!(ignored_child_signal_loses_no_status, |store| {
    let call =
        Lockrun::new(store).key("child").birth(Birth { ignored: vec![libc(Signal::SIGCHLD)], ..Birth::default() });
    call.clone().sh("exit 7").run().exited(7).silent();
    call.sh("kill -TERM $$").run().died_of(Signal::SIGTERM).silent();
    assert!(is_free(store, "child"));
});

// "Signal mask": a TERM that was blocked when lockrun started can still end a command that unblocks it, and a wait.
on_files_and_redis!(a_blocked_term_is_the_commands_affair, |store| {
    let mut run = Lockrun::new(store)
        .key("blocked")
        .sh("echo ready; exec sleep 600")
        .birth(Birth { blocked: vec![libc(Signal::SIGUSR2)], ..Birth::default() })
        .spawn();
    run.wait_for_line("ready");
    run.signal(Signal::SIGUSR2);
    run.signal(Signal::SIGTERM);
    run.wait().died_of(Signal::SIGTERM).silent();
});

// "Without a controlling terminal COMMAND leads a process group of its own."
on_files_and_redis!(the_command_leads_a_group, |store| {
    let script = "import os; print(os.getpid() == os.getpgrp(), os.getpgrp() == os.getpgid(os.getppid()))";
    let python = find_program("python3");
    let words = [python.to_str().expect("a plain path"), "-c", script];
    let call = Lockrun::new(store).key("group").command(words);
    call.run().exited(0).printed("True False\n").silent();
});

// "After TERM comes CONT, or a stopped command never sees it."
on_files_and_redis!(a_stopped_command_can_be_ended, |store| {
    let mut run = Lockrun::new(store).key("asleep").sh("echo $$; echo ready; exec sleep 600").spawn();
    run.wait_for_line("ready");
    let command: i32 = run.stdout().lines().next().expect("its id").parse().expect("a number");
    send(command, Signal::SIGSTOP);
    eventually(LONG, "the command is stopped", || state(command) == Some('T'));
    run.signal(Signal::SIGTERM);
    run.wait().died_of(Signal::SIGTERM).silent();
    assert!(is_free(store, "asleep"));
});

// "INT, TERM, HUP, QUIT, TSTP, CONT and WINCH are for all of COMMAND's processes": without a terminal, too, TSTP
// suspends a run and CONT resumes it.
on_files_and_redis!(a_job_of_cron_can_be_suspended, |store| {
    let call = Lockrun::new(store).key("asleep").args(["--ttl", "60s"]).sh("echo $$; echo ready; exec sleep 600");
    let mut run = call.birth(Birth { session: true, ..Birth::default() }).spawn();
    run.wait_for_line("ready");
    let command: i32 = run.stdout().lines().next().expect("its id").parse().expect("a number");
    let are_stopped = || [command, run.pid()].map(|pid| state(pid) == Some('T'));
    run.signal(Signal::SIGTSTP);
    eventually(LONG, "both are stopped", || are_stopped() == [true; 2]);
    run.signal(Signal::SIGCONT);
    eventually(LONG, "both go on", || are_stopped() == [false; 2]);
    run.signal(Signal::SIGTERM);
    run.wait().died_of(Signal::SIGTERM).silent();
    assert!(is_free(store, "asleep"));
});

// "Forwards signals": SIGPIPE reaches the command, and its death is passed on.
on_files_and_redis!(a_closed_pipe_ends_the_command, |store| {
    let words = Lockrun::new(store).key("pipe").command(["yes"]).words();
    let mut script = String::from("\"$@\" 2>&1 | head -n 1; echo ${PIPESTATUS[0]}");
    script.insert_str(0, "set -o pipefail; ");
    let mut command = Command::new(find_program("bash"));
    command.arg("-c").arg(script).arg("bash").args(words);
    Birth::default().prepare(&mut command);
    let output = command.output().expect("bash starts");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "y\n141\n");
});

// "Forwards signals": an alarm that was set before lockrun was executed is the command's, as it would be after any
// exec.
on_files_and_redis!(an_alarm_from_before_reaches_the_command, |store| {
    let script =
        "trap 'echo alarm; exit 5' ALRM; echo ready; n=0; while [ $n -lt 600 ]; do sleep 0.1; n=$((n + 1)); done";
    let set = "import os, signal, sys; signal.alarm(2); os.execv(sys.argv[1], sys.argv[1:])";
    let call = Lockrun::new(store).key("alarm").sh(script);
    let call = call.in_shell(&format!("exec {} -c '{set}' \"$@\"", find_program("python3").display()));
    let mut run = call.spawn_alone();
    eventually(LONG, "the alarm has ended the run", || run.has_ended());
    let output = run.wait();
    // On a machine so busy that the command has no handler yet, the signal ends it all the same.
    if output.status.is_some() {
        output.exited(5).printed("ready\nalarm\n").silent();
    } else {
        output.died_of(Signal::SIGALRM).silent();
    }
    assert!(is_free(store, "alarm"));
});

// "Forwards signals": TERM to the process that the command takes for its parent ends the command.
on_files_and_redis!(the_commands_parent_forwards_too, |store| {
    let call = Lockrun::new(store).key("parent");
    let mut run = call.sh("kill -TERM $PPID; exec sleep 600").spawn();
    eventually(LONG, "the run has ended", || run.has_ended());
    run.wait().died_of(Signal::SIGTERM).silent();
    assert!(is_free(store, "parent"));
});
