//! `lockrun renew`: prolongs the lease of a lock that `acquire` has taken.

use std::time::Duration;

use anyhow::{Result, bail};
use uuid::Uuid;

use crate::cli::name;
use crate::key::Key;
use crate::outcome::Outcome;
use crate::settings::{DEFAULT_TTL, Settings, Ttl, Wrong};
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
    /// How long the lease lasts from now.
    pub ttl: Ttl,
    /// Whether the answer is printed as JSON.
    pub json: bool,
}

impl Options {
    fn read(settings: &Settings<'_>) -> Result<Self, Wrong> {
        let (key, token) = settings.held_lock()?;
        let ttl = settings.ttl()?.unwrap_or(Ttl::Lasts(DEFAULT_TTL));
        Ok(Options {
            key,
            token,
            store: settings.store()?,
            store_timeout: settings.store_timeout_within(ttl)?,
            ttl,
            json: settings.typed_switch(name::JSON),
        })
    }
}

/// Prolongs the lease of a lock that `acquire` has taken. Fails with [`Wrong`] if the settings are not right.
pub fn run(settings: &Settings<'_>) -> Result<Outcome> {
    let _options = Options::read(settings)?;
    bail!("`lockrun renew` is not built yet")
}
