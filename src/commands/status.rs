//! `lockrun status`: says who holds which lock, who waits, and who ran last.

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
    /// The one lock that is asked for; all, if none is.
    pub key: Option<Key>,
    /// Where the locks live.
    pub store: Address,
    /// The longest that one request to the store may take.
    pub store_timeout: Duration,
    /// Whether the answer is printed as JSON.
    pub json: bool,
}

impl Options {
    fn read(settings: &Settings<'_>) -> Result<Self, Wrong> {
        Ok(Options {
            key: settings.key_if_given()?,
            store: settings.store()?,
            store_timeout: settings.store_timeout()?.unwrap_or(DEFAULT_STORE_TIMEOUT),
            json: settings.typed_switch(name::JSON),
        })
    }
}

/// Says who holds which lock, who waits, and who ran last. Fails with [`Wrong`] if the settings are not right.
pub fn run(settings: &Settings<'_>) -> Result<Outcome> {
    let _options = Options::read(settings)?;
    bail!("`lockrun status` is not built yet")
}
