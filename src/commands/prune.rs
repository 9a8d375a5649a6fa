//! `lockrun prune`: removes one key, or all keys that have not been used for a given time.

use std::time::Duration;

use anyhow::{Context, Result};

use super::open;
use crate::cli::name;
use crate::config::settings::{Settings, UsageError};
use crate::lock::key::Key;
use crate::report;
use crate::run::outcome::{HELD, Outcome};
use crate::store::{Backend, KeyStatus, StoreError};
use crate::sys::stdio;
use crate::text::duration;
use crate::text::escape::escaped;

const CANNOT_PRINT: &str = "cannot print the keys";

/// Removes the given key or the unused keys, or with `--dry-run` only finds them, and prints their names. The outcome
/// is status 69 if a record cannot be read or is busy, and status 75 if the given key must stay. Fails with
/// [`UsageError`] if a setting is wrong.
pub fn run(settings: &Settings<'_>) -> Result<Outcome> {
    let key = settings.key_if_given()?;
    if settings.typed_switch(name::DONE) {
        return forget_success(settings, key);
    }
    let span = match (settings.typed_value(name::OLDER_THAN, duration::parse)?, &key) {
        (Some(span), _) => span,
        (None, Some(_)) => Duration::ZERO,
        (None, None) => {
            let why = "no age: give the time that a lock must have been unused with --older-than, or name one lock";
            return Err(UsageError::from(why).into());
        }
    };
    let really = !settings.typed_switch(name::DRY_RUN);
    // What is removed must be named.
    stdio::check().context(CANNOT_PRINT)?;
    let mut store = open(settings, None)?;
    let pruned = match store.prune(key.as_ref(), span, really) {
        Ok(pruned) => pruned,
        Err(error) => {
            report::error(&error.context("cannot remove old keys"));
            return Ok(Outcome::StoreFailed);
        }
    };
    let names: String = pruned.found.iter().map(|key| escaped(key.as_str()) + "\n").collect();
    let printed = stdio::print(&names).context(CANNOT_PRINT);
    let has_errors = report::errors(&pruned.unreadable);
    printed?;
    if has_errors {
        return Ok(Outcome::StoreFailed);
    }
    match key {
        Some(key) if pruned.found.is_empty() => Ok(report_not_pruned(&mut *store, &key, span)),
        _ => Ok(Outcome::Printed),
    }
}

/// Forgets that a run of the key has succeeded, and prints the key if that was known. The outcome is status 69 if the
/// store fails. Fails with [`UsageError`] if a setting is wrong.
fn forget_success(settings: &Settings<'_>, key: Option<Key>) -> Result<Outcome> {
    if settings.typed().contains_id(name::OLDER_THAN) || settings.typed_switch(name::DRY_RUN) {
        let why = "--done removes nothing, so it takes neither --older-than nor --dry-run";
        return Err(UsageError::from(why).into());
    }
    let key = key.ok_or_else(|| UsageError::from("no key: --done needs the name of one lock"))?;
    stdio::check().context(CANNOT_PRINT)?;
    match open(settings, None)?.forget_success(&key) {
        Ok(true) => stdio::print(&format!("{}\n", escaped(key.as_str()))).context("cannot print the key")?,
        Ok(false) => {}
        Err(error) => {
            report::error(&error.context(format!("cannot change the lock \"{}\"", escaped(key.as_str()))));
            return Ok(Outcome::StoreFailed);
        }
    }
    Ok(Outcome::Printed)
}

/// Prints why a key was not removed that had to be unused for `span`, if there is a reason besides its age, and returns
/// the outcome.
fn report_not_pruned(store: &mut dyn Backend, key: &Key, span: Duration) -> Outcome {
    let in_use = |store: &mut dyn Backend| -> Result<Option<&'static str>, StoreError> {
        let listing = store.list(Some(key))?;
        Ok(listing.found.first().and_then(|status| {
            let done = status.success.and_then(|success| success.until_unix_ms);
            let is_ahead = |unix_ms: u64| unix_ms > status.now_ms;
            match status {
                KeyStatus { holders, .. } if !holders.is_empty() => Some("it is held; lockrun status names the holder"),
                KeyStatus { waiters, .. } if !waiters.is_empty() => Some("runs wait for it"),
                KeyStatus { withheld: Some(_), .. } => {
                    Some("it is withheld after a failover; lockrun status says for how long")
                }
                KeyStatus { value: Some(_), .. } => Some("it keeps a sequence, which would begin anew"),
                _ if done.is_some_and(is_ahead) => {
                    Some("its --once-per has not passed; lockrun prune --done KEY forgets its success")
                }
                KeyStatus { last: Some(last), .. } if is_ahead(last.ended_unix_ms) => {
                    Some("by the store's clock its last run has not ended yet")
                }
                // It is there, or it would have no fence. Waiters that were killed and requests that were cancelled are
                // not listed, but keep the key for a while.
                KeyStatus { fence: 1.., .. } if span.is_zero() => Some(
                    "its fencing token is ahead of the store's clock, or it was used a moment ago; try again later",
                ),
                _ => None,
            }
        }))
    };
    let name = escaped(key.as_str());
    match in_use(store) {
        Ok(Some(why)) => {
            report::say(&format!("the lock \"{name}\" is left alone: {why}"));
            Outcome::Held(HELD)
        }
        Ok(None) => Outcome::Printed,
        Err(error) => {
            report::error(&error.context(format!("cannot look at the lock \"{name}\"")));
            Outcome::StoreFailed
        }
    }
}
