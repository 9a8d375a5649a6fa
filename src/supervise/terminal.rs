//! The controlling terminal, and one to write to.

#![allow(unsafe_code)]

use std::io::IsTerminal;
use std::os::fd::RawFd;

use nix::fcntl::{OFlag, open};
use nix::sys::stat::Mode;

/// Whether this process has a controlling terminal. COMMAND then shares lockrun's process group, like any job of a
/// shell; without one (cron, CI) it leads a group of its own.
pub(super) fn is_controlling() -> bool {
    open("/dev/tty", OFlag::O_RDONLY | OFlag::O_CLOEXEC | OFlag::O_NOCTTY, Mode::empty()).is_ok()
}

/// How many columns the terminal has that standard error is; `None` if it is no terminal.
pub fn stderr_width() -> Option<usize> {
    std::io::stderr().is_terminal().then(|| width(libc::STDERR_FILENO))
}

/// How many columns the terminal has that standard output is; `None` if it is no terminal.
pub fn stdout_width() -> Option<usize> {
    std::io::stdout().is_terminal().then(|| width(libc::STDOUT_FILENO))
}

fn width(terminal: RawFd) -> usize {
    let mut size = libc::winsize { ws_row: 0, ws_col: 0, ws_xpixel: 0, ws_ypixel: 0 };
    // SAFETY: the request writes one such structure.
    let asked = unsafe { libc::ioctl(terminal, libc::TIOCGWINSZ, &raw mut size) };
    let columns = usize::from(size.ws_col);
    if asked == 0 && columns > 0 { columns } else { 80 }
}

/// Whether this process is in front of the terminal that standard error is, and not a job in the background.
pub fn is_ours() -> bool {
    // SAFETY: plain system calls.
    unsafe { libc::tcgetpgrp(libc::STDERR_FILENO) == libc::getpgrp() }
}
