//! What went wrong in a store.

use super::{Claim, Store};

/// The store did not do what it was asked, or did not answer: what failed, on what, and what to do.
pub type StoreError = anyhow::Error;

/// Why a request for a lock failed, or the wait for it.
#[derive(Debug)]
pub struct RequestError {
    /// What failed.
    pub error: StoreError,
    /// Whether the same request may succeed a little later: the server is away, silent, starting, busy, or not the primary for a
    /// moment.
    pub is_transient: bool,
    /// What has become of the request.
    pub request: RequestState,
}

/// What has become of a request that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestState {
    /// It has left nothing in the store: there is nothing to cancel.
    Unsent,
    /// It was answered, or cannot arrive any more. Something of it may be in the store.
    Answered,
    /// It was not answered, and may still arrive.
    InFlight,
}

impl RequestError {
    /// Cancels the `claim` that was asked for, which has not been answered before, and returns why it failed.
    pub fn cancel(self, store: &mut dyn Store, claim: &Claim) -> StoreError {
        if self.request != RequestState::Unsent {
            store.cancel(claim, self.request == RequestState::InFlight);
        }
        self.error
    }
}

/// A permanent error, of a request that has left nothing in the store.
impl From<StoreError> for RequestError {
    fn from(error: StoreError) -> Self {
        RequestError { error, is_transient: false, request: RequestState::Unsent }
    }
}
