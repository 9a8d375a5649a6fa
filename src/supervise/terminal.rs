//! The controlling terminal.

use std::io;
use std::os::fd::AsFd;

use nix::errno::Errno;
use nix::fcntl::{OFlag, open};
use nix::sys::stat::Mode;
use nix::sys::termios::tcgetsid;
use nix::unistd::getsid;

/// Returns whether this process has a controlling terminal. COMMAND then shares lockrun's process group, like any job
/// of a shell; without one (cron, CI) it leads a group of its own.
pub(super) fn is_controlling() -> bool {
    match open("/dev/tty", OFlag::O_RDONLY | OFlag::O_CLOEXEC | OFlag::O_NOCTTY, Mode::empty()) {
        Ok(_) => true,
        Err(Errno::ENXIO) => false,
        // /dev/tty is missing, perhaps because /dev is not mounted.
        Err(_) => {
            let (stdin, stdout, stderr) = (io::stdin(), io::stdout(), io::stderr());
            let has_our_session = |fd| tcgetsid(fd).is_ok_and(|session| getsid(None) == Ok(session));
            [stdin.as_fd(), stdout.as_fd(), stderr.as_fd()].into_iter().any(has_our_session)
        }
    }
}
