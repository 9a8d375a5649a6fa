//! From the words of a command line to what is asked for, or to a message that says what is wrong with them.

use std::ffi::{OsStr, OsString};

use clap::error::ErrorKind;
use clap::{ArgMatches, Command, Error};

use super::argv::subcommand_after_options;
use super::refusals::{parse_error_message, without_typed_values};
use super::subcommands::Subcommand;
use super::typos::{Suggestion, looks_like_lock_name, suggestion_for};
use super::{COMPLETE, GENERATE, HELP, all, command, documented, generate, help, normalize};
use crate::config::settings::UsageError;
use crate::text::escape;

/// The last line of a message about the command line.
const SEE_HELP: &str = "For more information, try '--help'.";

/// What a command line asks for.
pub enum Request {
    /// To run a command under a lock, with these options.
    Run(ArgMatches),
    /// To carry out a subcommand, with these options.
    Subcommand(Subcommand, ArgMatches),
    /// To list, for a shell, how the last of these words can be completed.
    Complete(Vec<OsString>),
    /// To print the generated file with this name.
    Generate(String),
    /// To print this text: the help, or the version.
    Print(String),
}

/// Parses `args`, the words after the program's name. A first word that is not an option names a subcommand. Returns an
/// error that names the mistake if there is one.
pub fn parse(args: Vec<OsString>) -> Result<Request, UsageError> {
    match args.first() {
        None => Err(format!("{}\n{SEE_HELP}", documented().render_usage()).into()),
        Some(word) if word.as_encoded_bytes().starts_with(b"-") => parse_run(args),
        Some(word) => match Subcommand::named(word) {
            Some(subcommand) => parse_subcommand(subcommand, args),
            None => parse_other(&word.clone(), args),
        },
    }
}

/// Parses a run's command line.
fn parse_run(mut args: Vec<OsString>) -> Result<Request, UsageError> {
    let definition = command();
    if let Some(at) = subcommand_after_options(&definition, &args) {
        args[..=at].rotate_right(1);
        return parse(args);
    }
    let mut args = normalize(&definition, args)?;
    args.insert(0, "lockrun".into());
    match definition.try_get_matches_from(&args) {
        Ok(matches) => Ok(Request::Run(matches)),
        Err(error) => explained(&with_full_texts(error, args), &documented()),
    }
}

/// Parses a run's command line again with the full definition, and returns the error, whose message has the full texts.
fn with_full_texts(error: Error, args: Vec<OsString>) -> Error {
    let definition = if error.kind() == ErrorKind::DisplayHelp { all() } else { documented() };
    definition.try_get_matches_from(args).err().unwrap_or(error)
}

/// Parses a command line whose first word names a subcommand.
fn parse_subcommand(subcommand: Subcommand, mut args: Vec<OsString>) -> Result<Request, UsageError> {
    let mut definition = subcommand.definition();
    let name = args.remove(0);
    let mut args = normalize(&definition, args)?;
    args.insert(0, name);
    match definition.try_get_matches_from_mut(args) {
        Ok(matches) => Ok(Request::Subcommand(subcommand, matches)),
        Err(error) => explained(&error, &definition),
    }
}

/// Parses a command line whose first `word` names no subcommand that works on locks.
fn parse_other(word: &OsStr, args: Vec<OsString>) -> Result<Request, UsageError> {
    let mut definition = match word.to_str() {
        Some(COMPLETE) => return Ok(Request::Complete(args[1..].to_vec())),
        Some(HELP) => help(),
        Some(GENERATE) => generate(),
        _ => return Err(unknown(word, &args[1..])),
    };
    let what = args.get(1).cloned();
    let matches = match (definition.try_get_matches_from_mut(args), what) {
        (Ok(matches), _) => matches,
        (Err(error), Some(what)) if error.kind() == ErrorKind::InvalidValue => {
            return Err(not_a_subcommand(&what).into());
        }
        (Err(error), _) => return explained(&error, &definition),
    };
    let what = matches.get_one::<String>("what");
    if word == GENERATE {
        return Ok(Request::Generate(what.cloned().unwrap_or_default()));
    }
    let subcommand = what.and_then(|what| Subcommand::named(what.as_ref()));
    let mut about = subcommand.map_or_else(all, Subcommand::definition);
    Ok(Request::Print(about.render_long_help().to_string()))
}

/// Returns the parser's text for this `definition`, which is requested help or an error.
fn explained(error: &Error, definition: &Command) -> Result<Request, UsageError> {
    let text = error.render().to_string();
    if matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) {
        return Ok(Request::Print(text));
    }
    let text = parse_error_message(error, definition).map_or(text, |worded| format!("{worded}\n{SEE_HELP}"));
    let text = without_typed_values(error, text.trim_start_matches("error: "));
    Err(escape::escaped_lines(&text).into())
}

/// Returns the error for a first word that is not a known subcommand; `after` are the words that follow it.
fn unknown(word: &OsStr, after: &[OsString]) -> UsageError {
    let text = word.to_string_lossy();
    let next = after.first().and_then(|next| next.to_str());
    let meant = match suggestion_for(&text) {
        Some(Suggestion::Subcommand(_)) => "",
        Some(Suggestion::Run) => "; a command needs no such word before it: lockrun --key KEY -- COMMAND",
        None if looks_like_lock_name(&text, next) => "; a lock is named with an option: lockrun --key KEY -- COMMAND",
        None if text.bytes().all(|byte| byte.is_ascii_digit()) => {
            "; lockrun locks no file descriptor: write lockrun --key KEY -- COMMAND, or use lockrun acquire"
        }
        None => "; to run it under a lock, write --key KEY before it",
    };
    format!("{}{meant}", not_a_subcommand(word)).into()
}

/// Returns the message that a word is not a known subcommand, with the one that was most likely meant.
fn not_a_subcommand(word: &OsStr) -> String {
    let names = Subcommand::ALL.map(Subcommand::name).join(", ");
    let text = word.to_string_lossy();
    let meant = match suggestion_for(&text) {
        Some(Suggestion::Subcommand(subcommand)) => format!("; did you mean {}?", subcommand.name()),
        _ => String::new(),
    };
    let word = escape::without_value(&text, &format!("{text:?}"));
    format!("{word} is not one of lockrun's commands ({names}, help){meant}")
}
