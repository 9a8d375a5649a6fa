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
use crate::lock::state::Purpose;
use crate::lock::token::Token;
use crate::report;
use crate::run::outcome::Outcome;
use crate::store::{Address, Backend, Held, Store};
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

/// Reports that a lock is not, or no longer, held under the token in this store, at this address, and returns the
/// outcome.
fn report_not_held(key: &Key, token: &Token, held: Option<Held>, store: &mut dyn Store, address: &Address) -> Outcome {
    // Perhaps it is held in another store: `acquire` was given one, and this command was not.
    let nobody = || format!("nobody holds it in the store {:?}", address.shown());
    let whose = if is_unrecorded(key, token, store) {
        "the store has lost the record of it, and a command may still run under it; if none does, free it with `lockrun break --now`"
            .into()
    } else {
        held.map_or_else(nobody, |held| format!("it is {held}"))
    };
    report::say(&format!("the lock \"{}\" is not held under this token, or no longer: {whose}", escaped(key.as_str())));
    Outcome::Lost
}

/// Returns whether the store has lost the lock that was held under the token, and still grants it to nobody else.
fn is_unrecorded(key: &Key, token: &Token, store: &mut dyn Store) -> bool {
    let listing = store.list(Some(key)).ok();
    let mut holder = listing.iter().flat_map(|listing| &listing.found).filter_map(|status| status.holder_under(token));
    holder.any(|holder| holder.purpose == Purpose::Unrecorded)
}
