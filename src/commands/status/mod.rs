//! `lockrun status`: who holds which lock, who waits for it, and how the last run went.

mod json;
mod page;
mod table;
mod words;

use std::io::{self, Write as _};

use anyhow::{Context, Result};

use super::open;
use crate::cli::name;
use crate::config::settings::Settings;
use crate::report;
use crate::run::outcome::{HELD, Outcome};
use crate::store::{KeyStatus, Listing};
use crate::supervise::terminal;

/// Prints what is known of all keys as a table, of one key in full, or either as JSON. With a key, ends with 75 if it is held, and
/// with 69 if something cannot be read. Fails with [`crate::config::settings::UsageError`] if the settings are not right.
pub fn run(settings: &Settings<'_>) -> Result<Outcome> {
    let key = settings.key_if_given()?;
    let mut store = open(settings, None)?;
    let Listing { found: mut keys, unreadable } = match store.list(key.as_ref()) {
        Ok(listing) => listing,
        Err(error) => {
            report::error(&error.context("cannot tell who holds what"));
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
    io::stdout().write_all(text.as_bytes()).context("cannot print")?;
    if report::errors(&unreadable) {
        return Ok(Outcome::StoreFailed);
    }
    let is_held = keys.iter().any(|status| !status.holders.is_empty());
    Ok(if key.is_some() && is_held { Outcome::Held(HELD) } else { Outcome::Printed })
}
