//! lockrun: run a command under a lock, on this machine and across servers.
//!
//! This file parses, dispatches and exits. The story of a run is in `run.rs`.

// Without Rust's own start-up: see `supervise::entry`.
#![cfg_attr(not(test), no_main)]

mod acquire;
mod cli;
mod clock;
mod commands;
mod duration;
mod escape;
mod holder;
mod keeper;
mod key;
mod lease;
mod outcome;
mod outer;
mod plan;
mod progress;
mod readiness;
mod report;
mod run;
mod store;
mod supervise;
mod token;

use std::ffi::OsString;
use std::io::Write as _;

use anyhow::{Context, Result};
use clap::error::ErrorKind;

use outcome::Outcome;
use supervise::signals::Signals;

/// What `main` does: gives the status to exit with, or does not return because a signal ended the process.
fn main_story() -> libc::c_int {
    supervise::entry::fill_closed_standard_streams();
    std::panic::set_hook(Box::new(|panic| {
        report::say(&format!("a fault in lockrun itself: {panic}"));
        // Not by way of an abort: a core file would have the store's password in it. The guardian sees this end like any.
        supervise::end_now(Outcome::Failed.ending());
    }));
    let words = std::env::args_os().skip(1).collect();
    let outcome = dispatch(words).unwrap_or_else(|error| {
        report::error(&error);
        Outcome::Failed
    });
    supervise::end_as(outcome.ending())
}

// In the unit tests the entry point is the test runner's.
#[cfg(test)]
const _: fn() -> libc::c_int = main_story;

/// Does what the words say.
fn dispatch(words: Vec<OsString>) -> Result<Outcome> {
    if cli::is_generate(words.first()) {
        return generate(words);
    }
    let definition = cli::command();
    let mut words = cli::tie_wait(&definition, words);
    words.insert(0, "lockrun".into());
    let matches = match definition.try_get_matches_from(&words) {
        Ok(matches) => matches,
        Err(error) if error.kind() == ErrorKind::DisplayHelp => {
            return Ok(cli::documented()
                .try_get_matches_from(words)
                .map_or_else(|help| explain(&help), |_| Outcome::Printed));
        }
        Err(error) => return Ok(explain(&error)),
    };
    let environment = |name: &str| std::env::var_os(name);
    match plan::make(&matches, &environment, &|path| std::fs::read_to_string(path)) {
        Ok(plan) => run::run(&plan, &Signals::take_over().context("cannot block signals")?),
        Err(why) => {
            report::say(&why);
            Ok(Outcome::BadUsage)
        }
    }
}

/// Prints a generated file.
fn generate(words: Vec<OsString>) -> Result<Outcome> {
    match cli::generate().try_get_matches_from(words) {
        Ok(matches) => {
            let what = matches.get_one::<String>("what").map_or("man", String::as_str);
            commands::generate::generate(what, &mut std::io::stdout())?;
            Ok(Outcome::Printed)
        }
        Err(error) => Ok(explain(&error)),
    }
}

/// Says what the parser of the command line has to say: help, or what is wrong.
fn explain(error: &clap::Error) -> Outcome {
    let text = error.render().to_string();
    if matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) {
        // Nobody is left to be told if standard output is gone.
        let _ = std::io::stdout().write_all(text.as_bytes());
        return Outcome::Printed;
    }
    let text = escape::without_credentials(text.trim_start_matches("error: "));
    report::say(&escape::escaped_lines(&text));
    Outcome::BadUsage
}
