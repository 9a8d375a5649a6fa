//! Ending lockrun's own process as COMMAND ended.

#![allow(unsafe_code)]

use crate::lock::ending::Ending;

use crate::sys::signals;

/// Ends this process as COMMAND ended: returns the status for `main` to return, or is terminated by the signal, without
/// a core file.
pub fn end_as(ending: Ending) -> libc::c_int {
    let signal = match ending {
        Ending::Exited(status) => return status.into(),
        Ending::Signaled(signal) => signal,
    };
    // SAFETY: plain system calls on ourselves with valid arguments. The signal kills this process only once it has its
    // default disposition and is unblocked.
    unsafe {
        // A core file of lockrun would overwrite COMMAND's.
        libc::prctl(libc::PR_SET_DUMPABLE, 0, 0, 0, 0);
        signals::set_disposition(signal, libc::SIG_DFL);
        libc::kill(libc::getpid(), signal);
        let mut only = std::mem::zeroed::<libc::sigset_t>();
        libc::sigemptyset(&raw mut only);
        libc::sigaddset(&raw mut only, signal);
        libc::sigprocmask(libc::SIG_UNBLOCK, &raw const only, std::ptr::null_mut());
    }
    // Reached only if the signal cannot kill this process. A shell reports a death by the signal as this status.
    128 + signal
}

/// Ends this process at once, without waiting for its other threads.
pub fn end_now(ending: Ending) -> ! {
    let status = end_as(ending);
    // SAFETY: ends the process; nothing is left to be used.
    unsafe { libc::_exit(status) }
}
