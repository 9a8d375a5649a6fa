//! The subcommands: everything that lockrun does besides running a command under a lock.

pub mod acquire;
pub mod break_lock;
pub mod complete;
pub mod doctor;
pub mod generate;
pub mod prune;
pub mod release;
pub mod renew;
pub mod reserve;
pub mod status;

mod tidy_roff;

use std::time::Duration;

use anyhow::Result;

use crate::cli::Subcommand;
use crate::config::settings::{DEFAULT_STORE_TIMEOUT, Settings, UsageError};
use crate::lock::key::Key;
use crate::report;
use crate::run::outcome::Outcome;
use crate::store::{Address, Backend, Held};
use crate::text::escape::escaped;

/// Runs `subcommand` with its `settings`. Fails with [`crate::config::settings::UsageError`] if a setting is wrong.
pub fn run(subcommand: Subcommand, settings: &Settings<'_>) -> Result<Outcome> {
    match subcommand {
        Subcommand::Acquire => acquire::run(settings),
        Subcommand::Renew => renew::run(settings),
        Subcommand::Release => release::run(settings),
        Subcommand::Reserve => reserve::run(settings),
        Subcommand::Status => status::run(settings),
        Subcommand::Break => break_lock::run(settings),
        Subcommand::Doctor => doctor::run(settings),
        Subcommand::Prune => prune::run(settings),
    }
}

/// Opens the store that the settings name. A request takes at most `timeout`, or if that is `None`, the time-out in the
/// settings.
fn open(settings: &Settings<'_>, timeout: Option<Duration>) -> Result<Box<dyn Backend>, UsageError> {
    open_at(&settings.store()?, settings, timeout)
}

/// As [`open`], for the store at this address.
fn open_at(
    store: &Address,
    settings: &Settings<'_>,
    timeout: Option<Duration>,
) -> Result<Box<dyn Backend>, UsageError> {
    let timeout = timeout.or(settings.store_timeout()?).unwrap_or(DEFAULT_STORE_TIMEOUT);
    Ok(store.open(timeout)?)
}

/// Reports that a lock is not, or no longer, held under the token in this store, and returns the outcome.
fn report_not_held(key: &Key, held: Option<Held>, store: &Address) -> Outcome {
    // Perhaps it is held in another store: `acquire` was given one, and this command was not.
    let nobody = || format!("nobody holds it in the store {:?}", store.shown());
    let whose = held.map_or_else(nobody, |held| format!("it is held by {held}"));
    report::say(&format!("the lock \"{}\" is not held under this token, or no longer: {whose}", escaped(key.as_str())));
    Outcome::Lost
}
