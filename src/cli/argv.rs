//! Prepares the command line for clap, which cannot express that `--wait` takes the next word only if it is a duration.
//! Refuses words that clap would read as another key or command than intended.

use std::ffi::{OsStr, OsString};

use clap::{Arg, Command};

use super::name;
use super::subcommands::Subcommand;
use super::typos::check_dashes;
use crate::text::duration;
use crate::text::escape::{escaped, is_plain_word, without_value};

/// Writes `-w 5`, `-w5` and `--wait 5` as `--wait=5` if the word is a duration and stands among lockrun's own options.
/// A word that is not a duration remains the command. Everything from `--`, or from the first word of COMMAND, stays
/// unchanged. A subcommand that runs no COMMAND takes options behind its key, too.
///
/// Fails if a word after an option most likely means something else than clap would read.
pub fn normalize(command: &Command, args: Vec<OsString>) -> Result<Vec<OsString>, String> {
    let is_run = takes_command(command);
    let mut normal = Vec::with_capacity(args.len());
    let mut args = args.into_iter().peekable();
    while let Some(word) = args.next() {
        // Bytes that are not UTF-8 become U+FFFD here, and no other character changes. A word that is passed on keeps
        // its bytes, but for a value that is attached to a short option.
        let text = &*word.to_string_lossy().into_owned();
        let is_option = text.starts_with('-') && text != "-";
        if text == "--" || !is_option {
            normal.push(word);
            if text == "--" || is_run {
                break;
            }
            continue;
        }
        check_dashes(command, text)?;
        let Some(Typed { arg, spelled, before, attached }) = Typed::in_word(text, command) else {
            normal.push(word);
            continue;
        };
        if !has_optional_value(arg) {
            if attached.is_empty() {
                let value = args.next();
                check_value(command, arg, &spelled, value.as_deref())?;
                normal.extend([word].into_iter().chain(value));
            } else {
                normal.push(word);
            }
            continue;
        }
        if !before.is_empty() {
            normal.push(format!("-{before}").into());
        }
        // An empty value after `=` comes from an unset variable; the value's parser reports it.
        let tied = attached.strip_prefix('=');
        let mut value = tied.or(Some(attached).filter(|value| !value.is_empty())).map(OsString::from);
        if value.is_none() && arg.get_id() == name::WAIT {
            // A word before `--` cannot be the command: if it is not a duration, the value's parser reports it.
            let before_dashes = is_run && args.clone().nth(1).is_some_and(|after| after == "--");
            value = args.next_if(|next| {
                let text = next.to_string_lossy();
                duration::parse(&text).is_ok() || (before_dashes && !text.starts_with('-'))
            });
        }
        let mut option = OsString::from(format!("--{}", arg.get_id()));
        if let Some(value) = value {
            option.push("=");
            option.push(value);
        } else {
            check_command(&spelled, args.peek().map(OsString::as_os_str), is_run)?;
        }
        normal.push(option);
    }
    normal.extend(args);
    Ok(normal)
}

/// What comes next after some words.
pub enum Expected<'a> {
    /// An option, the first word of COMMAND, or another word that is not an option.
    Option,
    /// The value of this option.
    Value(&'a Arg),
    /// A word of COMMAND, or without one a word behind `--`; these words begin at this index.
    Command(usize),
}

/// Returns what comes next after these words, which follow `lockrun` or the name of a subcommand, in the command line
/// of `command`.
pub fn expected_after<'a>(command: &'a Command, words: &[OsString]) -> Expected<'a> {
    let mut at = 0;
    while let Some(word) = words.get(at) {
        let text = word.to_string_lossy();
        if text == "--" {
            return Expected::Command(at + 1);
        }
        let is_option = text.starts_with('-') && text != "-";
        if !is_option && takes_command(command) {
            return Expected::Command(at);
        }
        at += 1;
        if !is_option {
            continue;
        }
        let Some(Typed { arg, attached: "", .. }) = Typed::in_word(&text, command) else { continue };
        let id = arg.get_id();
        if has_optional_value(arg) {
            let is_duration = |word: &OsString| duration::parse(&word.to_string_lossy()).is_ok();
            at += usize::from(id == name::WAIT && words.get(at).is_some_and(is_duration));
        } else if at == words.len() {
            return command.get_arguments().find(|arg| arg.get_id() == id).map_or(Expected::Option, Expected::Value);
        } else {
            at += 1;
        }
    }
    Expected::Option
}

/// Returns whether a COMMAND ends this command line.
pub fn takes_command(command: &Command) -> bool {
    command.get_arguments().any(|arg| arg.get_id() == name::COMMAND)
}

/// Returns where a subcommand stands behind options, if one does. It cannot be COMMAND if no key is named before it.
pub fn subcommand_after_options(command: &Command, words: &[OsString]) -> Option<usize> {
    if !words.iter().any(|word| Subcommand::named(word).is_some()) {
        return None;
    }
    let Expected::Command(at) = expected_after(command, words) else { return None };
    let names_key = |word: &OsString| {
        let text = word.to_string_lossy();
        let is_key = || Typed::in_word(&text, command).is_some_and(|typed| typed.arg.get_id() == name::KEY);
        text.starts_with('-') && (text == "--" || text.starts_with("--key=") || is_key())
    };
    let is_subcommand = Subcommand::named(words.get(at)?).is_some();
    (is_subcommand && !words[..at].iter().any(names_key)).then_some(at)
}

/// An option that takes a value, as it was typed.
struct Typed<'a> {
    arg: &'a Arg,
    /// The option without its value, as in `--key` or `-k`.
    spelled: String,
    /// The letters before it in the same word: options without values.
    before: &'a str,
    /// The rest of the same word. If it is empty, the next word may be the value.
    attached: &'a str,
}

impl<'a> Typed<'a> {
    /// Returns the option in `word`, which begins with `-`. Returns `None` if it takes no value, or is a long option
    /// with its value.
    fn in_word(word: &'a str, command: &'a Command) -> Option<Self> {
        let taking_values = || command.get_arguments().filter(|arg| arg.get_action().takes_values());
        if let Some(long) = word.strip_prefix("--") {
            let arg = taking_values().find(|arg| arg.get_long() == Some(long))?;
            return Some(Typed { arg, spelled: word.to_owned(), before: "", attached: "" });
        }
        let letters = &word[1..];
        letters.char_indices().find_map(|(at, letter)| {
            let arg = taking_values().find(|arg| arg.get_short() == Some(letter))?;
            let attached = &letters[at + letter.len_utf8()..];
            Some(Typed { arg, spelled: format!("-{letter}"), before: &letters[..at], attached })
        })
    }
}

/// Returns whether the option's value is optional.
fn has_optional_value(arg: &Arg) -> bool {
    arg.get_num_args().is_some_and(|count| count.min_values() == 0)
}

/// Fails if the word after an option is most likely the next option, not the value, because the value was an unset
/// variable.
fn check_value(command: &Command, arg: &Arg, spelled: &str, value: Option<&OsStr>) -> Result<(), String> {
    let Some(value) = value.filter(|value| value.as_encoded_bytes().starts_with(b"-")) else { return Ok(()) };
    let is_separator = value == "--";
    if arg.is_allow_hyphen_values_set() && !is_separator {
        return Ok(());
    }
    let id = arg.get_id();
    let word = value.to_string_lossy();
    let next = match word.split('=').next().unwrap_or_default() {
        name if name == "-" || name == "--" => format!("is {name}"),
        name if is_option(command, name) || is_option(&super::command(), name) => format!("is the option {name}"),
        // Do not repeat it: it may be a value after all, and a secret.
        _ => "begins with -".to_owned(),
    };
    let how = if arg.is_allow_hyphen_values_set() {
        String::new()
    } else {
        format!("; write --{id}=-x for a {id} that begins with -")
    };
    Err(format!("{spelled} was given no value: the next word {next} (an unset variable?){how}"))
}

/// Returns whether `word` is an option of `command`, without a value.
fn is_option(command: &Command, word: &str) -> bool {
    let is = |arg: &Arg| match word.strip_prefix("--") {
        Some(long) => arg.get_long() == Some(long),
        None => arg.get_short().is_some_and(|short| word.strip_prefix('-') == Some(short.to_string().as_str())),
    };
    command.get_arguments().any(is)
}

/// Fails if the word after an option without a value looks like that value, but would be taken for the command.
fn check_command(spelled: &str, next: Option<&OsStr>, is_run: bool) -> Result<(), String> {
    let Some(next) = next.filter(|next| next.as_encoded_bytes().first().is_some_and(u8::is_ascii_digit)) else {
        return Ok(());
    };
    let text = next.to_string_lossy();
    let word = shown(next);
    let why = match duration::parse(&text) {
        Ok(_) => format!("its duration is written {spelled}={word}"),
        Err(why) => without_value(&text, &why),
    };
    let how = if is_run { format!("; a command of this name is written {spelled} -- {word}") } else { String::new() };
    Err(format!("{spelled}: {}{how}", escaped(&why)))
}

/// Formats a word of the command line for a message: itself, unless it may be the address of a store.
fn shown(word: &OsStr) -> String {
    let word = word.to_string_lossy();
    if is_plain_word(&word) { escaped(&word) } else { "COMMAND".to_owned() }
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStringExt as _;

    use super::*;
    use crate::cli::command;

    fn read(words: &[&str]) -> Result<Vec<String>, String> {
        let words = normalize(&command(), words.iter().map(OsString::from).collect())?;
        Ok(words.into_iter().map(|word| word.into_string().expect("is UTF-8")).collect())
    }

    fn normalized(words: &[&str]) -> Vec<String> {
        read(words).expect("nothing is wrong")
    }

    fn refused(words: &[&str]) -> String {
        read(words).expect_err("is refused")
    }

    #[test]
    fn wait_takes_the_next_word_only_if_it_is_a_duration() {
        for (typed, meant) in [
            (&["-k", "a", "--wait", "5m", "run"][..], &["-k", "a", "--wait=5m", "run"][..]),
            (&["-k", "a", "-w", "0.5", "run"], &["-k", "a", "--wait=0.5", "run"]),
            (&["-k", "a", "-w5", "run"], &["-k", "a", "--wait=5", "run"]),
            (&["-k", "a", "-w=5", "run"], &["-k", "a", "--wait=5", "run"]),
            (&["-k", "a", "-w=", "run"], &["-k", "a", "--wait=", "run"]),
            (&["-k", "a", "-vw5", "run"], &["-k", "a", "-v", "--wait=5", "run"]),
            (&["-k", "a", "-vw", "5", "run"], &["-k", "a", "-v", "--wait=5", "run"]),
            (&["-k", "a", "--wait", "run", "-v"], &["-k", "a", "--wait", "run", "-v"]),
            (&["-k", "a", "-w", "--", "5"], &["-k", "a", "--wait", "--", "5"]),
            (&["-k", "a", "-w", "--", "5x"], &["-k", "a", "--wait", "--", "5x"]),
            (&["-k", "a", "-w", "./5x"], &["-k", "a", "--wait", "./5x"]),
            (&["-k", "a", "--wait=5", "run"], &["-k", "a", "--wait=5", "run"]),
            (&["-k", "a", "-w", "5x", "--", "run"], &["-k", "a", "--wait=5x", "--", "run"]),
            (&["-k", "a", "-w", "-v", "--", "run"], &["-k", "a", "--wait", "-v", "--", "run"]),
        ] {
            assert_eq!(normalized(typed), meant, "{typed:?}");
        }
    }

    #[test]
    fn where_no_command_follows_options_may_stand_behind_the_key() {
        for (typed, meant) in [
            (&["a", "--wait", "5m"][..], &["a", "--wait=5m"][..]),
            (&["a", "-vw5"], &["a", "-v", "--wait=5"]),
            (&["a", "-w", "-v"], &["a", "--wait", "-v"]),
            (&["5m", "-w", "5m", "--ttl", "-1"], &["5m", "--wait=5m", "--ttl", "-1"]),
            (&["--wait", "a", "--", "-w", "5"], &["--wait", "a", "--", "-w", "5"]),
        ] {
            let typed = typed.iter().map(OsString::from).collect();
            let normal = normalize(&Subcommand::Acquire.definition(), typed);
            assert_eq!(normal, Ok(meant.iter().map(OsString::from).collect()));
        }
    }

    #[test]
    fn words_of_the_command_and_values_of_options_are_not_touched() {
        for words in [
            &["--key=--wait", "--", "x"][..],
            &["--key=-w", "run", "-w", "5"],
            &["-kw", "run", "--wait", "5x"],
            &["-k", "a", "run", "--wait", "5x", "--key", "--skip"],
            &["-k", "a", "--", "-w", "5x"],
            &["-k", "a", "-c", "-w", "-v"],
            &["--ttl", "-1", "run"],
            &["-k=-x", "run"],
            &["-vk-x", "run"],
            &["--key"],
        ] {
            assert_eq!(normalized(words), words);
        }
    }

    #[test]
    fn a_word_that_is_not_utf_8_may_be_an_option() {
        let path = OsString::from_vec(b"--store-file=/caf\xe9".to_vec());
        let mut typed = ["-k", "a", "--wait", "5", "--", "run"].map(OsString::from).to_vec();
        typed.insert(2, path.clone());
        let normal = normalize(&command(), typed).expect("nothing is wrong");
        assert_eq!(normal[2], path);
        assert_eq!(normal[3..], ["--wait=5", "--", "run"]);
    }

    #[test]
    fn an_option_is_no_key() {
        for (words, wanted) in [
            (&["--key", "--skip", "--", "x"][..], "--key was given no value: the next word is the option --skip"),
            (&["-k", "-w", "5", "--", "x"], "-k was given no value: the next word is the option -w"),
            (&["-vk", "--", "x"], "-k was given no value: the next word is -- "),
            (&["-k", "-", "x"], "-k was given no value: the next word is - (an unset variable?)"),
            (&["--key", "-secret", "x"], "--key was given no value: the next word begins with - (an unset variable?)"),
            (&["--key", "--store=redis://u:secret@h", "x"], "the next word is the option --store (an unset variable?)"),
        ] {
            let why = refused(words);
            assert!(why.starts_with(wanted) || why.contains(wanted), "{why}");
            assert!(why.ends_with("write --key=-x for a key that begins with -"), "{why}");
            assert!(!why.contains("secret"), "{why}");
        }
    }

    #[test]
    fn two_dashes_are_no_value() {
        for words in [&["-k", "a", "--events", "--", "true"][..], &["-k", "a", "-c", "--", "x"], &["--ttl", "--", "x"]]
        {
            let why = refused(words);
            assert!(why.ends_with("was given no value: the next word is -- (an unset variable?)"), "{why}");
        }
        assert_eq!(normalized(&["-k", "a", "--events=--", "true"])[2], "--events=--");
    }

    #[test]
    fn a_subcommand_may_follow_options() {
        let found = |words: &[&str]| {
            let words: Vec<OsString> = words.iter().map(OsString::from).collect();
            subcommand_after_options(&command(), &words)
        };
        assert_eq!(found(&["--store", "file:/x", "status"]), Some(2));
        assert_eq!(found(&["--store=file:/x", "-v", "acquire", "--key", "k"]), Some(2));
        for words in [
            &["--key", "k", "status"][..],
            &["--key=k", "status"],
            &["-kk", "status"],
            &["-vk", "k", "status"],
            &["--store", "status"],
            &["--store", "file:", "--", "status"],
            &["--store", "file:", "sh", "status"],
            &["--store", "file:"],
        ] {
            assert_eq!(found(words), None, "{words:?}");
        }
    }

    #[test]
    fn what_looks_like_a_duration_is_no_command() {
        for words in [&["-k", "a", "-w", "5x", "run"][..], &["-k", "a", "--wait", "1M"], &["-vw", "30sec", "run"]] {
            let why = refused(words);
            assert!(why.contains("is not a duration") && why.contains("a command of this name is written -"), "{why}");
        }
        // An option with an optional value that must be attached.
        let why = refused(&["--skip", "5m", "run"]);
        assert_eq!(why, "--skip: its duration is written --skip=5m; a command of this name is written --skip -- 5m");
        assert_eq!(normalized(&["--skip", "run", "5m"]), ["--skip", "run", "5m"]);
    }
}
