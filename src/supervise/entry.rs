//! Where the process begins.
//!
//! Rust's own start-up would ignore SIGPIPE and open closed standard streams before `main`, and COMMAND would inherit
//! both. So the C entry point is ours, and COMMAND finds everything as it was.

#[cfg(not(test))]
#[allow(unsafe_code)]
// SAFETY: the C library calls this symbol once, as the program's entry point, with the signature of C's main; no other
// object that is linked defines it, because the crate has no Rust main (`no_main`).
#[unsafe(no_mangle)]
extern "C" fn main(_argc: libc::c_int, _argv: *const *const libc::c_char) -> libc::c_int {
    crate::main_story()
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
