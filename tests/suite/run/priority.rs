//! Scheduling: lockrun and its guardian run ahead of all others, if they may. The command does not.

use std::process::Command;

use nix::libc;

use crate::support::processes::children;
use crate::support::store::on_every_lease_store;
use crate::support::{LONG, Lockrun, Store, eventually, memory};

/// Fields of /proc/PID/stat, by their numbers in proc(5).
const NICE: usize = 19;
const PRIORITY: usize = 40;
const POLICY: usize = 41;

/// Returns such fields of a process.
fn scheduling(pid: i32, fields: [usize; 2]) -> [i32; 2] {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("its state");
    let behind_its_name: Vec<&str> = stat.rsplit(')').next().expect("its fields").split_whitespace().collect();
    fields.map(|field| behind_its_name[field - 3].parse().expect("a number"))
}

/// Returns whether this machine lets the tests have real-time priority.
fn may_have_priority() -> bool {
    Command::new("chrt").args(["--rr", "1", "true"]).status().expect("chrt(1) is there").success()
}

// "COMMAND's processes are dead before the lease can pass on", also where processors are scarce: lockrun and its
// guardian run with real-time priority, if they may. COMMAND has the priority that lockrun was started with.
on_every_lease_store!(only_lockrun_runs_with_priority, |store| {
    let may = may_have_priority();
    let call = Lockrun::new(store).key("priority").sh("echo ready; exec sleep 600");
    let mut run = call.in_shell("exec nice -n 5 \"$@\"").spawn_alone();
    run.wait_for_line("ready");
    let guardian = children(run.pid())[0];
    let policy = if may { libc::SCHED_RR } else { libc::SCHED_OTHER };
    for pid in [run.pid(), guardian] {
        eventually(LONG, "it has its priority", || scheduling(pid, [NICE, POLICY]) == [5, policy]);
    }
    let command = children(guardian)[0];
    assert_eq!(scheduling(command, [NICE, POLICY]), [5, libc::SCHED_OTHER]);
    run.kill_everything();
});

// A real-time process that reaps another one may keep a processor from the reader of the reaped one's files in /proc,
// for which the kernel waits: lockrun gives its priority up when nothing is left to be killed.
on_every_lease_store!(lockrun_reaps_its_guardian_without_priority, |store| {
    let traces = memory::directory();
    for (option, policy) in [("--other", "SCHED_OTHER"), ("--batch", "SCHED_BATCH")] {
        let trace = traces.path().join(option);
        let strace = format!(
            "exec chrt {option} 0 strace -f -qqq -o \"$TRACE\" -e signal=none -e trace=sched_setscheduler,wait4 \"$@\""
        );
        let call = Lockrun::new(store).key("reaped").sh("exit 3").env("TRACE", &trace);
        call.in_shell(&strace).alone().exited(3);
        let trace = std::fs::read_to_string(trace).expect("strace(1) has written");
        // lockrun ends last.
        let last = trace.lines().last().expect("it has made calls");
        assert!(last.contains("wait4"), "it reaps its guardian:\n{trace}");
        let who = |line: &str| line.split_whitespace().next().map(str::to_owned);
        let set: Vec<&str> =
            trace.lines().filter(|line| who(line) == who(last) && line.contains("sched_setscheduler(")).collect();
        let [raised, restored] = set[..] else { panic!("it sets its priority twice:\n{trace}") };
        assert!(raised.contains("SCHED_RR, [1]"), "{raised}");
        assert!(restored.contains(&format!("{policy}, [0]")), "{restored}");
    }
});

// A filter of system calls may hide the priority from lockrun, which must not replace a higher one by the lowest.
#[test]
fn a_priority_that_cannot_be_learned_is_kept() {
    let store = Store::redis();
    let traces = memory::directory();
    let trace = traces.path().join("trace");
    let strace = "strace -f -qqq -o \"$TRACE\" -e signal=none -e trace=sched_getparam,sched_setscheduler,wait4 \
                  -e inject=sched_getparam:error=EPERM";
    let policies: &[_] = if may_have_priority() { &["--rr 50", "--other 0"] } else { &["--other 0"] };
    for policy in policies {
        let call = Lockrun::new(&store).key("hidden").sh("exit 3").env("TRACE", &trace);
        call.in_shell(&format!("exec chrt {policy} {strace} \"$@\"")).alone().exited(3);
        let trace = std::fs::read_to_string(&trace).expect("strace(1) has written");
        assert!(trace.contains("(INJECTED)"), "it asks:\n{trace}");
        // Without a real-time policy there is no priority to learn.
        assert_eq!(trace.contains("SCHED_RR, [1]"), *policy == "--other 0", "{trace}");
    }
}

// The same under chrt(1), or `CPUSchedulingPolicy=` of systemd: lockrun and its guardian are not behind their command.
on_every_lease_store!(lockrun_runs_ahead_of_a_command_with_priority, |store| {
    if !may_have_priority() {
        // Then no command has priority, either.
        return;
    }
    for (option, policy) in [("--rr", libc::SCHED_RR), ("--fifo", libc::SCHED_FIFO)] {
        let call = Lockrun::new(store).key(option).sh("echo ready; exec sleep 600");
        let mut run = call.in_shell(&format!("exec chrt {option} 10 \"$@\"")).spawn_alone();
        run.wait_for_line("ready");
        let guardian = children(run.pid())[0];
        for pid in [run.pid(), guardian] {
            eventually(LONG, "it has its priority", || scheduling(pid, [PRIORITY, POLICY]) == [11, policy]);
        }
        let command = children(guardian)[0];
        assert_eq!(scheduling(command, [PRIORITY, POLICY]), [10, policy]);
        run.kill_everything();
    }
});
