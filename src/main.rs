//! lockrun: run a command under a lock, on this machine and across servers.
//!
//! This file parses, dispatches and exits. `run/mod.rs` shows the course of a run.

// Without Rust's own start-up: see `supervise::entry`.
#![cfg_attr(not(test), no_main)]

mod cli;
mod commands;
mod config;
#[cfg(test)]
mod documented;
#[cfg(test)]
mod fuzz;
mod lock;
mod net;
mod report;
mod run;
#[cfg(all(test, target_env = "gnu"))]
mod simulation;
mod store;
mod supervise;
mod sys;
mod text;

use std::ffi::{OsStr, OsString};
use std::io::Write as _;
use std::path::Path;

use anyhow::{Context, Result};
use clap::error::ErrorKind;
use clap::{ArgMatches, Command};

use cli::{Subcommand, Suggestion};
use config::files::{self, File};
use config::plan;
use config::settings::{Settings, UsageError};
use config::variables;
use run::outcome::Outcome;
use sys::signals::Signals;
use sys::{environment, input};
use text::escape;
use text::wrap::wrapped;

/// The last line of a message about the command line.
const SEE_HELP: &str = "For more information, try '--help'.";

/// The greatest width of help texts, in columns.
const HELP_WIDTH: usize = 100;

/// The body of `main`. `args` are the words after the program's name. Returns the exit status, or does not return because a signal
/// terminates the process.
fn main_story(args: Vec<OsString>) -> libc::c_int {
    supervise::entry::fill_closed_standard_streams();
    std::panic::set_hook(Box::new(|panic| {
        report::say(&format!("internal error: {panic}"));
        // Not abort(3): a core file would contain the store's password. If lockrun has a guardian, the other process handles this end
        // like any other.
        supervise::end_now(Outcome::Failed.ending());
    }));
    let outcome = dispatch(args).unwrap_or_else(|error| {
        report::error(&error);
        if error.is::<UsageError>() { Outcome::BadUsage } else { Outcome::Failed }
    });
    supervise::end_as(outcome.ending())
}

// In the unit tests the entry point is the test runner's.
#[cfg(test)]
const _: fn(Vec<OsString>) -> libc::c_int = main_story;

/// Carries out the command line. A first word that is not an option names a subcommand.
fn dispatch(args: Vec<OsString>) -> Result<Outcome> {
    match args.first() {
        None => {
            report::say(&format!("{}\n{SEE_HELP}", cli::documented().render_usage()));
            Ok(Outcome::BadUsage)
        }
        Some(word) if !word.as_encoded_bytes().starts_with(b"-") => other_command(&word.clone(), args),
        _ => run(args),
    }
}

/// Runs a command under a lock.
fn run(args: Vec<OsString>) -> Result<Outcome> {
    let definition = cli::command();
    let mut args = cli::normalize(&definition, args).map_err(UsageError::from)?;
    args.insert(0, "lockrun".into());
    let matches = match definition.try_get_matches_from(&args) {
        Ok(matches) => matches,
        Err(error) => {
            let definition = cli::documented();
            return Ok(explain(&with_full_texts(error, args), &definition));
        }
    };
    let plan = plan::make(&settings(&matches)?)?;
    run::run(&plan, &Signals::take_over().context("cannot block signals")?)
}

/// Parses a run's command line again with the full definition, and returns the error, whose message has the full texts.
fn with_full_texts(error: clap::Error, args: Vec<OsString>) -> clap::Error {
    let definition = if error.kind() == ErrorKind::DisplayHelp { cli::all() } else { cli::documented() };
    definition.try_get_matches_from(args).err().unwrap_or(error)
}

/// Runs the subcommand named by `word`, the first of `args`.
fn other_command(word: &OsStr, args: Vec<OsString>) -> Result<Outcome> {
    if let Some(subcommand) = Subcommand::named(word) {
        let mut definition = subcommand.definition();
        let mut after = cli::normalize(&definition, args[1..].to_vec()).map_err(UsageError::from)?;
        after.insert(0, word.to_owned());
        return match definition.try_get_matches_from_mut(after) {
            Ok(matches) => commands::run(subcommand, &settings(&matches)?),
            Err(error) => Ok(explain(&error, &definition)),
        };
    }
    if word == cli::COMPLETE {
        print!("{}", commands::complete::answer(&args[1..]));
        return Ok(Outcome::Printed);
    }
    let mut definition = match word.to_str() {
        Some(cli::HELP) => cli::help(),
        Some(cli::GENERATE) => cli::generate(),
        _ => return Err(unknown(word, &args[1..]).into()),
    };
    let what = args.get(1).cloned();
    let matches = match (definition.try_get_matches_from_mut(args), what) {
        (Ok(matches), _) => matches,
        (Err(error), Some(what)) if error.kind() == ErrorKind::InvalidValue => {
            return Err(UsageError::from(not_a_subcommand(&what)).into());
        }
        (Err(error), _) => return Ok(explain(&error, &definition)),
    };
    let what = matches.get_one::<String>("what").map(String::as_str);
    if word == cli::HELP {
        let subcommand = what.and_then(|what| Subcommand::named(what.as_ref()));
        let mut about = subcommand.map_or_else(cli::all, Subcommand::definition);
        return Ok(print_help(&about.render_long_help().to_string()));
    }
    commands::generate::generate(what.unwrap_or("man"), &mut std::io::stdout())?;
    Ok(Outcome::Printed)
}

/// Combines the command line with the settings from other places.
fn settings(matches: &ArgMatches) -> Result<Settings<'_>> {
    environment::names_beginning_with(variables::PREFIX).try_for_each(variables::check)?;
    let files = files::read(&variable)?;
    for warning in files.iter().filter_map(File::warning) {
        report::say(&warning);
    }
    Ok(Settings::new(matches, &variable, files, &read_file))
}

fn variable(name: &str) -> Option<OsString> {
    std::env::var_os(name)
}

fn read_file(path: &Path) -> std::io::Result<String> {
    input::text(input::read_trusted_file_or_pipe(path)?)
}

/// Returns the error for a first word that is not a known subcommand; `after` are the words that follow it.
fn unknown(word: &OsStr, after: &[OsString]) -> UsageError {
    let text = word.to_string_lossy();
    let next = after.first().and_then(|next| next.to_str());
    let meant = match cli::suggestion_for(&text) {
        Some(Suggestion::Subcommand(_)) => "",
        Some(Suggestion::Run) => "; a command needs no such word before it: lockrun --key KEY -- COMMAND",
        None if cli::looks_like_lock_name(&text, next) => {
            "; a lock is named with an option: lockrun --key KEY -- COMMAND"
        }
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
    let meant = match cli::suggestion_for(&text) {
        Some(Suggestion::Subcommand(subcommand)) => format!("; did you mean {}?", subcommand.name()),
        _ => String::new(),
    };
    let word = escape::without_value(&text, &format!("{text:?}"));
    format!("{word} is not one of lockrun's commands ({names}, help){meant}")
}

/// Prints the parser's message for this `definition`, which is requested help or an error. Returns the run's outcome.
fn explain(error: &clap::Error, definition: &Command) -> Outcome {
    let text = error.render().to_string();
    if matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) {
        return print_help(&text);
    }
    let text = cli::parse_error_message(error, definition).map_or(text, |worded| format!("{worded}\n{SEE_HELP}"));
    let text = cli::without_typed_values(error, text.trim_start_matches("error: "));
    report::say(&escape::escaped_lines(&text));
    Outcome::BadUsage
}

/// Writes requested help to standard output, as wide as the terminal but at most [`HELP_WIDTH`]. A reader that has read enough, such as
/// head(1), is no failure. Returns the run's outcome.
fn print_help(text: &str) -> Outcome {
    let width = sys::terminal::stdout_width().map_or(HELP_WIDTH, |width| width.min(HELP_WIDTH));
    let mut out = std::io::stdout();
    let printed = if supervise::entry::stdout_was_closed() {
        Err(std::io::Error::other("standard output is closed"))
    } else {
        out.write_all(wrapped(text, width).as_bytes()).and_then(|()| out.flush())
    };
    match printed {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            report::say(&format!("cannot print the help: {error}"));
            Outcome::Failed
        }
        _ => Outcome::Printed,
    }
}
