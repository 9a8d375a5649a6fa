//! `lockrun status`: who holds which lock, who waits for it, and how the last run went.

mod format;
mod json;
mod page;
mod table;

use std::io::{self, Write as _};

use anyhow::{Context, Result};

use super::open;
use crate::cli::name;
use crate::config::settings::Settings;
use crate::report;
use crate::run::outcome::{HELD, Outcome};
use crate::store::{KeyStatus, Listing};
use crate::supervise::terminal;

/// Prints the status of all keys as a table, of one key in full, or either as JSON. The outcome is status 75 if the given key is held,
/// and 69 if a record cannot be read. Fails with [`crate::config::settings::UsageError`] if a setting is wrong.
pub fn run(settings: &Settings<'_>) -> Result<Outcome> {
    let key = settings.key_if_given()?;
    let mut store = open(settings, None)?;
    let Listing { found: mut keys, unreadable } = match store.list(key.as_ref()) {
        Ok(listing) => listing,
        Err(error) => {
            report::error(&error.context("cannot show the status"));
            return Ok(Outcome::StoreFailed);
        }
    };
    if let Some(key) = &key
        && keys.is_empty()
    {
        keys.push(KeyStatus::never_used(key.clone()));
    }
    let text = if settings.typed_switch(name::JSON) {
        json::text(&keys)
    } else if key.is_some() {
        keys.iter().map(page::text).collect()
    } else {
        table::text(&keys, terminal::stdout_width())
    };
    io::stdout().write_all(text.as_bytes()).context("cannot print the status")?;
    if report::errors(&unreadable) {
        return Ok(Outcome::StoreFailed);
    }
    let is_held = keys.iter().any(|status| !status.holders.is_empty());
    Ok(if key.is_some() && is_held { Outcome::Held(HELD) } else { Outcome::Printed })
}
