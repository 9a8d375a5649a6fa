//! Errors of stores.

use std::time::Duration;

use anyhow::anyhow;

use super::{Claim, Store};
use crate::lock::lease::Ttl;
use crate::text::duration;
use crate::text::escape::escaped;

/// The store rejected a request or did not answer: what failed, where, and what to do.
pub type StoreError = anyhow::Error;

/// Why a request for a lock, or the wait for it, failed.
#[derive(Debug)]
pub struct RequestError {
    /// What failed.
    pub error: StoreError,
    /// Whether, and how soon, to try again.
    pub retry_class: RetryClass,
    /// Whether no request of the claim can have reached the store or can still arrive, so that there is nothing to
    /// cancel.
    pub never_sent: bool,
}

/// What keeps a store from answering a request properly. The later ones are the more promising to retry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum RetryClass {
    /// The cause does not pass by itself.
    Permanent,
    /// The server is unreachable, silent, starting, or for a moment not the primary.
    Unavailable,
    /// The server was reached and began to answer, but did not finish in time.
    Slow,
    /// The store replied that it is too busy at the moment.
    Busy,
}

/// The shortest time of trying again that an error mentions.
const MENTIONED: Duration = Duration::from_secs(1);

impl RequestError {
    /// Returns the error of the last one of several requests, which says for how long they were tried.
    pub fn after_trying_for(self, span: Duration) -> Self {
        if span < MENTIONED {
            return self;
        }
        let error = anyhow!("{:#}; tried for {}", self.error, duration::say(span));
        RequestError { error, ..self }
    }

    /// Cancels a `claim` that no earlier reply has answered, and returns why its request failed.
    pub fn cancel(self, store: &mut dyn Store, claim: &Claim) -> StoreError {
        let is_clean = self.never_sent || store.cancel(claim, false);
        self.after_cancel(claim, is_clean)
    }

    /// Returns why the `claim` failed. If it has no lease and its cancellation was not confirmed (`is_clean` is
    /// `false`), adds that the lock may be held.
    pub fn after_cancel(self, claim: &Claim, is_clean: bool) -> StoreError {
        match left_behind(claim, is_clean) {
            Some(left) => anyhow!("{:#}; {left}", self.error),
            None => self.error,
        }
    }
}

/// Describes what may be left of a `claim` for ever, if its cancellation was not confirmed (`is_clean` is `false`) and
/// no lease ends what it may have obtained.
pub fn left_behind(claim: &Claim, is_clean: bool) -> Option<String> {
    let key = escaped(claim.key.as_str());
    (!is_clean && claim.ttl == Ttl::None).then(|| {
        format!(
            "cancelling the request was not confirmed, so the lock \"{key}\" may be held, and no lease would end it: see `lockrun \
             status`, and free it with `lockrun break`"
        )
    })
}

/// A permanent error. The request may have left something in the store.
impl From<StoreError> for RequestError {
    fn from(error: StoreError) -> Self {
        RequestError { error, retry_class: RetryClass::Permanent, never_sent: false }
    }
}
