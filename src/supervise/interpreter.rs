//! Why executing an existing program fails with "no such file": its interpreter or loader is missing.

use std::env;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::Read as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

/// How much of a script's first line Linux reads, in bytes (`BINPRM_BUF_SIZE` in linux/binfmts.h).
const LINE_MAX: u64 = 256;

/// Returns why `program` could not be executed because something was not found; `None` if the program itself is missing, or if the
/// reason cannot be determined.
pub fn why_not_executed(program: &OsStr) -> Option<String> {
    let path = find(program)?;
    let mut first = Vec::new();
    File::open(&path).ok()?.take(LINE_MAX).read_to_end(&mut first).ok()?;
    let Some(line) = first.strip_prefix(b"#!") else {
        let is_binary = first.starts_with(b"\x7fELF");
        return is_binary.then(|| {
            "the loader that it needs is missing: it was built for another C library or another processor".to_owned()
        });
    };
    let words = line.split(|byte| *byte == b'\n').next()?;
    let interpreter = words.split(|byte| matches!(byte, b' ' | b'\t')).find(|word| !word.is_empty())?;
    let interpreter = OsStr::from_bytes(interpreter);
    if Path::new(interpreter).exists() {
        return None;
    }
    let ends_as_on_windows = interpreter.as_bytes().ends_with(b"\r");
    let why = if ends_as_on_windows { "; its lines end as on Windows (CR LF): convert it with dos2unix" } else { "" };
    Some(format!("its interpreter {:?} is missing{why}", interpreter.to_string_lossy()))
}

/// Returns the file that execvp(3) would execute as `program`.
fn find(program: &OsStr) -> Option<PathBuf> {
    let is_program = |path: &PathBuf| {
        fs::metadata(path).is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
    };
    if program.as_bytes().contains(&b'/') {
        return Some(PathBuf::from(program)).filter(is_program);
    }
    let path = env::var_os("PATH")?;
    env::split_paths(&path).map(|directory| directory.join(program)).find(is_program)
}
