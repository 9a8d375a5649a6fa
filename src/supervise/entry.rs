//! Where the process begins.
//!
//! Rust's own start-up would ignore SIGPIPE and open closed standard streams before `main`, and COMMAND would inherit
//! both. So the C entry point is ours, and COMMAND finds everything as it was.

use nix::fcntl::{FcntlArg, FdFlag, fcntl};

#[cfg(not(test))]
#[allow(unsafe_code)]
// SAFETY: the C library calls this symbol once, as the program's entry point, with the signature of C's main; no other
// object that is linked defines it, because the crate has no Rust main (`no_main`).
#[unsafe(no_mangle)]
extern "C" fn main(_argc: libc::c_int, _argv: *const *const libc::c_char) -> libc::c_int {
    crate::main_story()
}

/// Whether standard output was closed when lockrun started: what is written there is seen by nobody.
pub fn stdout_was_closed() -> bool {
    // Only what was filled in here is closed on exec.
    fcntl(std::io::stdout(), FcntlArg::F_GETFD)
        .is_ok_and(|flags| FdFlag::from_bits_truncate(flags).contains(FdFlag::FD_CLOEXEC))
}

/// Puts /dev/null on every standard descriptor that is closed, for lockrun alone: a file or socket of ours must never
/// become standard error. The descriptors close again in COMMAND.
pub fn fill_closed_standard_streams() {
    use nix::fcntl::{OFlag, open};
    use nix::sys::stat::Mode;
    use std::os::fd::{AsRawFd, IntoRawFd};

    while let Ok(null) = open("/dev/null", OFlag::O_RDWR | OFlag::O_CLOEXEC, Mode::empty()) {
        if null.as_raw_fd() > 2 {
            return;
        }
        // Stays open for as long as the process lives.
        let _ = null.into_raw_fd();
    }
}
