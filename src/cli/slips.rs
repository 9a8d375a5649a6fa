//! What was most likely meant by words that lockrun does not know.

use clap::{Arg, Command};

use super::Subcommand;
use crate::text::nearest::alike;

/// What a first word may have been meant to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Meant {
    /// One of lockrun's other commands.
    Subcommand(Subcommand),
    /// A word for running a command, which lockrun does without one.
    Run,
}

/// Words by which other programs call what lockrun's other commands do.
const ELSEWHERE: [(&[&str], Subcommand); 7] = [
    (&["list", "ls", "show", "info", "ps", "stat", "who", "locks"], Subcommand::Status),
    (&["lock", "take", "get", "hold"], Subcommand::Acquire),
    (&["unlock", "free", "drop"], Subcommand::Release),
    (&["extend", "refresh", "keepalive"], Subcommand::Renew),
    (&["steal", "revoke", "kick", "force-unlock"], Subcommand::Break),
    (&["check", "test", "ping", "diagnose"], Subcommand::Doctor),
    (&["rm", "remove", "delete", "gc", "clean", "cleanup", "purge"], Subcommand::Prune),
];

/// The same for running a command.
const RUN: [&str; 4] = ["run", "exec", "with", "start"];

/// Returns what was most likely meant by a first word that is none of lockrun's commands, if anything was.
pub fn meant_by(word: &str) -> Option<Meant> {
    if RUN.contains(&word) {
        return Some(Meant::Run);
    }
    let elsewhere = ELSEWHERE.iter().find(|(words, _)| words.contains(&word)).map(|(_, subcommand)| *subcommand);
    // A path, or a program with an extension, is one.
    let is_word = word.chars().all(|letter| letter.is_ascii_alphabetic());
    let misspelt = || Subcommand::named(alike(word, Subcommand::ALL.map(Subcommand::name).into_iter())?.as_ref());
    let misspelt = || misspelt().filter(|_| is_word);
    elsewhere.or_else(misspelt).map(Meant::Subcommand)
}

/// Returns the long option of `command` that `typed` was most likely meant to be, with its dashes, if it is like one.
pub fn nearest_option(command: &Command, typed: &str) -> Option<String> {
    let typed = typed.strip_prefix("--").or(typed.strip_prefix('-').filter(|word| word.len() > 1))?;
    let names = command.get_arguments().filter(|arg| !arg.is_hide_set()).filter_map(Arg::get_long);
    alike(typed, names).map(|name| format!("--{name}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_recognised() {
        for (word, meant) in [
            ("stats", Some(Meant::Subcommand(Subcommand::Status))),
            ("list", Some(Meant::Subcommand(Subcommand::Status))),
            ("aquire", Some(Meant::Subcommand(Subcommand::Acquire))),
            ("run", Some(Meant::Run)),
            ("./backup.sh", None),
            ("release.sh", None),
            ("rsync", None),
            ("true", None),
            ("", None),
        ] {
            assert_eq!(meant_by(word), meant, "{word}");
        }
    }

    #[test]
    fn words_from_elsewhere_are_none_of_ours() {
        for word in ELSEWHERE.iter().flat_map(|(words, _)| *words).chain(&RUN) {
            assert_eq!(Subcommand::named(word.as_ref()), None, "{word}");
        }
    }

    #[test]
    fn options_are_recognised() {
        let command = crate::cli::command();
        for (typed, meant) in [
            ("--skipp", Some("--skip")),
            ("--stoer", Some("--store")),
            ("--slot", Some("--slots")),
            ("--keys", Some("--key")),
            ("--max-runtme", Some("--max-runtime")),
            ("-key", Some("--key")),
            ("--colour", None),
            ("-z", None),
            ("--", None),
        ] {
            assert_eq!(nearest_option(&command, typed).as_deref(), meant, "{typed}");
        }
    }
}
