//! A lock tried out: acquired, waited for, kept, handed on and released, by every script there is.

use std::time::Duration;

use anyhow::bail;

use crate::lock::holder::Holder;
use crate::lock::key::Key;
use crate::lock::lease::Ttl;
use crate::lock::token::Token;
use crate::store::diagnostic::Diagnostic;
use crate::store::redis::RedisStore;
use crate::store::redis::reply::AcquireReply;
use crate::store::{Claim, IfHeld, Mode, Release, Released, Renewed, Store, StoreError, Tried};

/// Long enough for a slow server, short enough if we die in the middle.
const TTL: Duration = Duration::from_mins(1);

/// Tries the lock `key`, which must be nobody's.
pub(super) fn diagnose(store: &mut RedisStore, key: &Key) -> Diagnostic {
    match hand_over(store, key) {
        Ok(()) => Diagnostic::ok("a lock was acquired, renewed, handed to a waiter and released"),
        Err(error) => Diagnostic::unusable(format!("a lock could not be tried out: {error:#}"), ""),
    }
}

/// One run takes the lock, another waits for it and gets it.
fn hand_over(store: &mut RedisStore, key: &Key) -> Result<(), StoreError> {
    let claim = || Claim {
        key: key.clone(),
        token: Token::random(),
        ttl: Ttl::Lasts(TTL),
        holder: Holder::this_run(&["doctor".into()]),
        mode: Mode::EXCLUSIVE,
        once_per: None,
        by_hand: true,
        request: None,
    };
    let (first, second) = (claim(), claim());
    let tried = store.try_acquire(&first, IfHeld::Leave).map_err(|failed| failed.cancel(store, &first))?;
    let Tried::Mine(before) = tried else { bail!("a lock that is free is not granted") };
    let AcquireReply::NotMine { .. } = ask(store, &second)? else { bail!("a lock that is held is granted") };
    let Renewed::Mine = store.renew(key, &first.token, None)? else { bail!("a lock that was granted is gone at once") };
    let Released::Free = store.release(key, &first.token, Release::ByHand)? else { bail!("a lock cannot be released") };
    let AcquireReply::Mine(after, _) = ask(store, &second)? else {
        bail!("a lock that was released is not granted to the waiter")
    };
    store.release(key, &second.token, Release::ByHand)?;
    if after.fence <= before.fence {
        bail!("the fence does not grow: {} after {}", after.fence, before.fence);
    }
    Ok(())
}

/// Asks once, as a waiter.
fn ask(store: &mut RedisStore, claim: &Claim) -> Result<AcquireReply, StoreError> {
    store.ask(claim, IfHeld::Queue { max_waiting: None }).map_err(|failure| failure.explain(&store.server))
}
