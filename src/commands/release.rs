//! `lockrun release`: releases a lock by its token.

use anyhow::{Context, Result};

use super::{open_at, report_not_held};
use crate::config::settings::Settings;
use crate::report::{self, Verbosity};
use crate::run::outcome::Outcome;
use crate::store::{Release, Released};
use crate::text::escape::escaped;

/// Releases the lock, or if a command still runs under it, lets it be released when the command ends. The outcome is
/// status 79 if the lock is not held under the token. Fails with [`crate::config::settings::UsageError`] if a setting
/// is wrong.
pub fn run(settings: &Settings<'_>) -> Result<Outcome> {
    let (key, token) = settings.held_lock()?;
    let verbosity = settings.verbosity()?;
    let address = settings.store()?;
    let mut store = open_at(&address, settings, None)?;
    let released = store.release(&key, &token, Release::ByHand);
    Ok(match released.with_context(|| format!("cannot release the lock \"{}\"", escaped(key.as_str()))) {
        Ok(Released::Free | Released::Retained | Released::Unrecorded(_)) => Outcome::Printed,
        Ok(Released::WhenItEnds) => {
            if verbosity > Verbosity::Quiet {
                report::say(&format!(
                    "the lock \"{}\" will be released when the command that runs under it has ended",
                    escaped(key.as_str())
                ));
            }
            Outcome::Printed
        }
        Ok(Released::NotMine(held)) => report_not_held(&key, &token, held, &mut *store, &address),
        Err(error) => {
            report::error(&error);
            Outcome::StoreFailed
        }
    })
}
