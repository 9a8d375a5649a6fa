//! The process's own environment, which is never changed.

#![allow(unsafe_code)]

use std::ffi::{CStr, OsStr, c_char};
use std::iter;
use std::os::unix::ffi::OsStrExt as _;

/// Returns pointers to all variables, each a string `NAME=value` that lives as long as the process.
pub fn variables() -> impl Iterator<Item = *const c_char> {
    unsafe extern "C" {
        static environ: *const *const c_char;
    }
    // SAFETY: the C library's environment is a null-terminated vector of strings, or null, and no thread changes it.
    let mut next = unsafe { environ };
    iter::from_fn(move || {
        // SAFETY: as above; nothing beyond the null at its end is read.
        let variable = unsafe { next.as_ref() }.copied().filter(|variable| !variable.is_null())?;
        // SAFETY: as above.
        next = unsafe { next.add(1) };
        Some(variable)
    })
}

/// Returns the names of the variables that begin with `prefix`. Reads no more of the others than the comparison needs,
/// because every run does this.
pub fn names_beginning_with(prefix: &str) -> impl Iterator<Item = &'static OsStr> {
    let begins = move |variable: &*const c_char| {
        // SAFETY: at most the length of the prefix is read from it, and the variable is a C string.
        unsafe { libc::strncmp(*variable, prefix.as_ptr().cast(), prefix.len()) == 0 }
    };
    variables().filter(begins).map(|variable| {
        // SAFETY: it is a C string that lives as long as the process.
        let text = unsafe { CStr::from_ptr(variable) }.to_bytes();
        OsStr::from_bytes(text.split(|byte| *byte == b'=').next().unwrap_or_default())
    })
}
