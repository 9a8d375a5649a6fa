//! `lockrun prune`: removes keys that have not been used for long.

use std::io::{self, Write as _};

use anyhow::{Context, Result};

use super::open;
use crate::cli::name;
use crate::config::settings::{Settings, UsageError};
use crate::report;
use crate::run::outcome::Outcome;
use crate::text::duration;
use crate::text::escape::escaped;

/// Removes the keys, or with `--dry-run` only finds them, and prints their names. The outcome is status 69 if a record cannot be
/// read, or is busy. Fails with [`UsageError`] if a setting is wrong.
pub fn run(settings: &Settings<'_>) -> Result<Outcome> {
    let span = settings.typed_value(name::OLDER_THAN, duration::parse)?;
    let span = span
        .ok_or_else(|| UsageError::from("no age: give the time that a lock must have been unused with --older-than"))?;
    let really = !settings.typed_switch(name::DRY_RUN);
    let mut store = open(settings, None)?;
    match store.prune(span, really) {
        Ok(pruned) => {
            let names: String = pruned.found.iter().map(|key| escaped(key.as_str()) + "\n").collect();
            io::stdout().write_all(names.as_bytes()).context("cannot print the keys")?;
            Ok(if report::errors(&pruned.unreadable) { Outcome::StoreFailed } else { Outcome::Printed })
        }
        Err(error) => {
            report::error(&error.context("cannot remove old keys"));
            Ok(Outcome::StoreFailed)
        }
    }
}
