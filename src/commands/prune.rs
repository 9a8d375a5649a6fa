//! `lockrun prune`: forgets keys that have not been used for long.

use std::io::{self, Write as _};

use anyhow::{Context, Result};

use super::open;
use crate::cli::name;
use crate::config::settings::{Settings, UsageError};
use crate::report;
use crate::run::outcome::Outcome;
use crate::text::duration;
use crate::text::escape::escaped;

/// Forgets the keys, or only finds them, and prints their names. Ends with 69 if something cannot be read. Fails with [`UsageError`] if the settings are not right.
pub fn run(settings: &Settings<'_>) -> Result<Outcome> {
    let span = settings.typed_value(name::OLDER_THAN, duration::parse)?;
    let span =
        span.ok_or_else(|| UsageError::from("no age: say with --older-than for how long a lock was not used"))?;
    let really = !settings.typed_switch(name::DRY_RUN);
    let mut store = open(settings, None)?;
    match store.prune(span, really) {
        Ok(pruned) => {
            let names: String = pruned.found.iter().map(|key| escaped(key.as_str()) + "\n").collect();
            io::stdout().write_all(names.as_bytes()).context("cannot print the keys")?;
            Ok(if report::errors(&pruned.unreadable) { Outcome::StoreFailed } else { Outcome::Printed })
        }
        Err(error) => {
            report::error(&error.context("cannot forget old keys"));
            Ok(Outcome::StoreFailed)
        }
    }
}
