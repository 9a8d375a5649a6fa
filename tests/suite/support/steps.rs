//! A run that is stopped at each system call, so that a test can inspect or kill it there.

use std::fs;

use nix::libc;
use nix::sys::ptrace;
use nix::sys::signal::Signal;
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::Pid;

use super::lockrun::{Open, Running};

/// Ends the command of `run`, and stops lockrun before and after each system call that it makes from then on. `kill`
/// gets the number of each stop, from 0, and the number of the system call, and returns whether to kill lockrun there.
/// Returns the run, and whether it was killed.
#[track_caller]
pub(crate) fn end_in_steps(run: Open, mut kill: impl FnMut(usize, libc::c_long) -> bool) -> (Running, bool) {
    let pid = Pid::from_raw(run.run.pid());
    ptrace::seize(pid, ptrace::Options::PTRACE_O_TRACESYSGOOD).expect("our own child can be traced");
    ptrace::interrupt(pid).expect("it is stopped");
    assert!(matches!(waitpid(pid, None), Ok(WaitStatus::PtraceEvent(..))), "it has stopped");
    let run = run.close();
    for stop in 0.. {
        ptrace::syscall(pid, None).expect("it goes on");
        let stopped = waitpid(pid, None).expect("our own child");
        assert!(matches!(stopped, WaitStatus::PtraceSyscall(_)), "{stopped:?}");
        let call = call(pid.as_raw());
        if kill(stop, call) {
            run.signal(Signal::SIGKILL);
            return (run, true);
        }
        if call == libc::SYS_exit_group {
            break;
        }
    }
    ptrace::detach(pid, None).expect("it ends");
    (run, false)
}

/// Returns the number of the system call in which a process sleeps or is stopped; -1 if there is none.
pub(crate) fn call(pid: i32) -> libc::c_long {
    let line = fs::read_to_string(format!("/proc/{pid}/syscall")).expect("our own child");
    line.split(' ').next().and_then(|number| number.parse().ok()).unwrap_or(-1)
}

/// Stops `run`, calls `meanwhile`, and continues `run` until it clones a process that is to share its memory. Removes
/// that flag from the call, so that the process gets a copy, as under some emulators.
#[cfg(target_arch = "x86_64")]
#[track_caller]
pub(crate) fn give_it_a_copy(run: &Running, meanwhile: impl FnOnce()) {
    let pid = Pid::from_raw(run.pid());
    let shares = u64::from(libc::CLONE_VM.cast_unsigned());
    ptrace::seize(pid, ptrace::Options::PTRACE_O_TRACESYSGOOD).expect("our own child can be traced");
    ptrace::interrupt(pid).expect("it is stopped");
    super::deadline::eventually(super::deadline::LONG, "it stands still", || {
        super::processes::state(run.pid()) == Some('t')
    });
    meanwhile();
    loop {
        match waitpid(pid, None).expect("our own child") {
            WaitStatus::PtraceSyscall(_) => {
                let mut registers = ptrace::getregs(pid).expect("it is stopped");
                // At the entry to a call, the result register contains "no such call".
                let begins = registers.rax.cast_signed() == -i64::from(libc::ENOSYS);
                if begins && registers.orig_rax.cast_signed() == libc::SYS_clone && registers.rdi & shares != 0 {
                    registers.rdi &= !shares;
                    ptrace::setregs(pid, registers).expect("it is stopped");
                    return ptrace::detach(pid, None).expect("it goes on");
                }
            }
            WaitStatus::PtraceEvent(..) => {}
            ended => panic!("{ended:?}"),
        }
        ptrace::syscall(pid, None).expect("it goes on");
    }
}
