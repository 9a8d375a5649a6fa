//! Starting COMMAND: everything between lockrun's process and COMMAND's first instruction.
//!
//! The child shares lockrun's memory until it executes (`CLONE_VM | CLONE_VFORK`, as posix_spawn(3) works): nothing is
//! copied, and a failure is told through memory. It is a system call away from `execve` all the time, allocates nothing
//! and touches nothing of its parent's but the failure.

#![allow(unsafe_code)]

use std::ffi::{CStr, CString, OsString};
use std::os::fd::{AsFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::ptr;

use libc::{c_char, c_int, c_void, pid_t};
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, fcntl};

use super::Launch;
use super::signals::Signals;
use crate::clock::Moment;

/// Why COMMAND was not started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// There is no such program.
    NotFound,
    /// It is there, but the system does not execute it.
    CannotExecute(Errno),
    /// The lease would have been over too soon.
    TooLate,
    /// lockrun could not come so far as to try.
    Preparing(Errno),
}

/// How the child differs from its parent.
#[derive(Clone, Copy, Debug)]
pub(super) struct Setup {
    /// It leads a process group of its own.
    pub(super) own_group: bool,
    /// The kernel kills it when its parent dies.
    pub(super) dies_with_parent: bool,
    /// It must not begin to run at or after this moment.
    pub(super) not_after: Option<Moment>,
    /// It enters a cgroup by writing here.
    pub(super) cgroup: Option<RawFd>,
}

/// The lowest descriptor that is passed on to COMMAND: a script's own `exec 3>file` must not close it.
const LOWEST_PASSED_ON: RawFd = 50;

/// A second descriptor of the same open file, out of the way, that COMMAND will inherit. Fails if none is left.
pub fn pass_on(fd: &impl AsFd) -> nix::Result<OwnedFd> {
    let duplicate = |lowest| fcntl(fd, FcntlArg::F_DUPFD(lowest));
    let high = duplicate(LOWEST_PASSED_ON).or_else(|_| duplicate(libc::STDERR_FILENO + 1))?;
    // SAFETY: the descriptor is new and nobody else's.
    Ok(unsafe { OwnedFd::from_raw_fd(high) })
}

/// All that the child needs, in the form that the system calls take.
struct Child<'a> {
    file: *const c_char,
    argv: *const *const c_char,
    envp: *const *const c_char,
    mask: &'a libc::sigset_t,
    ignore_child_signal: bool,
    setup: Setup,
    parent: pid_t,
    failure: c_int,
}

/// Starts COMMAND, and gives its process id. On return it is executing.
pub(super) fn spawn(launch: &Launch, setup: Setup, signals: &Signals) -> Result<pid_t, Failure> {
    let argv: Vec<CString> = launch.argv.iter().map(c_string).collect();
    let changes: Vec<CString> =
        launch.env.iter().map(|(name, value)| c_string(&OsString::from(format!("{name}={value}")))).collect();
    let argv_pointers: Vec<_> = argv.iter().map(|word| word.as_ptr()).chain([ptr::null()]).collect();
    let envp_pointers = environment(&changes);
    let mask = signals.inherited_mask();
    let mut child = Child {
        file: argv_pointers[0],
        argv: argv_pointers.as_ptr(),
        envp: envp_pointers.as_ptr(),
        mask: &mask,
        ignore_child_signal: signals.child_was_ignored(),
        setup,
        // SAFETY: cannot fail.
        parent: unsafe { libc::getpid() },
        failure: 0,
    };
    // For a script without an interpreter line the C library builds a second argument vector on this stack.
    let mut stack = Vec::<u128>::with_capacity(4096 + argv.len());
    // SAFETY: one past the end of the allocation, which is aligned to 16 bytes: the top of the child's stack. The parent
    // sleeps until the child has executed or ended, so `child` and `stack` outlive its use of them, and nobody else
    // looks at them meanwhile. No handlers are installed that the child could run in our memory.
    let pid = unsafe {
        let top = stack.as_mut_ptr().add(stack.capacity());
        libc::clone(
            run,
            top.cast(),
            libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD,
            (&raw mut child).cast::<c_void>(),
        )
    };
    let pid = Errno::result(pid).map_err(Failure::Preparing)?;
    // SAFETY: the child may have written here while we slept, behind the compiler's back.
    let failure = unsafe { ptr::read_volatile(&raw const child.failure) };
    if failure == 0 {
        return Ok(pid);
    }
    // SAFETY: reaps the child that has just ended.
    unsafe { libc::waitpid(pid, ptr::null_mut(), 0) };
    Err(match Errno::from_raw(failure) {
        Errno::ENOENT => Failure::NotFound,
        Errno::ETIME => Failure::TooLate,
        errno => Failure::CannotExecute(errno),
    })
}

/// The child, up to its end or to COMMAND's beginning.
extern "C" fn run(child: *mut c_void) -> c_int {
    // SAFETY: the pointer is to the parent's `Child`, which nobody else uses meanwhile. Only async-signal-safe functions
    // are called. Signals are blocked until the inherited mask is set, and then do what they would do to COMMAND.
    unsafe {
        let child = &mut *child.cast::<Child<'_>>();
        if child.setup.own_group {
            libc::setpgid(0, 0);
        }
        if child.setup.dies_with_parent {
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
            if libc::getppid() != child.parent {
                libc::_exit(127);
            }
        }
        if let Some(entrance) = child.setup.cgroup {
            // If it cannot enter, it is killed one by one.
            libc::write(entrance, c"0".as_ptr().cast(), 1);
        }
        if child.ignore_child_signal {
            libc::signal(libc::SIGCHLD, libc::SIG_IGN);
        }
        libc::sigprocmask(libc::SIG_SETMASK, child.mask, ptr::null_mut());
        // The last look at the clock: lockrun may have stood still since the lock was granted.
        if child.setup.not_after.is_some_and(|limit| Moment::now() >= limit) {
            ptr::write_volatile(&raw mut child.failure, libc::ETIME);
            libc::_exit(127);
        }
        libc::execvpe(child.file, child.argv, child.envp);
        ptr::write_volatile(&raw mut child.failure, *libc::__errno_location());
        libc::_exit(127)
    }
}

/// Our environment with `changes` set in it, null-terminated. Points into the process's own environment, which nobody
/// changes, and into `changes`.
fn environment(changes: &[CString]) -> Vec<*const c_char> {
    unsafe extern "C" {
        static environ: *const *const c_char;
    }
    let name = |assignment: &CStr| assignment.to_bytes().split(|byte| *byte == b'=').next().map(<[u8]>::to_vec);
    let replaced: Vec<_> = changes.iter().map(|change| name(change)).collect();
    let mut all = Vec::with_capacity(64);
    // SAFETY: the C library's environment is a null-terminated vector of strings, or null, and there is one thread.
    unsafe {
        let mut next = environ;
        while !next.is_null() && !(*next).is_null() {
            let assignment = CStr::from_ptr(*next);
            // Few variables can be meant, and a look at the first letters spares the others a comparison.
            if !assignment.to_bytes().starts_with(b"LOCKRUN_") || !replaced.contains(&name(assignment)) {
                all.push(*next);
            }
            next = next.add(1);
        }
    }
    all.extend(changes.iter().map(|change| change.as_ptr()));
    all.push(ptr::null());
    all
}

/// The word as C takes it. Words come from argv, the environment or checked text, so none has a NUL byte; one that had
/// would end there.
fn c_string(word: &OsString) -> CString {
    let bytes = word.as_bytes();
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    CString::new(&bytes[..end]).unwrap_or_default()
}
