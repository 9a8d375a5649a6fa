//! Guesses what unknown words most likely mean.

use clap::{Arg, Command};

use super::Subcommand;
use crate::text::nearest::alike;

/// What an unknown first word may mean.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Suggestion {
    /// A subcommand.
    Subcommand(Subcommand),
    /// A word for running a command, which lockrun does without such a word.
    Run,
}

/// Other programs' names for what lockrun's subcommands do.
const OTHER_PROGRAMS_NAMES: [(&[&str], Subcommand); 7] = [
    (&["list", "ls", "show", "info", "ps", "stat", "who", "locks"], Subcommand::Status),
    (&["lock", "take", "get", "hold"], Subcommand::Acquire),
    (&["unlock", "free", "drop"], Subcommand::Release),
    (&["extend", "refresh", "keepalive"], Subcommand::Renew),
    (&["steal", "revoke", "kick", "force-unlock"], Subcommand::Break),
    (&["check", "test", "ping", "diagnose"], Subcommand::Doctor),
    (&["rm", "remove", "delete", "gc", "clean", "cleanup", "purge"], Subcommand::Prune),
];

/// Other programs' words for running a command.
const RUN: [&str; 4] = ["run", "exec", "with", "start"];

/// Options of flock(1), consul lock, etcdctl, timeout(1) and the like that lockrun lacks, and what to write instead.
const FOREIGN: [(&[&str], &str); 10] = [
    (
        &["--timeout", "--time-limit", "--timelimit"],
        "the longest wait for the lock is --wait DURATION, the longest run --max-runtime DURATION",
    ),
    (&["--once", "--once-a", "--once-every"], "did you mean --once-per DURATION?"),
    (&["--unlock", "-u"], "a lock is released when its command ends; one by hand, with lockrun release"),
    (&["--close", "-o", "--no-fork", "-F", "--fcntl"], "lockrun needs no such option: leave it out"),
    (&["--name", "--lock", "--lock-name", "--lockname", "--id"], "the lock is named with --key KEY"),
    (
        &["--endpoints", "--host", "--server", "--servers", "--url", "--redis", "--etcd", "--http-addr"],
        "the servers are named with --store URL",
    ),
    (
        &["--retry", "--retries", "--try", "--block", "--blocking"],
        "to wait for the lock, write --wait or --wait DURATION",
    ),
    (&["--no-wait", "--nowait", "--non-block", "--nonblocking", "--non-blocking"], "that is the default: --fail"),
    (&["--lease", "--lease-ttl", "--expire", "--expires", "--expiry"], "the length of the lease is --ttl DURATION"),
    (
        &["--child-exit-code", "--preserve-status", "--pass-stdin"],
        "lockrun ends as the command ended and gives it standard input: leave it out",
    ),
];

/// Returns what to write instead of another program's option, if it is known.
fn of_another_program(typed: &str) -> Option<&'static str> {
    FOREIGN.iter().find(|(options, _)| options.contains(&typed)).map(|(_, advice)| *advice)
}

/// Returns what an unknown first word most likely means, if that can be guessed.
pub fn suggestion_for(word: &str) -> Option<Suggestion> {
    if RUN.contains(&word) {
        return Some(Suggestion::Run);
    }
    let elsewhere =
        OTHER_PROGRAMS_NAMES.iter().find(|(words, _)| words.contains(&word)).map(|(_, subcommand)| *subcommand);
    // A word with other characters is a path or a program with an extension, not a slip.
    let is_word = word.chars().all(|letter| letter.is_ascii_alphabetic());
    let misspelt = || Subcommand::named(alike(word, Subcommand::ALL.map(Subcommand::name).into_iter())?.as_ref());
    let misspelt = || misspelt().filter(|_| is_word);
    elsewhere.or_else(misspelt).map(Suggestion::Subcommand)
}

/// Returns advice on the unknown option `typed` of `command`, if there is any, after a semicolon.
pub fn advice_on(command: &Command, typed: &str) -> String {
    let is_number = typed.strip_prefix('-').is_some_and(|rest| rest.bytes().all(|byte| byte.is_ascii_digit()));
    if is_number && typed.len() > 1 {
        return "; a number follows its option: to wait for five seconds, write -w 5".to_owned();
    }
    if let Some(advice) = of_another_program(typed) {
        return format!("; {advice}");
    }
    nearest_option(command, typed).map_or_else(String::new, |nearest| format!("; did you mean {nearest}?"))
}

/// Fails if `word`, which begins with one dash, is the name of a long option, with or without a value. Read as short
/// options, `-key=backup` would be another key.
pub fn check_dashes(command: &Command, word: &str) -> Result<(), String> {
    let name = word.split('=').next().unwrap_or_default();
    let (dashed, bare) = (format!("-{name}"), name.trim_start_matches('-'));
    if name.starts_with("--") || bare.len() < 3 {
        return Ok(());
    }
    if command.get_arguments().any(|arg| arg.get_long() == Some(bare)) {
        return Err(format!("unknown option {name}; did you mean {dashed}?"));
    }
    of_another_program(&dashed).map_or(Ok(()), |advice| Err(format!("unknown option {name}; {advice}")))
}

/// Returns whether a first word is most likely the lock's name, which comes first in flock(1) and consul lock: a lock
/// file, or a word before `--`.
pub fn looks_like_lock_name(word: &str, next: Option<&str>) -> bool {
    let ends = [".lock", ".lck", ".pid"].iter().any(|end| word.ends_with(end));
    let begins = ["/tmp/", "/run/", "/var/run/", "/var/lock/"].iter().any(|begin| word.starts_with(begin));
    ends || begins || next == Some("--")
}

/// Returns the long option of `command` that `typed` most likely stands for, with its dashes, if there is a similar
/// one.
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
            ("stats", Some(Suggestion::Subcommand(Subcommand::Status))),
            ("list", Some(Suggestion::Subcommand(Subcommand::Status))),
            ("aquire", Some(Suggestion::Subcommand(Subcommand::Acquire))),
            ("run", Some(Suggestion::Run)),
            ("./backup.sh", None),
            ("release.sh", None),
            ("rsync", None),
            ("true", None),
            ("", None),
        ] {
            assert_eq!(suggestion_for(word), meant, "{word}");
        }
    }

    #[test]
    fn words_from_elsewhere_are_none_of_ours() {
        for word in OTHER_PROGRAMS_NAMES.iter().flat_map(|(words, _)| *words).chain(&RUN) {
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
        assert!(advice_on(&command, "--timeout").contains("--wait"));
        assert!(advice_on(&command, "-5").contains("-w 5"));
        assert_eq!((advice_on(&command, "-"), advice_on(&command, "-z")), (String::new(), String::new()));
    }

    #[test]
    fn options_of_other_programs_are_none_of_ours() {
        let all = crate::cli::all();
        let commands: Vec<_> = [&all].into_iter().chain(all.get_subcommands()).collect();
        for typed in FOREIGN.iter().flat_map(|(options, _)| *options) {
            let is_ours = |arg: &Arg| match typed.strip_prefix("--") {
                Some(long) => arg.get_long_and_visible_aliases().is_some_and(|names| names.contains(&long)),
                None => arg.get_short().is_some_and(|short| typed.ends_with(short)),
            };
            assert!(!commands.iter().any(|command| command.get_arguments().any(is_ours)), "{typed}");
        }
    }

    #[test]
    fn long_options_with_one_dash_are_refused() {
        let command = crate::cli::command();
        for word in ["-key", "-key=k", "-skip", "-ttl=5", "-name", "-try=5s", "-child-exit-code"] {
            assert!(check_dashes(&command, word).is_err(), "{word}");
        }
        for word in ["-k", "-kk", "-kbackup", "-w5", "-vw", "-vk=x", "--key", "--key=k", "-c", "-", "--", "-k=ttl"] {
            assert_eq!(check_dashes(&command, word), Ok(()), "{word}");
        }
    }
}
