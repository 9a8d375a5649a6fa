//! lockrun: run a command under a lock, on this machine and across servers.
//!
//! This file parses, dispatches and exits. `run/mod.rs` shows the course of a run.

// Without Rust's own start-up: see `supervise::entry`.
#![cfg_attr(not(test), no_main)]

mod cli;
mod commands;
mod config;
#[cfg(test)]
mod docs_tests;
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

use std::ffi::OsString;
use std::path::Path;

use anyhow::{Context, Result};
use clap::ArgMatches;

use cli::Request;
use config::files::{self, File};
use config::plan;
use config::settings::{Settings, UsageError};
use config::variables;
use run::outcome::Outcome;
use sys::signals::Signals;
use sys::{environment, input};
use text::wrap::wrapped;

/// The greatest width of help texts, in columns.
const HELP_WIDTH: usize = 100;

/// The body of `main`. `args` are the words after the program's name. Returns the exit status, or does not return
/// because a signal terminates the process.
fn main_story(args: Vec<OsString>) -> libc::c_int {
    sys::stdio::fill_closed();
    std::panic::set_hook(Box::new(|panic| {
        report::say(&format!("internal error: {panic}"));
        // Not abort(3): a core file would contain the store's password. If lockrun has a guardian, the other process
        // handles this end like any other.
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

/// Carries out the command line.
fn dispatch(args: Vec<OsString>) -> Result<Outcome> {
    match cli::parse(args)? {
        Request::Run(matches) => {
            let plan = plan::make(&settings(&matches)?)?;
            run::run(&plan, &Signals::take_over().context("cannot block signals")?)
        }
        Request::Subcommand(subcommand, matches) => commands::run(subcommand, &settings(&matches)?),
        Request::Complete(words) => {
            // A shell that does not read the answer needs none.
            let _ = sys::stdio::print(&commands::complete::answer(&words));
            Ok(Outcome::Printed)
        }
        Request::Generate(what) => {
            sys::stdio::print(&commands::generate::generate(&what)?).context("cannot print the manual")?;
            Ok(Outcome::Printed)
        }
        Request::Print(text) => Ok(print_help(&text)),
    }
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

/// Writes requested help to standard output, as wide as the terminal but at most [`HELP_WIDTH`]. A reader that has read
/// enough, such as head(1), is no failure. Returns the run's outcome.
fn print_help(text: &str) -> Outcome {
    let width = sys::terminal::stdout_width().map_or(HELP_WIDTH, |width| width.min(HELP_WIDTH));
    match sys::stdio::print(&wrapped(text, width)) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            report::say(&format!("cannot print the help: {error}"));
            Outcome::Failed
        }
        _ => Outcome::Printed,
    }
}
