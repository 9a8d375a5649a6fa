//! The initial state of a process: session, terminal, signals, limits. The only unsafe code of the tests.
#![allow(unsafe_code)]

use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::LazyLock;

use nix::errno::Errno;
use nix::libc;
use nix::sys::prctl;
use nix::sys::resource::{Resource, setrlimit};
use nix::sys::signal::SigSet;
use nix::sys::stat::{Mode, umask};
use nix::unistd::{Pid, close, getpid, getsid, setpgid, setsid};

/// The initial state of a process. The default: a process group of its own, no terminal, every signal at its default
/// and none blocked, whatever the state of the test runner. (Except that posix_spawn(3) may ignore the two signals that
/// the C library keeps for itself.)
///
/// The process has a session of its own only if it has a terminal, or if the test asks for it: the kernel makes each
/// session a group for the scheduler (sched(7), "The autogroup feature"). With dozens of such groups on two busy
/// processors, Linux 6.18 made processes that could run wait for seconds; with one session it does not.
#[derive(Clone, Default, PartialEq)]
pub(crate) struct Birth {
    /// Standard input is a terminal, and becomes the controlling terminal of a session of the process's own.
    pub(crate) terminal: bool,
    /// The process has a session of its own without a terminal, as a job of cron has.
    pub(crate) session: bool,
    pub(crate) umask: Option<u32>,
    /// Resource, soft limit, hard limit.
    pub(crate) limits: Vec<(Resource, u64, u64)>,
    pub(crate) ignored: Vec<i32>,
    pub(crate) blocked: Vec<i32>,
    /// Descriptors that are closed.
    pub(crate) closed: Vec<i32>,
    /// The two signals of the C library have their default, too.
    pub(crate) exact_signals: bool,
    /// System calls that fail with this error, for the process and everything that it starts, as on an older kernel or
    /// in a sandbox.
    pub(crate) refused: Vec<(i64, Errno)>,
    /// System calls that kill the process that makes them, and everything that it starts likewise.
    pub(crate) fatal: Vec<i64>,
}

impl Birth {
    /// Makes `command` start in this state.
    pub(crate) fn prepare(self, command: &mut Command) {
        // Without a closure the standard library need not copy this process, which takes longer than all that most
        // commands do.
        if self == Self::default() && pass_on_nothing() {
            command.process_group(0);
            return;
        }
        let filter = filter(&self.refused, &self.fatal);
        // SAFETY: between fork and exec the closure only makes system calls, on values that it owns: no allocation, no
        // lock.
        unsafe {
            command.pre_exec(move || {
                self.enter()?;
                if self.refused.is_empty() && self.fatal.is_empty() { Ok(()) } else { install(&filter) }
            });
        }
    }

    fn enter(&self) -> io::Result<()> {
        if self.session || self.terminal {
            setsid()?;
        } else {
            setpgid(Pid::from_raw(0), Pid::from_raw(0))?;
            give_up_terminal();
        }
        // SAFETY: TIOCSCTTY takes an integer; descriptor 0 is open.
        if self.terminal && unsafe { libc::ioctl(0, libc::TIOCSCTTY, 0) } == -1 {
            return Err(io::Error::last_os_error());
        }
        if let Some(mask) = self.umask {
            umask(Mode::from_bits_truncate(mask));
        }
        for (resource, soft, hard) in &self.limits {
            setrlimit(*resource, *soft, *hard)?;
        }
        for &descriptor in &self.closed {
            close(descriptor)?;
        }
        // The process must not inherit the test runner's descriptors. They are closed by exec, not at once: a failure
        // of this function is reported over one of them. SAFETY: plain integers.
        unsafe { libc::syscall(libc::SYS_close_range, 3, u32::MAX, libc::CLOSE_RANGE_CLOEXEC) };
        self.signals()
    }

    fn signals(&self) -> io::Result<()> {
        for number in 1..=64 {
            let disposition = if self.ignored.contains(&number) { libc::SIG_IGN } else { libc::SIG_DFL };
            // SAFETY: no handler is installed, only the two constants. For KILL, STOP and the two signals of the C
            // library the call fails, which does no harm.
            unsafe { libc::signal(number, disposition) };
        }
        // SAFETY: the set is initialised by sigemptyset before it is read, and lives on this stack.
        let failed = unsafe {
            let mut set: libc::sigset_t = std::mem::zeroed();
            libc::sigemptyset(&raw mut set);
            for &number in &self.blocked {
                libc::sigaddset(&raw mut set, number);
            }
            libc::sigprocmask(libc::SIG_SETMASK, &raw const set, std::ptr::null_mut()) == -1
        };
        if failed {
            return Err(io::Error::last_os_error());
        }
        Ok(())
    }
}

/// Makes this thread pass on no signal disposition, mask, descriptor or terminal to the programs that it starts: the
/// process gives up its terminal and ignores no signal any more, its descriptors are closed by exec, and the thread
/// blocks no signal. Returns false if the process cannot give up its terminal.
fn pass_on_nothing() -> bool {
    static PROCESS_PASSES_ON_NOTHING: LazyLock<bool> = LazyLock::new(|| {
        // The leader of a session would end it with its terminal.
        if getsid(None) == Ok(getpid()) {
            return false;
        }
        give_up_terminal();
        // SAFETY: plain integers.
        unsafe { libc::syscall(libc::SYS_close_range, 3, u32::MAX, libc::CLOSE_RANGE_CLOEXEC) };
        // The standard library resets PIPE itself.
        (1..=64).filter(|number| *number != libc::SIGPIPE && is_ignored(*number)).for_each(ignore_in_this_process_only);
        true
    });
    SigSet::empty().thread_set_mask().expect("a thread may unblock every signal");
    *PROCESS_PASSES_ON_NOTHING
}

/// Returns whether this process ignores the signal of this number, as a shell's background jobs ignore INT and QUIT.
fn is_ignored(number: i32) -> bool {
    // SAFETY: all bits zero is a valid record; the call only reads the disposition.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: as above.
    unsafe { libc::sigaction(number, std::ptr::null(), &raw mut action) == 0 && action.sa_sigaction == libc::SIG_IGN }
}

/// Goes on ignoring the signal of this number in this process, but not in the programs that it starts: exec resets a
/// signal that has a handler, but not one that is ignored.
fn ignore_in_this_process_only(number: i32) {
    extern "C" fn nothing(_: i32) {}
    // SAFETY: all bits zero is a valid record: no flags, an empty mask.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = nothing as *const () as usize;
    action.sa_flags = libc::SA_RESTART;
    // SAFETY: the handler does nothing, so it may run at any moment.
    unsafe { libc::sigaction(number, &raw const action, std::ptr::null_mut()) };
}

/// Gives up the controlling terminal that this process has from the test runner, if it has one.
fn give_up_terminal() {
    // SAFETY: plain system calls; the path ends with a zero, and the descriptor is ours.
    unsafe {
        let terminal = libc::open(c"/dev/tty".as_ptr(), libc::O_RDWR | libc::O_NOCTTY | libc::O_CLOEXEC);
        if terminal != -1 {
            libc::ioctl(terminal, libc::TIOCNOTTY);
            libc::close(terminal);
        }
    }
}

/// Returns a program for seccomp(2) that refuses the one system calls, kills for the others, and allows all others.
fn filter(refused: &[(i64, Errno)], fatal: &[i64]) -> Vec<libc::sock_filter> {
    let step = |code: u32, k: u32, jf: u8| libc::sock_filter {
        code: u16::try_from(code).expect("they are small"),
        jt: 0,
        jf,
        k,
    };
    let answer = |with: u32| step(libc::BPF_RET | libc::BPF_K, with, 0);
    // The number of the call is the first word of the program's input.
    let mut filter = vec![step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0)];
    let refused = refused.iter().map(|&(number, error)| (number, libc::SECCOMP_RET_ERRNO | error as u32));
    let fatal = fatal.iter().map(|&number| (number, libc::SECCOMP_RET_KILL_PROCESS));
    for (number, verdict) in refused.chain(fatal) {
        let number = u32::try_from(number).expect("the number of a system call");
        // Any other number skips the answer.
        filter.push(step(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, number, 1));
        filter.push(answer(verdict));
    }
    filter.push(answer(libc::SECCOMP_RET_ALLOW));
    filter
}

/// Installs this program as a filter of all system calls from now on.
fn install(filter: &[libc::sock_filter]) -> io::Result<()> {
    let len = filter.len().try_into().expect("a short program");
    let program = libc::sock_fprog { len, filter: filter.as_ptr().cast_mut() };
    prctl::set_no_new_privs()?;
    // SAFETY: the kernel copies the program, which lives until the call has returned, and does not write to it.
    let answer = unsafe { libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program) };
    if answer == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
