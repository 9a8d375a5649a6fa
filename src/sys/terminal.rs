//! The terminals to write to.

#![allow(unsafe_code)]

use std::io::IsTerminal;
use std::os::fd::RawFd;

use crate::text::colour;

/// Returns the number of columns of the terminal on standard error; `None` if it is not a terminal.
pub fn stderr_width() -> Option<usize> {
    std::io::stderr().is_terminal().then(|| width(libc::STDERR_FILENO))
}

/// Returns the number of columns of the terminal on standard output; `None` if it is not a terminal.
pub fn stdout_width() -> Option<usize> {
    std::io::stdout().is_terminal().then(|| width(libc::STDOUT_FILENO))
}

/// Returns whether to use colours on standard output.
pub fn stdout_has_colours() -> bool {
    let variable = |name| std::env::var_os(name);
    std::io::stdout().is_terminal() && colour::is_wanted(variable("NO_COLOR").as_deref(), variable("TERM").as_deref())
}

fn width(terminal: RawFd) -> usize {
    let mut size = libc::winsize { ws_row: 0, ws_col: 0, ws_xpixel: 0, ws_ypixel: 0 };
    // SAFETY: the request writes one such structure.
    let asked = unsafe { libc::ioctl(terminal, libc::TIOCGWINSZ, &raw mut size) };
    let columns = usize::from(size.ws_col);
    if asked == 0 && columns > 0 { columns } else { 80 }
}

/// Returns whether this process is in the foreground of the terminal on standard error, rather than a background job.
pub fn is_ours() -> bool {
    // SAFETY: plain system calls.
    unsafe { libc::tcgetpgrp(libc::STDERR_FILENO) == libc::getpgrp() }
}
