//! Tries a lock: acquires it, waits for it, renews it, hands it off and releases it.

use std::time::Duration;

use anyhow::bail;
use uuid::Uuid;

use super::Diagnostic;
use crate::lock::holder::Holder;
use crate::lock::key::Key;
use crate::lock::lease::Ttl;
use crate::lock::token::Token;
use crate::store::{Acquired, Claim, IfHeld, Mode, Release, Released, Renewed, Store, StoreError};

/// Long enough for a slow server. As long as a run's by default: after a failover a Redis grants nothing until the
/// longest lease that it knows of would have ended.
const TTL: Duration = Duration::from_secs(30);

/// Returns the key of a lock that nobody else uses. The server treats it like any other.
pub(in crate::store) fn key() -> Key {
    Key::new(format!("lockrun doctor {}", Uuid::new_v4()).as_ref()).expect("is a key")
}

/// Tries the lock `key`, which nobody else may use. The caller must remove what this leaves in the store, even after a
/// failure.
pub(in crate::store) fn diagnose(store: &mut dyn Store, key: &Key) -> Diagnostic {
    match hand_off(store, key) {
        Ok(()) => Diagnostic::ok("a lock was acquired, renewed, handed to a waiter and released"),
        Err(error) => Diagnostic::unusable(format!("a lock could not be tried out: {error:#}"), ""),
    }
}

/// One claim acquires the lock, another waits for it and gets it.
fn hand_off(store: &mut dyn Store, key: &Key) -> Result<(), StoreError> {
    let claim = || Claim {
        key: key.clone(),
        token: Token::random(),
        ttl: Ttl::Lasts(TTL),
        holder: Holder::this_run(&["doctor".into()], None),
        mode: Mode::EXCLUSIVE,
        once_per: None,
        by_hand: true,
        request: None,
    };
    let (first, second) = (claim(), claim());
    let queue = IfHeld::Queue { max_waiting: None, until: None };
    let before = match ask(store, &first, IfHeld::Leave)? {
        Acquired::Mine(grant) => grant,
        Acquired::Held(held) if held.withheld.is_some() => bail!("it is {held}"),
        _ => bail!("a lock that is free is not granted"),
    };
    let Acquired::Held(_) = ask(store, &second, queue)? else { bail!("a lock that is held is granted") };
    let Renewed::Mine = store.renew(key, &first.token, None)? else { bail!("a lock that was granted is gone at once") };
    let Released::Free = store.release(key, &first.token, Release::ByHand)? else { bail!("a lock cannot be released") };
    let Acquired::Mine(after) = ask(store, &second, queue)? else {
        bail!("a lock that was released is not granted to the waiter")
    };
    store.release(key, &second.token, Release::ByHand)?;
    if after.fence <= before.fence {
        bail!("the fence does not grow: {} after {}", after.fence, before.fence);
    }
    Ok(())
}

/// Requests the lock once, and cancels the claim on failure.
fn ask(store: &mut dyn Store, claim: &Claim, if_held: IfHeld) -> Result<Acquired, StoreError> {
    store.try_acquire(claim, if_held).map_err(|failed| failed.cancel(store, claim))
}
