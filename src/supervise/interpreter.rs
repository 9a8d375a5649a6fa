//! Why executing an existing program fails with "no such file": its interpreter or loader is missing.

use std::env;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, Read as _};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

/// How much of a script's first line Linux reads, in bytes (`BINPRM_BUF_SIZE` in linux/binfmts.h).
const LINE_MAX: u64 = 256;

/// How many interpreters Linux executes one through the other (`exec_binprm` in fs/exec.c).
const INTERPRETERS: u32 = 5;

/// Returns why `program` could not be executed because something was not found; `None` if the program itself is
/// missing.
pub fn why_not_executed(program: &OsStr) -> Option<String> {
    Some(what_is_missing(&find(program)?, INTERPRETERS))
}

/// Returns what the executable file at `path` lacks, looking into at most `depth` interpreters.
fn what_is_missing(path: &Path, depth: u32) -> String {
    let first = read_first_line(path).unwrap_or_default();
    if first.starts_with(b"\x7fELF") {
        return "the loader that it needs is missing: it was built for another C library or another processor"
            .to_owned();
    }
    let Some(interpreter) = interpreter(&first).filter(|_| depth > 0) else {
        return "a file that it needs in order to start is missing".to_owned();
    };
    let named = format!("its interpreter {:?}", interpreter.to_string_lossy());
    if Path::new(interpreter).exists() {
        return format!("{named} cannot be executed: {}", what_is_missing(Path::new(interpreter), depth - 1));
    }
    let ends_as_on_windows = interpreter.as_bytes().ends_with(b"\r");
    let why = if ends_as_on_windows { "; its lines end as on Windows (CR LF): convert it with dos2unix" } else { "" };
    format!("{named} is missing{why}")
}

/// Reads as much of a file's first line as Linux does.
fn read_first_line(path: &Path) -> io::Result<Vec<u8>> {
    let mut first = Vec::new();
    File::open(path)?.take(LINE_MAX).read_to_end(&mut first)?;
    first.truncate(first.iter().position(|byte| *byte == b'\n').unwrap_or(first.len()));
    Ok(first)
}

/// Returns the interpreter that a script's first line names.
fn interpreter(line: &[u8]) -> Option<&OsStr> {
    let words = line.strip_prefix(b"#!")?.split(|byte| matches!(byte, b' ' | b'\t'));
    words.filter(|word| !word.is_empty()).map(OsStr::from_bytes).next()
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
