//! The entry point of the process.
//!
//! Rust's own start-up would ignore SIGPIPE and open closed standard streams before `main`, and COMMAND would inherit
//! both. So lockrun has its own C entry point, and COMMAND inherits the signals and streams that lockrun was started
//! with.

#[cfg(not(any(test, fuzzing)))]
use std::ffi::{CStr, OsStr, OsString};
#[cfg(not(any(test, fuzzing)))]
use std::os::unix::ffi::OsStrExt as _;
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

#[cfg(not(any(test, fuzzing)))]
#[allow(unsafe_code)]
// SAFETY: the C library calls this symbol once, as the program's entry point, with the signature of C's main; no other
// object that is linked defines it, because the crate has no Rust main (`no_main`).
#[unsafe(no_mangle)]
extern "C" fn main(count: libc::c_int, args: *const *const libc::c_char) -> libc::c_int {
    // SAFETY: the C library passes the vector that it got from the kernel.
    unsafe { note_command_line(count, args) };
    // SAFETY: the same. Copied here because std sees the arguments only if the C library passes them to initializers,
    // as glibc does.
    crate::main_story(unsafe { words(count, args) })
}

/// Returns copies of the words of the command line, after the program's own name.
///
/// # Safety
///
/// `args` must point to `count` pointers to strings.
#[cfg(not(any(test, fuzzing)))]
#[allow(unsafe_code)]
unsafe fn words(count: libc::c_int, args: *const *const libc::c_char) -> Vec<OsString> {
    let word = |at| {
        // SAFETY: as promised by the caller.
        let word = unsafe { CStr::from_ptr(*args.add(at)) };
        OsStr::from_bytes(word.to_bytes()).to_owned()
    };
    (1..usize::try_from(count).unwrap_or(0)).map(word).collect()
}

/// The memory of the command line: its start, and its length in bytes including the last NUL.
static COMMAND_LINE: (AtomicPtr<u8>, AtomicUsize) = (AtomicPtr::new(ptr::null_mut()), AtomicUsize::new(0));

/// Records where the command line is in memory, for [`set_command_line`].
///
/// # Safety
///
/// `args` must point to `count` pointers to strings.
#[cfg(not(any(test, fuzzing)))]
#[allow(unsafe_code)]
unsafe fn note_command_line(count: libc::c_int, args: *const *const libc::c_char) {
    let count = usize::try_from(count).unwrap_or(0);
    if count == 0 {
        return;
    }
    // SAFETY: as promised by the caller.
    let (start, length) = unsafe {
        let args = std::slice::from_raw_parts(args, count);
        let (start, mut length) = (args[0], 0);
        for word in args {
            // The kernel stores the words contiguously; /proc shows only that memory.
            if *word != start.add(length) {
                break;
            }
            length += CStr::from_ptr(*word).to_bytes_with_nul().len();
        }
        (start, length)
    };
    COMMAND_LINE.0.store(start.cast_mut().cast(), Ordering::Relaxed);
    COMMAND_LINE.1.store(length, Ordering::Relaxed);
}

/// Replaces the command line that /proc shows for this process by `line`, truncated to the length of the old one. Must
/// be called while the process has one thread; [`std::env::args`] must not be used afterwards.
#[allow(unsafe_code)]
pub(super) fn set_command_line(line: &str) {
    let (start, length) = (COMMAND_LINE.0.load(Ordering::Relaxed), COMMAND_LINE.1.load(Ordering::Relaxed));
    if start.is_null() {
        return;
    }
    // SAFETY: the words are in writable memory of this process, and nothing refers to them: the parser works on copies.
    // The last byte stays NUL; otherwise the kernel would also show the environment, which follows it.
    unsafe {
        let line_bytes = std::slice::from_raw_parts_mut(start, length);
        let (room, _) = line_bytes.split_at_mut(length.saturating_sub(1));
        room.fill(0);
        room.iter_mut().zip(line.bytes()).for_each(|(byte, new)| *byte = new);
    }
}
