//! The most likely reason why COMMAND does not exist or cannot be executed, for messages.

use std::env;
use std::ffi::OsStr;
use std::path::Path;

use nix::errno::Errno;

use crate::text::escape::escaped;

/// The longest PATH that a message repeats. cron's PATH is shorter, and the first thing to check.
const PATH_SHOWN: usize = 120;

/// A shell's built-in commands that are not programs, and words that begin its compound commands.
const OF_A_SHELL: [&str; 20] = [
    ".", ":", "{", "(", "!", "[[", "cd", "eval", "exec", "export", "for", "if", "set", "source", "trap", "ulimit",
    "umask", "unset", "until", "while",
];

/// Units of time: as a separate word, the second half of a duration that was written in two words.
const UNITS: [&str; 16] = [
    "ms", "s", "sec", "second", "seconds", "m", "min", "minute", "minutes", "h", "hour", "hours", "d", "day", "days",
    "w",
];

/// Returns a hint at what the user most likely meant by a program of this name, which does not exist. `alone`: COMMAND
/// is this one word.
pub(super) fn meant_by(program: &str, alone: bool) -> Option<&'static str> {
    let name = program.split('=').next().unwrap_or_default();
    let is_name = !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
    Some(if alone && program.contains([' ', '\t', '\n']) {
        "write the command's words apart, or pass a command line for a shell with -c"
    } else if OF_A_SHELL.contains(&program) {
        "it is a shell builtin: pass the command line to a shell with -c"
    } else if program.contains('=') && is_name {
        "to set a variable, write env before it, or pass a command line for a shell with -c"
    } else if program.starts_with('-') {
        "lockrun's own options are written before --"
    } else if UNITS.contains(&program) {
        "a duration is one word, such as 30s or '2h 30m'"
    } else {
        return None;
    })
}

/// Returns where a program was searched for, if its name contains no slash.
pub(super) fn path(program: &OsStr) -> Option<String> {
    if program.as_encoded_bytes().contains(&b'/') {
        return None;
    }
    let path = env::var_os("PATH")?;
    let shown = path.to_string_lossy();
    Some(if shown.len() > PATH_SHOWN { "it is not in PATH".to_owned() } else { format!("PATH is {}", escaped(&shown)) })
}

/// Returns why a file cannot be executed, if that says more than the system's own message.
pub(super) fn why_forbidden(program: &OsStr, errno: Errno) -> Option<&'static str> {
    let file = Path::new(program);
    if errno != Errno::EACCES || !program.as_encoded_bytes().contains(&b'/') {
        return None;
    }
    let found = file.metadata().ok()?;
    if found.is_dir() {
        return Some("it is a directory");
    }
    let is_executable = std::os::unix::fs::PermissionsExt::mode(&found.permissions()) & 0o111 != 0;
    (!is_executable).then_some("it is not executable: chmod +x")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_program_is_recognised() {
        for (program, alone, wanted) in [
            ("echo hi", true, Some("words apart")),
            ("echo hi", false, None),
            ("cd", false, Some("a shell builtin")),
            ("LC_ALL=C", false, Some("write env before it")),
            ("a-b=c", false, None),
            ("--wait", false, Some("before --")),
            ("day", false, Some("one word")),
            ("report.sh", true, None),
            ("", true, None),
        ] {
            let meant = meant_by(program, alone);
            assert_eq!(meant.is_some(), wanted.is_some(), "{program}");
            assert!(meant.unwrap_or_default().contains(wanted.unwrap_or_default()), "{program}: {meant:?}");
        }
        assert_eq!(path(OsStr::new("./x")), None);
    }
}
