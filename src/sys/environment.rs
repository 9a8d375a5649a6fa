//! The process's own environment, which is never changed.

#![allow(unsafe_code)]

use std::ffi::{CStr, OsStr, c_char};
use std::iter;
use std::os::unix::ffi::OsStrExt as _;

/// Returns pointers to all variables: each to a string that lasts as long as the process, as in `NAME=value`.
pub fn variables() -> impl Iterator<Item = *const c_char> {
    unsafe extern "C" {
        static environ: *const *const c_char;
    }
    // SAFETY: the C library's environment is a null-terminated vector of strings, or null, and no thread changes it.
    let mut next = unsafe { environ };
    iter::from_fn(move || {
        // SAFETY: the same; beyond the null at its end nothing is read.
        let variable = unsafe { next.as_ref() }.copied().filter(|variable| !variable.is_null())?;
        // SAFETY: the same.
        next = unsafe { next.add(1) };
        Some(variable)
    })
}

/// Returns the names that begin with `prefix`. Looks at no more of the others than that takes: every run asks for this.
pub fn names_beginning_with(prefix: &str) -> impl Iterator<Item = &'static OsStr> {
    let begins = move |variable: &*const c_char| {
        // SAFETY: of the prefix no more is read than there is, and the other is a string.
        unsafe { libc::strncmp(*variable, prefix.as_ptr().cast(), prefix.len()) == 0 }
    };
    variables().filter(begins).map(|variable| {
        // SAFETY: it is a string that lasts as long as the process.
        let text = unsafe { CStr::from_ptr(variable) }.to_bytes();
        OsStr::from_bytes(text.split(|byte| *byte == b'=').next().unwrap_or_default())
    })
}
