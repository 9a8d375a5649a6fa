//! Standard output, for the commands that print an answer.

use std::io::{self, Write as _};

use nix::fcntl::{FcntlArg, FdFlag, fcntl};

/// Writes `text` to standard output. Fails if that cannot be written to, or was closed when lockrun started.
pub fn print(text: &str) -> io::Result<()> {
    if text.is_empty() {
        return Ok(());
    }
    if was_closed() {
        return Err(io::Error::other("standard output is closed"));
    }
    let mut out = io::stdout();
    out.write_all(text.as_bytes())?;
    out.flush()
}

/// Returns whether standard output was closed when lockrun started. /dev/null is in its place then, and of the standard
/// descriptors only such a one has close-on-exec set: see `fill_closed_standard_streams` in `supervise/entry.rs`.
fn was_closed() -> bool {
    fcntl(io::stdout(), FcntlArg::F_GETFD)
        .is_ok_and(|flags| FdFlag::from_bits_truncate(flags).contains(FdFlag::FD_CLOEXEC))
}
