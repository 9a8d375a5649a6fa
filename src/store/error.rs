//! What went wrong in a store.

use anyhow::anyhow;

use super::{Claim, Store};
use crate::lock::lease::Ttl;
use crate::text::escape::escaped;

/// The store did not do what it was asked, or did not answer: what failed, on what, and what to do.
pub type StoreError = anyhow::Error;

/// Why a request for a lock failed, or the wait for it.
#[derive(Debug)]
pub struct RequestError {
    /// What failed.
    pub error: StoreError,
    /// What the matter is, and so whether it is worth trying again.
    pub trouble: Trouble,
    /// Whether no request of the claim can have reached the store, nor can still arrive: there is nothing to cancel.
    pub left_nothing: bool,
}

/// What keeps a store from answering a request as it should; the later ones promise more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Trouble {
    /// What does not pass by itself.
    Lasting,
    /// The server is away, silent, starting, or not the primary for a moment.
    Away,
    /// The server can be reached and has begun to answer, but did not come to an end in time.
    Slow,
    /// The store has answered that it has too many others to serve at the moment.
    Busy,
}

impl RequestError {
    /// Cancels the `claim` that was asked for, which has not been answered before, and returns why it failed.
    pub fn cancel(self, store: &mut dyn Store, claim: &Claim) -> StoreError {
        let is_clean = self.left_nothing || store.cancel(claim, false);
        self.after_cancel(claim, is_clean)
    }

    /// Returns why the `claim` failed. If cancelling it was not confirmed (`is_clean` is `false`) and it has no lease, says that the lock may
    /// be held.
    pub fn after_cancel(self, claim: &Claim, is_clean: bool) -> StoreError {
        match left_for_ever(claim, is_clean) {
            Some(left) => anyhow!("{:#}; {left}", self.error),
            None => self.error,
        }
    }
}

/// Returns in words what is left of a `claim` for ever, if cancelling it was not confirmed and no lease ends what it may have obtained.
pub fn left_for_ever(claim: &Claim, is_clean: bool) -> Option<String> {
    let key = escaped(claim.key.as_str());
    (!is_clean && claim.ttl == Ttl::None).then(|| {
        format!(
            "the lock \"{key}\" may have been acquired all the same, and no lease would end it: see `lockrun status`, and free it with \
             `lockrun break`"
        )
    })
}

/// A permanent error. The request may have left something in the store.
impl From<StoreError> for RequestError {
    fn from(error: StoreError) -> Self {
        RequestError { error, trouble: Trouble::Lasting, left_nothing: false }
    }
}
