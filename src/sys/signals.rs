//! Signals as a stream of events, and the signal state that COMMAND inherits.
//!
//! All signals are blocked before any thread or child exists, and read from a descriptor. COMMAND gets the mask and the
//! dispositions that lockrun was started with. A signal that was ignored stays ignored for both, except SIGCHLD, which
//! lockrun itself needs.

#![allow(unsafe_code)]

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt as _;
use std::process::Command;

use nix::errno::Errno;

/// The kernel's highest signal number.
pub const LAST: libc::c_int = 64;

/// The signals that are relayed to all of COMMAND's processes; the others go to COMMAND alone.
pub const FOR_ALL: [libc::c_int; 7] =
    [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGQUIT, libc::SIGTSTP, libc::SIGCONT, libc::SIGWINCH];

/// A signal that reached lockrun.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caught {
    /// Its number.
    pub signal: libc::c_int,
    /// Whether a process sent it, with kill(2) or the like; otherwise the kernel did, for example on behalf of a
    /// terminal.
    pub sent: bool,
}

/// The blocked signals that were pending when a process was created: it has not got them, not even those sent to its
/// process group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Missed(u64);

impl Missed {
    /// Returns the signals that are pending now. Must be called just before the process is created.
    pub fn until_now() -> Self {
        let mut pending = MaybeUninit::uninit();
        // SAFETY: sigpending initialises the set unless it fails, which is checked.
        if unsafe { libc::sigpending(pending.as_mut_ptr()) } != 0 {
            return Missed::default();
        }
        // SAFETY: initialised, as the call succeeded.
        let pending = unsafe { pending.assume_init() };
        // SAFETY: the set is valid, and the numbers are in range.
        let is_pending = |signal: &libc::c_int| unsafe { libc::sigismember(&raw const pending, *signal) == 1 };
        Missed((1..=LAST).filter(is_pending).map(bit).sum())
    }

    /// Returns whether `signal` is one of them, and removes it.
    pub fn take(&mut self, signal: libc::c_int) -> bool {
        let was_missed = self.0 & bit(signal) != 0;
        self.0 &= !bit(signal);
        was_missed
    }
}

fn bit(signal: libc::c_int) -> u64 {
    1 << (signal - 1)
}

/// lockrun's signals, blocked and readable.
#[derive(Debug)]
pub struct Signals {
    fd: OwnedFd,
    taken: libc::sigset_t,
    inherited: libc::sigset_t,
    child_was_ignored: bool,
    /// Whether lockrun was started in the group of its session's leader. It also counts in the guardian, which may
    /// still have to read signals of that group when it has left it.
    in_leaders_group: bool,
}

impl Signals {
    /// Blocks every signal that was not ignored when lockrun started, and makes these signals readable. Must be called
    /// before any thread or child exists.
    pub fn take_over() -> nix::Result<Self> {
        let mut taken = full_set();
        let mut child_was_ignored = false;
        for signal in 1..=LAST {
            if disposition(signal) != Some(libc::SIG_IGN) {
                continue;
            }
            if signal == libc::SIGCHLD {
                // While SIGCHLD is ignored, the kernel reaps children itself, and their exit statuses are lost.
                child_was_ignored = true;
                set_disposition(signal, libc::SIG_DFL);
            } else {
                // SAFETY: `taken` is a valid set; the number is in range.
                unsafe { libc::sigdelset(&raw mut taken, signal) };
            }
        }
        let inherited = set_mask(&taken)?;
        let fd = signal_fd(&taken)?;
        Ok(Signals { fd, taken, inherited, child_was_ignored, in_leaders_group: is_in_leaders_group() })
    }

    /// Returns the next signal that concerns lockrun, if there is one: not one that it caused itself, nor the end of a
    /// child, nor a terminal's stop signal that the kernel would discard. Never waits.
    pub fn next(&self) -> Option<Caught> {
        loop {
            let info = self.read()?;
            let signal = info.ssi_signo.cast_signed();
            let own = is_own(signal, info.ssi_code, info.ssi_pid);
            let childs_end = signal == libc::SIGCHLD && info.ssi_code > 0;
            let sent = matches!(info.ssi_code, libc::SI_USER | libc::SI_QUEUE | libc::SI_TKILL);
            let vain_stop = is_stop(signal) && !sent && self.in_leaders_group;
            if !(own || childs_end || vain_stop) {
                return Some(Caught { signal, sent });
            }
        }
    }

    /// Handles the pending signals as any process would: stops lockrun for a stop signal, and returns a signal that
    /// would terminate it.
    pub fn obey(&self) -> Option<libc::c_int> {
        while let Some(caught) = self.next() {
            if is_stop(caught.signal) {
                stop_self();
            } else if is_fatal(caught.signal) {
                return Some(caught.signal);
            }
        }
        None
    }

    /// Makes `command` start with the mask and the disposition of SIGCHLD that lockrun was started with, and be killed
    /// when the calling thread ends.
    pub fn hand_down(&self, command: &mut Command) {
        let (mask, child_was_ignored) = (self.inherited, self.child_was_ignored);
        let restore = move || {
            // SAFETY: plain system call on ourselves.
            Errno::result(unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) })?;
            set_mask(&mask)?;
            if child_was_ignored {
                set_disposition(libc::SIGCHLD, libc::SIG_IGN);
            }
            Ok(())
        };
        // SAFETY: between fork and exec the closure only makes system calls, on its own values.
        unsafe { command.pre_exec(restore) };
    }

    fn read(&self) -> Option<libc::signalfd_siginfo> {
        let mut info = MaybeUninit::<libc::signalfd_siginfo>::uninit();
        let size = size_of::<libc::signalfd_siginfo>();
        // SAFETY: the buffer has the given size, and the kernel writes one whole record or none.
        let read = unsafe { libc::read(self.fd.as_raw_fd(), info.as_mut_ptr().cast(), size) };
        if usize::try_from(read) != Ok(size) {
            return None;
        }
        // SAFETY: a whole record was written.
        Some(unsafe { info.assume_init() })
    }

    /// Returns whether `signal` is read here. It is, unless it was ignored when lockrun was started (SIGCHLD always
    /// is).
    pub fn is_taken(&self, signal: libc::c_int) -> bool {
        // SAFETY: the set is valid; a number out of range is reported as an error.
        unsafe { libc::sigismember(&raw const self.taken, signal) == 1 }
    }

    /// Returns the mask that lockrun was started with.
    pub fn inherited_mask(&self) -> libc::sigset_t {
        self.inherited
    }

    /// Returns whether SIGCHLD was ignored when lockrun was started.
    pub fn child_was_ignored(&self) -> bool {
        self.child_was_ignored
    }
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Returns whether lockrun itself caused a signal with this code and sender: writing to a closed pipe, or beyond the
/// limit on file size, sends this process a signal in its own name, and one of its own alarms may arrive late. May be
/// called in a signal handler.
pub fn is_own(signal: libc::c_int, code: libc::c_int, sender: u32) -> bool {
    match signal {
        libc::SIGPIPE | libc::SIGXFSZ => sender == std::process::id(),
        libc::SIGALRM => code == libc::SI_TIMER,
        _ => false,
    }
}

/// Returns whether the default action of `signal` terminates a process, whether or not it is blocked.
pub fn is_fatal(signal: libc::c_int) -> bool {
    !matches!(
        signal,
        libc::SIGCHLD
            | libc::SIGCONT
            | libc::SIGURG
            | libc::SIGWINCH
            | libc::SIGTSTP
            | libc::SIGTTIN
            | libc::SIGTTOU
            | libc::SIGSTOP
    )
}

/// Returns whether a terminal, or a shell on its behalf, sends `signal` to a whole process group.
pub fn is_sent_by_terminals(signal: libc::c_int) -> bool {
    FOR_ALL.contains(&signal) || is_stop(signal)
}

/// Returns whether `signal` stops a process by default and can be caught.
pub fn is_stop(signal: libc::c_int) -> bool {
    matches!(signal, libc::SIGTSTP | libc::SIGTTIN | libc::SIGTTOU)
}

/// Stops this process until it is continued.
pub fn stop_self() {
    // SAFETY: plain system call on ourselves.
    unsafe { libc::kill(libc::getpid(), libc::SIGSTOP) };
}

/// Returns whether this process is in the process group of its session's leader. No shell could continue it there, and
/// the kernel does not stop processes of such an orphaned group on behalf of the terminal.
fn is_in_leaders_group() -> bool {
    // SAFETY: plain system calls on ourselves.
    unsafe { libc::getsid(0) == libc::getpgrp() }
}

/// Returns a non-blocking descriptor for reading the signals of `set`.
fn signal_fd(set: &libc::sigset_t) -> nix::Result<OwnedFd> {
    // SAFETY: the set is valid; -1 asks for a new descriptor.
    let fd = Errno::result(unsafe { libc::signalfd(-1, set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK) })?;
    // SAFETY: the descriptor is new and owned by no other value.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Returns whether a signal is pending that ends or stops lockrun once it is read. For work that looks at no signals
/// otherwise.
pub fn are_to_be_obeyed() -> bool {
    let mut pending = MaybeUninit::uninit();
    // SAFETY: the set is written on success, which is checked before it is read.
    unsafe {
        libc::sigpending(pending.as_mut_ptr()) == 0
            && (1..=LAST)
                .filter(|signal| is_fatal(*signal) || is_stop(*signal))
                .any(|signal| libc::sigismember(pending.as_ptr(), signal) == 1)
    }
}

/// Returns the set of all signals.
pub fn full_set() -> libc::sigset_t {
    let mut set = MaybeUninit::uninit();
    // SAFETY: sigfillset initialises the set.
    unsafe {
        libc::sigfillset(set.as_mut_ptr());
        set.assume_init()
    }
}

/// Sets the calling thread's mask, and returns the previous one.
pub fn set_mask(mask: &libc::sigset_t) -> nix::Result<libc::sigset_t> {
    let mut before = MaybeUninit::uninit();
    // SAFETY: both pointers are to sets; the old mask is written on success, which is checked.
    Errno::result(unsafe { libc::sigprocmask(libc::SIG_SETMASK, mask, before.as_mut_ptr()) })?;
    // SAFETY: written, as the call succeeded.
    Ok(unsafe { before.assume_init() })
}

/// Returns the disposition of `signal`: `SIG_DFL`, `SIG_IGN` or a handler; `None` if it cannot be queried.
fn disposition(signal: libc::c_int) -> Option<libc::sighandler_t> {
    let mut action = MaybeUninit::<libc::sigaction>::uninit();
    // SAFETY: with a null action the call changes nothing; the present one is written on success.
    let asked = unsafe { libc::sigaction(signal, std::ptr::null(), action.as_mut_ptr()) };
    // SAFETY: written, as the call succeeded.
    (asked == 0).then(|| unsafe { action.assume_init() }.sa_sigaction)
}

/// Sets `signal` to `SIG_DFL` or `SIG_IGN`.
pub fn set_disposition(signal: libc::c_int, to: libc::sighandler_t) {
    // SAFETY: both dispositions are valid; for signals that cannot be changed the call fails without effect.
    unsafe { libc::signal(signal, to) };
}
