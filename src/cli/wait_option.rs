//! Prepares the command line for clap, which cannot express that `--wait` takes the next word only if it is a duration.

use std::ffi::OsString;

use clap::{Arg, Command};

use super::name;
use crate::text::duration;

/// Writes `-w 5`, `-w5` and `--wait 5` as `--wait=5`, where the word is a duration and stands among lockrun's own
/// options. A word that is not a duration remains the command. Everything from `--` or the first word that is not an option
/// belongs to COMMAND and is not changed.
pub fn normalize_wait(command: &Command, args: Vec<OsString>) -> Vec<OsString> {
    let takes_value = |find: &dyn Fn(&Arg) -> bool| {
        command.get_arguments().find(|arg| find(arg)).is_some_and(|arg| arg.get_action().takes_values())
    };
    let mut normal = Vec::with_capacity(args.len());
    let mut args = args.into_iter().peekable();
    while let Some(word) = args.next() {
        let text = word.to_str().unwrap_or_default();
        let mut waits = false;
        let mut wants_value = false;
        if text == "--" || !text.starts_with('-') || text == "-" {
            normal.push(word);
            break;
        } else if let Some(long) = text.strip_prefix("--") {
            waits = long == name::WAIT;
            wants_value = !long.contains('=') && takes_value(&|arg| arg.get_long() == Some(long));
        } else if let Some((at, short)) =
            text[1..].char_indices().find(|(_, short)| takes_value(&|arg| arg.get_short() == Some(*short)))
        {
            let (before, value) = text[1..].split_at(at);
            let value = &value[short.len_utf8()..];
            wants_value = value.is_empty();
            if short == 'w' {
                if !before.is_empty() {
                    normal.push(format!("-{before}").into());
                }
                let value = value.strip_prefix('=').unwrap_or(value);
                if value.is_empty() {
                    waits = true;
                } else {
                    normal.push(format!("--{}={value}", name::WAIT).into());
                    continue;
                }
            }
        }
        if waits {
            // A word in front of `--` cannot be the command: if it is not a duration either, the value's parser reports it.
            let before_dashes = args.clone().nth(1).is_some_and(|after| after == "--");
            let is_value = |next: &OsString| {
                let text = next.to_str().unwrap_or_default();
                duration::parse(text).is_ok() || (before_dashes && !text.starts_with('-'))
            };
            let value = args.next_if(is_value);
            normal.push(value.map_or_else(
                || OsString::from("--wait"),
                |value| {
                    let mut option = OsString::from("--wait=");
                    option.push(value);
                    option
                },
            ));
            continue;
        }
        normal.push(word);
        if wants_value {
            normal.extend(args.next());
        }
    }
    normal.extend(args);
    normal
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::command;

    fn normalized(words: &[&str]) -> Vec<String> {
        let words = words.iter().map(OsString::from).collect();
        normalize_wait(&command(), words).into_iter().map(|word| word.into_string().expect("is UTF-8")).collect()
    }

    #[test]
    fn wait_takes_the_next_word_only_if_it_is_a_duration() {
        for (typed, meant) in [
            (&["-k", "a", "--wait", "5m", "run"][..], &["-k", "a", "--wait=5m", "run"][..]),
            (&["-k", "a", "-w", "0.5", "run"], &["-k", "a", "--wait=0.5", "run"]),
            (&["-k", "a", "-w5", "run"], &["-k", "a", "--wait=5", "run"]),
            (&["-k", "a", "-vw5", "run"], &["-k", "a", "-v", "--wait=5", "run"]),
            (&["-k", "a", "-vw", "5", "run"], &["-k", "a", "-v", "--wait=5", "run"]),
            (&["-k", "a", "--wait", "run", "-v"], &["-k", "a", "--wait", "run", "-v"]),
            (&["-k", "a", "-w", "--", "5"], &["-k", "a", "--wait", "--", "5"]),
            (&["-k", "a", "--wait=5", "run"], &["-k", "a", "--wait=5", "run"]),
            (&["-k", "a", "-w", "5x", "--", "run"], &["-k", "a", "--wait=5x", "--", "run"]),
            (&["-k", "a", "-w", "-v", "--", "run"], &["-k", "a", "--wait", "-v", "--", "run"]),
        ] {
            assert_eq!(normalized(typed), meant, "{typed:?}");
        }
    }

    #[test]
    fn words_of_the_command_and_values_of_options_are_not_touched() {
        for words in [
            &["-k", "--wait", "--", "x"][..],
            &["--key", "-w", "run", "-w", "5"],
            &["-kw", "run", "--wait", "5"],
            &["-k", "a", "run", "--wait", "5"],
            &["-k", "a", "--", "-w", "5"],
            &["-k", "a", "-c", "-w", "-v"],
        ] {
            assert_eq!(normalized(words), words);
        }
    }
}
