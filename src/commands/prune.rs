//! `lockrun prune`: removes what is left of locks that have not been used for long.

use std::time::Duration;

use anyhow::{Result, bail};

use crate::cli::name;
use crate::duration;
use crate::outcome::Outcome;
use crate::settings::{DEFAULT_STORE_TIMEOUT, Settings, Wrong};
use crate::store::Address;

/// What it is told, checked.
#[derive(Clone, Debug)]
#[expect(dead_code, reason = "its body is not built yet")]
pub struct Options {
    /// For how long a lock must not have been used.
    pub older_than: Duration,
    /// Whether it is only said what would be removed.
    pub dry_run: bool,
    /// Where the locks live.
    pub store: Address,
    /// The longest that one request to the store may take.
    pub store_timeout: Duration,
}

impl Options {
    fn read(settings: &Settings<'_>) -> Result<Self, Wrong> {
        let older_than = settings.typed_value(name::OLDER_THAN, duration::parse)?;
        Ok(Options {
            older_than: older_than
                .ok_or("no age: say with --older-than for how long a lock must not have been used")?,
            dry_run: settings.typed_switch(name::DRY_RUN),
            store: settings.store()?,
            store_timeout: settings.store_timeout()?.unwrap_or(DEFAULT_STORE_TIMEOUT),
        })
    }
}

/// Removes what is left of locks that have not been used for long. Fails with [`Wrong`] if the settings are not right.
pub fn run(settings: &Settings<'_>) -> Result<Outcome> {
    let _options = Options::read(settings)?;
    bail!("`lockrun prune` is not built yet")
}
