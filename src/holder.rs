//! Who runs: what a store keeps about a holder, so that people can find it.

use std::ffi::OsString;
use std::fs;
use std::process;

use nix::unistd::{gethostname, getuid};
use serde::{Deserialize, Serialize};

/// The most that is kept of a command line, in bytes.
const COMMAND_MAX: usize = 512;

/// A run, as others see it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Holder {
    /// The machine's name.
    pub host: String,
    /// lockrun's process id there.
    pub pid: u32,
    /// The user's name, or `uid N`.
    pub user: String,
    /// The command line, shortened.
    pub command: String,
}

impl Holder {
    /// This process, about to run `argv`.
    pub fn this_run(argv: &[OsString]) -> Self {
        Holder {
            host: gethostname().map_or_else(|_| "unknown host".into(), |name| name.to_string_lossy().into_owned()),
            pid: process::id(),
            user: user_name(),
            command: command_line(argv),
        }
    }
}

/// The words as one line, at most [`COMMAND_MAX`] bytes of it. A word with a space is quoted, to be read, not to be run.
fn command_line(argv: &[OsString]) -> String {
    let mut line = String::new();
    for word in argv {
        let word = word.to_string_lossy();
        let separator = if line.is_empty() { "" } else { " " };
        let quote = if word.is_empty() || word.contains(char::is_whitespace) { "'" } else { "" };
        line.push_str(separator);
        line.push_str(quote);
        line.push_str(&word);
        line.push_str(quote);
        if line.len() > COMMAND_MAX {
            line.truncate(line.floor_char_boundary(COMMAND_MAX));
            line.push('…');
            break;
        }
    }
    line
}

/// The user's name out of /etc/passwd. Users that only a directory service knows are told by their number: a static
/// program cannot ask it, and a lock must not wait for it.
fn user_name() -> String {
    let uid = getuid().to_string();
    let passwd = fs::read("/etc/passwd").unwrap_or_default();
    passwd
        .split(|byte| *byte == b'\n')
        .map(|line| line.split(|byte| *byte == b':').collect::<Vec<_>>())
        .find(|fields| fields.get(2) == Some(&uid.as_bytes()))
        .map_or_else(|| format!("uid {uid}"), |fields| String::from_utf8_lossy(fields[0]).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_line_is_readable_and_short() {
        let words = |words: &[&str]| words.iter().map(OsString::from).collect::<Vec<_>>();
        assert_eq!(command_line(&words(&["sh", "-c", "echo a b", ""])), "sh -c 'echo a b' ''");
        let long = command_line(&words(&["echo", &"ж".repeat(1000)]));
        assert!(long.len() <= COMMAND_MAX + '…'.len_utf8() && long.ends_with("ж…"), "{long}");
    }
}
