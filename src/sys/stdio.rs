//! The standard streams: those that were closed, and the answers that lockrun prints.

use std::io::{self, Write as _};
use std::os::fd::{AsRawFd as _, IntoRawFd as _};

use nix::fcntl::{FcntlArg, FdFlag, OFlag, fcntl, open};
use nix::sys::stat::Mode;

/// Opens /dev/null on every closed standard descriptor, so that none of lockrun's files or sockets becomes standard
/// error. COMMAND does not inherit these descriptors, and [`check`] recognises them by that.
pub fn fill_closed() {
    while let Ok(null) = open("/dev/null", OFlag::O_RDWR | OFlag::O_CLOEXEC, Mode::empty()) {
        if null.as_raw_fd() > 2 {
            return;
        }
        // Leaked on purpose: it must stay open as long as the process lives.
        let _ = null.into_raw_fd();
    }
}

/// Fails if standard output was closed when lockrun started, so that nothing can be printed.
pub fn check() -> io::Result<()> {
    let flags = fcntl(io::stdout(), FcntlArg::F_GETFD).map(FdFlag::from_bits_truncate);
    match flags {
        Ok(flags) if !flags.contains(FdFlag::FD_CLOEXEC) => Ok(()),
        _ => Err(io::Error::other("standard output is closed")),
    }
}

/// Writes `text` to standard output. Fails if that cannot be done, or standard output was closed when lockrun started.
pub fn print(text: &str) -> io::Result<()> {
    check()?;
    let mut out = io::stdout();
    out.write_all(text.as_bytes())?;
    out.flush()
}
