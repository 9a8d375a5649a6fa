//! What a store records about a holder, so that people can find the process.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::parent_id;
use std::process;

use nix::unistd::{Uid, gethostname, getuid};
use serde::{Deserialize, Serialize};

use crate::sys::accounts;
use crate::text::escape::{escaped, without_credentials, without_secrets, word_without_credentials};

/// The longest command line that is recorded, in bytes.
const COMMAND_MAX: usize = 512;

/// The longest label, in bytes.
const LABEL_MAX: usize = 200;

/// A holder or waiter, as others see it.
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
    /// The user's own words for who it is, or why. People are shown these in place of the user and the command line.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
}

/// Reads a label, and masks passwords of URLs in it. Returns `None` for an empty one: an unset variable describes
/// nothing. The error says what is wrong.
pub fn read_label(text: &str) -> Result<Option<String>, String> {
    let text = without_credentials(text);
    if text.len() > LABEL_MAX {
        return Err(format!("is longer than {LABEL_MAX} bytes"));
    }
    if text.contains(char::is_control) {
        return Err("has a control character in it".to_owned());
    }
    Ok(Some(text).filter(|text| !text.is_empty()))
}

impl Holder {
    /// Returns whether nothing is known about the holder.
    pub fn is_unknown(&self) -> bool {
        *self == Holder::default()
    }

    /// Describes this process, which will run `argv`, with the user's `label` if there is one.
    pub fn this_run(argv: &[OsString], label: Option<String>) -> Self {
        let command = command_line(argv);
        Holder { host: host_name(), pid: process::id(), user: user_name(getuid()), command, label }
    }

    /// Describes the process that called this one, for a lock acquired by hand: this process will soon be gone.
    pub fn caller(label: Option<String>) -> Self {
        Holder { label, ..Self::of_process(parent_id()) }
    }

    /// Describes the local process `pid` as far as /proc shows it. For a lockrun process, the command is the one that
    /// it runs.
    pub fn of_process(pid: u32) -> Self {
        let owner = fs::metadata(format!("/proc/{pid}")).map(|process| Uid::from_raw(process.uid()));
        let words = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let words: Vec<OsString> = words
            .split(|byte| *byte == 0)
            .map(|word| OsStr::from_bytes(word).to_owned())
            .filter(|word| !word.is_empty())
            .collect();
        let command = words.iter().position(|word| word == "--").map_or(&words[..], |at| &words[at + 1..]);
        Holder {
            host: host_name(),
            pid,
            user: owner.map_or_else(|_| "unknown user".into(), user_name),
            command: command_line(command),
            label: None,
        }
    }
}

/// Returns the machine's name.
pub fn host_name() -> String {
    gethostname().map_or_else(|_| "unknown host".into(), |name| name.to_string_lossy().into_owned())
}

/// Formats the holder as in `web-1 pid 4242 (deploy: ./report.sh)`, or with a label as in `ci-3 pid 18612 (pipeline 4711)`.
impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_unknown() {
            return f.write_str("a run that has left no name");
        }
        let Holder { host, pid, user, command, label } = self;
        match label {
            Some(label) => write!(f, "{} pid {pid} ({})", escaped(host), escaped(label)),
            None => write!(f, "{} pid {pid} ({}: {})", escaped(host), escaped(user), escaped(command)),
        }
    }
}

/// Joins the words into a line of at most [`COMMAND_MAX`] bytes, without lockrun's secrets. A word with a space is
/// quoted for people, not for a shell.
fn command_line(argv: &[OsString]) -> String {
    let mut line = String::new();
    for word in argv {
        let word = word_without_credentials(&word.to_string_lossy());
        let separator = if line.is_empty() { "" } else { " " };
        let quote = if word.is_empty() || word.contains(char::is_whitespace) { "'" } else { "" };
        line.push_str(separator);
        line.push_str(quote);
        line.push_str(&word);
        line.push_str(quote);
        if line.len() > COMMAND_MAX {
            break;
        }
    }
    // Before the line is cut: half a token would be shown.
    let mut line = without_secrets(&line);
    if line.len() > COMMAND_MAX {
        line.truncate(line.floor_char_boundary(COMMAND_MAX));
        line.push('…');
    }
    line
}

/// Returns the user's name. A user known only to a directory service appears as a number.
fn user_name(uid: Uid) -> String {
    accounts::user_name(uid).unwrap_or_else(|| format!("uid {uid}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_label_is_short_and_plain() {
        assert_eq!(read_label("pipeline 4711 by ana"), Ok(Some("pipeline 4711 by ana".to_owned())));
        assert_eq!(read_label(""), Ok(None));
        assert_eq!(read_label("to redis://u:secret@h now"), Ok(Some("to redis://***@h now".to_owned())));
        assert!(read_label(&"x".repeat(LABEL_MAX)).is_ok() && read_label(&"x".repeat(LABEL_MAX + 1)).is_err());
        assert!(read_label("a\nb").is_err());
    }

    #[test]
    fn a_command_line_is_readable_and_short() {
        let words = |words: &[&str]| words.iter().map(OsString::from).collect::<Vec<_>>();
        assert_eq!(command_line(&words(&["sh", "-c", "echo a b", ""])), "sh -c 'echo a b' ''");
        let longest = "x".repeat(COMMAND_MAX);
        assert_eq!(command_line(&words(&[&longest])), longest);
        assert_eq!(command_line(&words(&[&longest, "y"])), format!("{longest}…"));
        let long = command_line(&words(&["echo", &"ж".repeat(1000)]));
        assert!(long.len() <= COMMAND_MAX + '…'.len_utf8() && long.ends_with("ж…"), "{long}");
    }
}
