//! `lockrun release`: lets go of a lock that `acquire` has taken.

use std::time::Duration;

use anyhow::{Result, bail};
use uuid::Uuid;

use crate::key::Key;
use crate::outcome::Outcome;
use crate::settings::{DEFAULT_STORE_TIMEOUT, Settings, Wrong};
use crate::store::Address;

/// What it is told, checked.
#[derive(Clone, Debug)]
#[expect(dead_code, reason = "its body is not built yet")]
pub struct Options {
    /// The lock's name.
    pub key: Key,
    /// The token under which it is held.
    pub token: Uuid,
    /// Where it lives.
    pub store: Address,
    /// The longest that one request to the store may take.
    pub store_timeout: Duration,
}

impl Options {
    fn read(settings: &Settings<'_>) -> Result<Self, Wrong> {
        let (key, token) = settings.held_lock()?;
        let store_timeout = settings.store_timeout()?.unwrap_or(DEFAULT_STORE_TIMEOUT);
        Ok(Options { key, token, store: settings.store()?, store_timeout })
    }
}

/// Lets go of a lock that `acquire` has taken. Fails with [`Wrong`] if the settings are not right.
pub fn run(settings: &Settings<'_>) -> Result<Outcome> {
    let _options = Options::read(settings)?;
    bail!("`lockrun release` is not built yet")
}
