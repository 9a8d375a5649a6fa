//! `lockrun renew`: renews a lease by its token.

use anyhow::{Context, Result};

use super::{open_at, report_not_held};
use crate::config::settings::Settings;
use crate::report;
use crate::run::outcome::Outcome;
use crate::store::Renewed;
use crate::text::escape::escaped;

/// Renews the lease for its present length, or for `--ttl`. The outcome is status 79 if the lock is not held under the
/// token. Fails with [`crate::config::settings::UsageError`] if a setting is wrong.
pub fn run(settings: &Settings<'_>) -> Result<Outcome> {
    let (key, token) = settings.held_lock()?;
    let ttl = settings.typed_ttl()?;
    let address = settings.store()?;
    let mut store = open_at(&address, settings, None)?;
    let renewed = store.renew(&key, &token, ttl);
    Ok(match renewed.with_context(|| format!("cannot renew the lock \"{}\"", escaped(key.as_str()))) {
        Ok(Renewed::Mine) => Outcome::Printed,
        Ok(Renewed::NotMine(held)) => report_not_held(&key, &token, held, &mut *store, &address),
        Ok(Renewed::Revoked(by)) => {
            report::say(&format!(
                "the lock \"{}\" is no longer held under this token: it was revoked by {by}",
                escaped(key.as_str())
            ));
            Outcome::Lost
        }
        Err(error) => {
            report::error(&error);
            Outcome::StoreFailed
        }
    })
}
