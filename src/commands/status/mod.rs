//! `lockrun status`: who holds which lock, who waits for it, and how the last run ended.

mod format;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
mod json;
mod metrics;
mod page;
mod table;

use anyhow::{Context, Result};

use super::open_at;
use crate::cli::name;
use crate::config::settings::{Keys, Settings, UsageError};
use crate::report;
use crate::run::outcome::{HELD, Outcome};
use crate::store::{KeyStatus, Listing};
use crate::sys::{stdio, terminal};

/// The form in which the status is printed.
enum Form {
    Text,
    Json,
    Metrics,
}

impl Form {
    fn read(settings: &Settings<'_>) -> Result<Self, UsageError> {
        match (settings.typed_switch(name::JSON), settings.typed_switch(name::METRICS)) {
            (true, true) => Err("--json and --metrics exclude each other".into()),
            (true, false) => Ok(Form::Json),
            (false, true) => Ok(Form::Metrics),
            (false, false) => Ok(Form::Text),
        }
    }
}

/// Prints the status of all keys, or of those that match a pattern, as a table, or that of one key in full; or either
/// as JSON or OpenMetrics text. The outcome is status 75 if the given key is held or withheld, and 69 if a record
/// cannot be read. Fails with [`UsageError`] if a setting is wrong.
pub fn run(settings: &Settings<'_>) -> Result<Outcome> {
    let wanted = settings.keys()?;
    let form = Form::read(settings)?;
    let only_held = settings.typed_switch(name::ONLY_HELD);
    let key = match &wanted {
        Keys::One(_) if only_held => {
            return Err(
                UsageError::from("--held chooses among several locks, and KEY names one; leave out either").into()
            );
        }
        Keys::One(key) => Some(key),
        Keys::All | Keys::Like(_) => None,
    };
    let address = settings.store()?;
    let mut store = open_at(&address, settings, None)?;
    let Listing { found: mut keys, unreadable } = match store.list(key) {
        Ok(listing) => listing,
        Err(error) => {
            report::error(&error.context("cannot show the status"));
            return Ok(Outcome::StoreFailed);
        }
    };
    if let Some(key) = key
        && keys.is_empty()
    {
        keys.push(KeyStatus::never_used(key.clone()));
    }
    keys.retain(|status| wanted.includes(&status.key) && (!only_held || !status.holders.is_empty()));
    let text = match form {
        Form::Json => json::text(&keys, &address.shown()),
        Form::Metrics => metrics::text(&keys),
        Form::Text if key.is_some() => {
            let colours = terminal::stdout_has_colours();
            keys.iter().map(|status| page::text(status, &address.shown(), colours)).collect()
        }
        Form::Text => {
            let width = terminal::stdout_width();
            // Only for people.
            let store = width.map_or_else(String::new, |width| table::store(&address.shown(), width));
            store + &table::text(&keys, width, terminal::stdout_has_colours())
        }
    };
    let printed = stdio::print(&text).context("cannot print the status");
    let has_errors = report::errors(&unreadable);
    printed?;
    if has_errors {
        return Ok(Outcome::StoreFailed);
    }
    let is_held = |status: &KeyStatus| !status.holders.is_empty() || status.withheld.is_some();
    Ok(if key.is_some() && keys.iter().any(is_held) { Outcome::Held(HELD) } else { Outcome::Printed })
}
