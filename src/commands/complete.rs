//! Completes the word being typed, for the shells' completions.
//!
//! The scripts in `completions/` call this. They know how their shell completes files and other commands.

use std::ffi::{OsStr, OsString};
use std::fmt::Write as _;
use std::process::{Command as Process, Stdio};

use clap::{Arg, Command, ValueHint};

use crate::cli::{self, Subcommand, name};
use crate::store;

/// What the word can be.
#[derive(Debug, PartialEq, Eq)]
enum Answer {
    /// A word of COMMAND, which begins at this index.
    Command(usize),
    /// A file.
    File,
    /// One of these words, with descriptions.
    Words(Vec<(String, String)>),
}

/// Returns the answer for a shell's script to these words, the last of which is being typed: a line `command N`, `file`
/// or `words`. After `words` comes a line for each word, with a tab before its description. N is the number of words in
/// front of COMMAND, `lockrun` included.
pub fn answer(words: &[OsString]) -> String {
    match fitting(words) {
        Answer::Command(at) => format!("command {}\n", at + 1),
        Answer::File => "file\n".into(),
        Answer::Words(words) => words.iter().fold("words\n".into(), |mut text, (word, help)| {
            let _ = writeln!(text, "{word}\t{help}");
            text
        }),
    }
}

fn fitting(words: &[OsString]) -> Answer {
    let Some((current, before)) = words.split_last() else { return Answer::Words(Vec::new()) };
    let current = current.to_string_lossy();
    let first = before.first().map(OsString::as_os_str);
    let subcommand = first.and_then(Subcommand::named);
    if first.is_some_and(|first| first == cli::HELP) {
        return Answer::Words(subcommands(&current));
    }
    if first.is_some_and(|first| !first.as_encoded_bytes().starts_with(b"-")) && subcommand.is_none() {
        return Answer::Words(Vec::new());
    }
    let definition = subcommand.map_or_else(cli::documented, Subcommand::definition);
    let skipped = usize::from(subcommand.is_some());
    let expected = cli::expected_after(&definition, &before[skipped..]);
    let words = match expected {
        cli::Expected::Command(at) if cli::takes_command(&definition) => return Answer::Command(at + skipped),
        cli::Expected::Command(_) => keys(before, &current, ""),
        cli::Expected::Value(arg) => return of_value(arg, &current, "", before),
        cli::Expected::Option => match split_attached(&definition, &current) {
            Some((arg, option, value)) => return of_value(arg, value, option, before),
            None if before.is_empty() && !current.starts_with('-') => subcommands(&current),
            None if current.starts_with('-') => options(&definition, &current),
            None if cli::takes_command(&definition) => return Answer::Command(before.len()),
            None => keys(before, &current, ""),
        },
    };
    Answer::Words(words)
}

/// Splits `--option=value`: returns the option, its text including the `=`, and the value.
fn split_attached<'a>(definition: &'a Command, word: &'a str) -> Option<(&'a Arg, &'a str, &'a str)> {
    let at = word.find('=')?;
    let long = word[..at].strip_prefix("--")?;
    let arg = definition.get_arguments().find(|arg| arg.get_long() == Some(long))?;
    Some((arg, &word[..=at], &word[at + 1..]))
}

/// Returns what the value of an option can be; `tie` precedes it in the same word.
fn of_value(arg: &Arg, typed: &str, tie: &str, before: &[OsString]) -> Answer {
    if arg.get_value_hint() == ValueHint::FilePath {
        return Answer::File;
    }
    if arg.get_id() == name::KEY {
        return Answer::Words(keys(before, typed, tie));
    }
    let values: Vec<(String, String)> = if arg.get_id() == name::STORE {
        store::schemes().map(|scheme| (scheme.to_owned(), String::new())).collect()
    } else {
        let help = |value: &clap::builder::PossibleValue| value.get_help().map(ToString::to_string).unwrap_or_default();
        arg.get_possible_values().iter().map(|value| (value.get_name().to_owned(), help(value))).collect()
    };
    let fits = values.into_iter().filter(|(value, _)| value.starts_with(typed));
    Answer::Words(fits.map(|(value, help)| (format!("{tie}{value}"), help)).collect())
}

fn options(definition: &Command, typed: &str) -> Vec<(String, String)> {
    let described = definition.get_arguments().filter_map(|arg| Some((arg.get_long()?, arg.get_help()?)));
    let all = described.map(|(long, help)| (format!("--{long}"), help.to_string()));
    let help = ("--help".to_owned(), "Print the help".to_owned());
    all.chain([help]).filter(|(option, _)| option.starts_with(typed)).collect()
}

fn subcommands(typed: &str) -> Vec<(String, String)> {
    let about = |subcommand: Subcommand| subcommand.definition().get_about().map(ToString::to_string);
    let all = Subcommand::ALL.map(|subcommand| (subcommand.name().to_owned(), about(subcommand).unwrap_or_default()));
    let help = (cli::HELP.to_owned(), "Print the help of lockrun or of one of these".to_owned());
    all.into_iter().chain([help]).filter(|(name, _)| name.starts_with(typed)).collect()
}

/// Returns the names of the store's locks, if the store answers soon.
fn keys(before: &[OsString], typed: &str, tie: &str) -> Vec<(String, String)> {
    let mut status = Process::new("/proc/self/exe");
    status.args(["status", "--json", "--store-timeout", "1s"]).args(store_options(before)).stderr(Stdio::null());
    let listed = status.output().map(|output| output.stdout).unwrap_or_default();
    let locks: Vec<serde_json::Value> = serde_json::from_slice(&listed).unwrap_or_default();
    // The scripts read one word per line, and quote it as their shell does.
    let is_plain = |key: &&str| key.starts_with(typed) && !key.chars().any(char::is_control);
    let state = |lock: &serde_json::Value| if lock["held"] == true { "held" } else { "free" };
    let named = |lock: &serde_json::Value| {
        let key = lock["key"].as_str().filter(is_plain)?;
        Some((format!("{tie}{key}"), state(lock).to_owned()))
    };
    locks.iter().filter_map(named).collect()
}

/// Returns the options among these words that name the store.
fn store_options(words: &[OsString]) -> Vec<OsString> {
    let is_place = |word: &OsStr| {
        let word = word.to_string_lossy();
        let option = word.split('=').next().unwrap_or_default();
        option == "--store" || option == "--store-file"
    };
    let Some(at) = words.iter().position(|word| is_place(word)) else { return Vec::new() };
    let is_tied = words[at].as_encoded_bytes().contains(&b'=');
    words[at..].iter().take(if is_tied { 1 } else { 2 }).cloned().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fit(line: &str) -> Answer {
        fitting(&line.split(' ').map(OsString::from).collect::<Vec<_>>())
    }

    fn words(line: &str) -> Vec<String> {
        match fit(line) {
            Answer::Words(words) => words.into_iter().map(|(word, _)| word).collect(),
            other => panic!("{line}: {other:?}"),
        }
    }

    #[test]
    fn commands_begin_where_a_run_would_take_them() {
        for (line, at) in [
            ("-k x -- ec", 3),
            ("-k x ec", 2),
            ("-kx -v ec", 2),
            ("--wait -k x -- make ", 4),
            ("--wait 5m -k x make -", 4),
            ("-k x --", 2),
            ("reserve -k x --from 1 -- make al", 6),
        ] {
            let is_word = line.ends_with("--");
            let expected = if is_word { None } else { Some(Answer::Command(at)) };
            assert_eq!(Some(fit(line)).filter(|_| !is_word), expected, "{line}");
        }
    }

    #[test]
    fn values_options_and_subcommands() {
        assert_eq!(words("--on-lost "), ["kill", "warn"]);
        assert_eq!(words("-k x --descendants w"), ["wait"]);
        assert_eq!(words("--on-lost=k"), ["--on-lost=kill"]);
        assert!(words("--store redis+").contains(&"redis+cluster://".to_owned()));
        assert_eq!(words("sta"), ["status"]);
        assert_eq!(words("help re"), ["renew", "release", "reserve"]);
        assert_eq!(words("--max-w"), ["--max-waiting"]);
        assert!(words("status --").contains(&"--metrics".to_owned()));
        assert_eq!(words("nonsense "), Vec::<String>::new());
        assert_eq!(fit("--events "), Answer::File);
        assert_eq!(fit("--store-file=/et"), Answer::File);
    }
}
