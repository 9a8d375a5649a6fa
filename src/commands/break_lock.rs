//! `lockrun break`: takes a lock away from whoever holds it.

use std::time::Duration;

use anyhow::{Result, bail};

use crate::cli::name;
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
    /// The fence of the holder that is meant; whoever it is, if none is given.
    pub fence: Option<u64>,
    /// Whether the lock is freed at once.
    pub now: bool,
    /// Where it lives.
    pub store: Address,
    /// The longest that one request to the store may take.
    pub store_timeout: Duration,
}

impl Options {
    fn read(settings: &Settings<'_>) -> Result<Self, Wrong> {
        Ok(Options {
            key: settings.key()?,
            fence: settings.typed_value(name::FENCE, |text| {
                text.parse().map_err(|_| format!("{text:?} is not a fence, which is a number"))
            })?,
            now: settings.typed_switch(name::NOW),
            store: settings.store()?,
            store_timeout: settings.store_timeout()?.unwrap_or(DEFAULT_STORE_TIMEOUT),
        })
    }
}

/// Takes a lock away from whoever holds it. Fails with [`Wrong`] if the settings are not right.
pub fn run(settings: &Settings<'_>) -> Result<Outcome> {
    let _options = Options::read(settings)?;
    bail!("`lockrun break` is not built yet")
}
