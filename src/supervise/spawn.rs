//! Starting COMMAND: everything between lockrun's process and COMMAND's first instruction.
//!
//! The child shares its parent's memory until it executes COMMAND (`CLONE_VM | CLONE_VFORK`, as posix_spawn(3) does),
//! and the parent is suspended meanwhile: nothing is copied, and a failure is reported through memory.

#![allow(unsafe_code)]

use std::ffi::{CStr, CString, OsString};
use std::os::unix::ffi::OsStrExt;
use std::ptr;

use libc::{c_char, c_int, c_void, pid_t};
use nix::errno::Errno;

use super::Launch;
use crate::sys::clock::Moment;
use crate::sys::environment;
use crate::sys::signals::Signals;

/// Why COMMAND was not started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// There is no such program.
    NotFound,
    /// The program exists, but the system cannot execute it.
    CannotExecute(Errno),
    /// Too little of the lease was left.
    TooLate,
    /// lockrun has died.
    Orphaned,
    /// The timer that ends COMMAND with its lease cannot be created.
    NoTimer(Errno),
    /// A descriptor, a timer or a process could not be obtained.
    Preparing(Errno),
}

/// How the child differs from its parent.
#[derive(Clone, Copy, Debug)]
pub(super) struct Setup {
    /// It leads its own process group.
    pub(super) own_group: bool,
    /// The kernel kills it when its parent dies.
    pub(super) dies_with_parent: bool,
    /// It must not start at or after this moment.
    pub(super) not_after: Option<Moment>,
}

/// The variable with the run's fencing token.
pub const FENCE: &str = "LOCKRUN_FENCE";

/// The variable with the run's slot, if there are several.
pub const SLOT: &str = "LOCKRUN_SLOT";

/// The variable with the sequence value that is reserved for COMMAND.
pub const VALUE: &str = "LOCKRUN_VALUE";

/// The size of the child's stack in units of 16 bytes: 32 KiB, as much as the C library's own posix_spawn(3) takes. The
/// argument vector that the C library builds on the stack for a script without an interpreter line comes on top.
const STACK: usize = 2 * 1024;

/// COMMAND in the form that clone(2) and execve(2) take.
pub(super) struct Exec {
    argv: Vec<*const c_char>,
    /// Without the terminating null until COMMAND is started, so that variables can be added.
    envp: Vec<*const c_char>,
    mask: libc::sigset_t,
    ignore_child_signal: bool,
    stack: Vec<u128>,
    /// Owns the strings that the pointers point to, except those of the process's own environment.
    strings: Vec<CString>,
}

impl Exec {
    /// Converts `launch`. COMMAND inherits the environment and signals of this process.
    pub(super) fn new(launch: &Launch, signals: &Signals) -> Self {
        let argv: Vec<CString> = launch.argv.iter().map(c_string).collect();
        let mut exec = Exec {
            argv: argv.iter().map(|word| word.as_ptr()).chain([ptr::null()]).collect(),
            envp: environment::variables().collect(),
            mask: signals.inherited_mask(),
            ignore_child_signal: signals.child_was_ignored(),
            stack: Vec::with_capacity(STACK + argv.len()),
            strings: argv,
        };
        // The values of an enclosing run would be wrong for this one.
        exec.unset(SLOT);
        exec.unset(VALUE);
        for (name, value) in &launch.env {
            exec.set(name, value);
        }
        exec
    }

    /// Sets the variable `name` in COMMAND's environment.
    pub(super) fn set(&mut self, name: &str, value: &str) {
        self.unset(name);
        let variable = c_string(&OsString::from(format!("{name}={value}")));
        self.envp.push(variable.as_ptr());
        self.strings.push(variable);
    }

    /// Removes the variable `name` from COMMAND's environment.
    fn unset(&mut self, name: &str) {
        self.envp.retain(|known| {
            // SAFETY: all pointers are to strings: in the process's own environment, which is never changed, or in
            // `strings`.
            let known = unsafe { CStr::from_ptr(*known) };
            let value = known.to_bytes().strip_prefix(name.as_bytes());
            !value.is_some_and(|value| value.starts_with(b"="))
        });
    }

    /// Starts COMMAND and returns its process id. By then COMMAND is executing.
    pub(super) fn spawn(&mut self, setup: Setup) -> Result<pid_t, Failure> {
        self.envp.push(ptr::null());
        // SAFETY: one past the end of the allocation, which is aligned to 16 bytes: the top of the child's stack.
        let top = unsafe { self.stack.as_mut_ptr().add(self.stack.capacity()) };
        // SAFETY: cannot fail.
        let parent = unsafe { libc::getpid() };
        let mut child = Child { exec: self, setup, parent, failure: 0 };
        // SAFETY: the parent sleeps until the child has executed or ended, so `child`, what it refers to and the stack
        // outlive its use of them, and no other thread accesses them meanwhile. No handlers are installed that the
        // child could run in this memory.
        let pid = unsafe {
            libc::clone(
                run,
                top.cast(),
                libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD,
                (&raw mut child).cast::<c_void>(),
            )
        };
        let pid = Errno::result(pid).map_err(Failure::Preparing)?;
        // SAFETY: valid memory. The read is volatile because the child may have written here without the compiler's
        // knowledge.
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
}

/// What the child needs, in its parent's memory.
struct Child<'a> {
    exec: &'a Exec,
    setup: Setup,
    parent: pid_t,
    /// The error number if the child could not execute COMMAND; otherwise 0.
    failure: c_int,
}

/// Runs in the child, until it executes COMMAND or ends.
extern "C" fn run(child: *mut c_void) -> c_int {
    // SAFETY: the pointer is to the parent's `Child`, which nothing else uses, because the thread that created it is
    // suspended. Only system calls are made, and nothing is allocated. Signals are blocked until the inherited mask is
    // set, and then have the effect that they would have on COMMAND.
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
        if child.exec.ignore_child_signal {
            libc::signal(libc::SIGCHLD, libc::SIG_IGN);
        }
        libc::sigprocmask(libc::SIG_SETMASK, &raw const child.exec.mask, ptr::null_mut());
        // A last look at the clock: this process may have been stopped since the lock was granted.
        if child.setup.not_after.is_some_and(|limit| Moment::now() >= limit) {
            ptr::write_volatile(&raw mut child.failure, libc::ETIME);
            libc::_exit(127);
        }
        libc::execvpe(child.exec.argv[0], child.exec.argv.as_ptr(), child.exec.envp.as_ptr());
        ptr::write_volatile(&raw mut child.failure, *libc::__errno_location());
        libc::_exit(127)
    }
}

/// Returns the word as a C string. Words come from argv, the environment or checked text, so none contains a NUL byte;
/// if one did, it would be cut off there.
fn c_string(word: &OsString) -> CString {
    let bytes = word.as_bytes();
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    CString::new(&bytes[..end]).unwrap_or_default()
}
