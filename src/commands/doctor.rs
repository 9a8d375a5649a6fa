//! `lockrun doctor`: looks for what could keep locks from working here.

use std::time::Duration;

use anyhow::{Result, bail};

use crate::outcome::Outcome;
use crate::settings::{DEFAULT_STORE_TIMEOUT, Settings, Wrong};
use crate::store::Address;

/// What it is told, checked.
#[derive(Clone, Debug)]
#[expect(dead_code, reason = "its body is not built yet")]
pub struct Options {
    /// The store that is looked at.
    pub store: Address,
    /// The longest that one request to it may take.
    pub store_timeout: Duration,
}

impl Options {
    fn read(settings: &Settings<'_>) -> Result<Self, Wrong> {
        let store_timeout = settings.store_timeout()?.unwrap_or(DEFAULT_STORE_TIMEOUT);
        Ok(Options { store: settings.store()?, store_timeout })
    }
}

/// Looks for what could keep locks from working here. Fails with [`Wrong`] if the settings are not right.
pub fn run(settings: &Settings<'_>) -> Result<Outcome> {
    let _options = Options::read(settings)?;
    bail!("`lockrun doctor` is not built yet")
}
