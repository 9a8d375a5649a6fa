//! A claim to a lock.

use super::holder::Holder;
use super::key::Key;
use super::lease::Ttl;
use super::token::Token;

/// A run's claim: this lock, under this token, for this holder.
#[derive(Clone, Debug)]
pub struct Claim {
    /// The lock's name.
    pub key: Key,
    /// The token of this acquisition. Every later change is checked against it.
    pub token: Token,
    /// How long the lease lasts from one renewal.
    pub ttl: Ttl,
    /// The run that claims the lock.
    pub holder: Holder,
    /// How many may hold the lock at once, at least 1. (Whether the claim is shared or exclusive will belong beside it, and in
    /// [`HolderState`](super::state::HolderState) and [`WaiterState`](super::state::WaiterState) with it.)
    pub slots: u32,
    /// Whether the lock is acquired by hand and outlives this process. Otherwise a run holds and renews it.
    pub by_hand: bool,
    /// Identifies this request if the user chose the token, and may therefore repeat a request that got no reply. Cancelling a request
    /// drops only what this very request obtained.
    pub request: Option<Token>,
}

#[cfg(test)]
impl Claim {
    /// Returns a claim to a lock that does not expire, for tests.
    pub fn example() -> Self {
        Claim {
            key: Key::new("k".as_ref()).expect("is a key"),
            token: Token::random(),
            ttl: Ttl::None,
            holder: Holder::default(),
            slots: 1,
            by_hand: false,
            request: None,
        }
    }
}
