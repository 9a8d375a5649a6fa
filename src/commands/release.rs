//! `lockrun release`: releases a lock by its token.

use anyhow::{Context, Result};

use super::{not_ours, open};
use crate::config::settings::Settings;
use crate::report::{self, Verbosity};
use crate::run::outcome::Outcome;
use crate::store::{Release, Released};
use crate::text::escape::escaped;

/// Releases the lock. While a command still runs under it, it is released when that has ended. Ends with 79
/// if it is not ours. Fails with [`crate::config::settings::UsageError`] if the settings are not right.
pub fn run(settings: &Settings<'_>) -> Result<Outcome> {
    let (key, token) = settings.held_lock()?;
    let verbosity = settings.verbosity()?;
    let mut store = open(settings, None)?;
    let released = store.release(&key, &token, Release::ByHand);
    Ok(match released.with_context(|| format!("cannot release the lock \"{}\"", escaped(key.as_str()))) {
        Ok(Released::Free | Released::Retained | Released::Unrecorded(_)) => Outcome::Printed,
        Ok(Released::WhenItEnds) => {
            if verbosity > Verbosity::Quiet {
                report::say(&format!(
                    "the lock \"{}\" will be free when the command has ended that runs under it",
                    escaped(key.as_str())
                ));
            }
            Outcome::Printed
        }
        Ok(Released::NotMine(held)) => not_ours(&key, held),
        Err(error) => {
            report::error(&error);
            Outcome::StoreFailed
        }
    })
}
