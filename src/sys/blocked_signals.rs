//! Work that a signal does not interrupt half-way.

use nix::sys::signal::{SigSet, SigmaskHow, Signal};

/// The signals by which users and the system end a process.
const ENDING: [Signal; 4] = [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP, Signal::SIGQUIT];

/// Carries out `work` and returns its result. A signal to end the process that comes meanwhile takes effect at the end.
/// If there are other threads, they must have blocked these signals.
pub fn with_signals_blocked<T>(work: impl FnOnce() -> T) -> T {
    let ending: SigSet = ENDING.into_iter().collect();
    let before = ending.thread_swap_mask(SigmaskHow::SIG_BLOCK);
    let result = work();
    if let Ok(before) = before {
        // It cannot fail: the mask was in force before.
        let _ = before.thread_set_mask();
    }
    result
}
