//! `lockrun acquire`: takes a lock and leaves it held, for a script to renew and release.

use std::time::Duration;

use anyhow::{Result, bail};
use uuid::Uuid;

use crate::cli::name;
use crate::key::Key;
use crate::outcome::Outcome;
use crate::report::Verbosity;
use crate::settings::{DEFAULT_TTL, OnHeld, Settings, Ttl, Wrong, token};
use crate::store::Address;

/// What it is told, checked.
#[derive(Clone, Debug)]
#[expect(dead_code, reason = "its body is not built yet")]
pub struct Options {
    /// The lock's name.
    pub key: Key,
    /// Where it lives.
    pub store: Address,
    /// The longest that one request to the store may take.
    pub store_timeout: Duration,
    /// How long the lease lasts.
    pub ttl: Ttl,
    /// How many may hold it at once.
    pub slots: u32,
    /// What to do when it is held.
    pub on_held: OnHeld,
    /// The exit status when it is held.
    pub held_status: u8,
    /// The token to take it under, if not a random one.
    pub token: Option<Uuid>,
    /// In which form the token is printed.
    pub form: Form,
    /// How much to say.
    pub verbosity: Verbosity,
}

/// In which form the token is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// The bare token.
    Token,
    /// A JSON object.
    Json,
    /// Assignments for a shell.
    Export,
}

impl Options {
    fn read(settings: &Settings<'_>) -> Result<Self, Wrong> {
        let ttl = settings.ttl()?.unwrap_or(Ttl::Lasts(DEFAULT_TTL));
        Ok(Options {
            key: settings.key()?,
            store: settings.store()?,
            store_timeout: settings.store_timeout_within(ttl)?,
            ttl,
            slots: settings.slots()?,
            on_held: settings.on_held()?,
            held_status: settings.held_status()?,
            token: settings.typed_value(name::TOKEN, token)?,
            form: match (settings.typed_switch(name::JSON), settings.typed_switch(name::EXPORT)) {
                (true, true) => return Err("--json and --export exclude each other".into()),
                (true, false) => Form::Json,
                (false, true) => Form::Export,
                (false, false) => Form::Token,
            },
            verbosity: settings.verbosity()?,
        })
    }
}

/// Takes a lock and leaves it held, for a script to renew and release. Fails with [`Wrong`] if the settings are not right.
pub fn run(settings: &Settings<'_>) -> Result<Outcome> {
    let _options = Options::read(settings)?;
    bail!("`lockrun acquire` is not built yet")
}
