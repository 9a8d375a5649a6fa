//! The controlling terminal.

use nix::fcntl::{OFlag, open};
use nix::sys::stat::Mode;

/// Returns whether this process has a controlling terminal. COMMAND then shares lockrun's process group, like any job of a
/// shell; without one (cron, CI) it leads a group of its own.
pub(super) fn is_controlling() -> bool {
    open("/dev/tty", OFlag::O_RDONLY | OFlag::O_CLOEXEC | OFlag::O_NOCTTY, Mode::empty()).is_ok()
}
