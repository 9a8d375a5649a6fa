//! What a run asks of a store.

use super::holder::Holder;
use super::key::Key;
use super::lease::Ttl;
use super::token::Token;

/// What a run asks of a store: this lock, under this token, for itself.
#[derive(Clone, Debug)]
pub struct Claim {
    /// The lock's name.
    pub key: Key,
    /// The name of this one acquisition. Every later change is checked against it.
    pub token: Token,
    /// How long the lease lasts from one renewal.
    pub ttl: Ttl,
    /// Who asks.
    pub holder: Holder,
    /// How many may hold the lock at once, at least 1. (Whether it is asked for shared or exclusively belongs beside it, and into
    /// [`HolderState`](super::state::HolderState) and [`WaiterState`](super::state::WaiterState) with it.)
    pub slots: u32,
    /// Whether the lock is acquired by hand, to outlive this process. Otherwise it is a run's, which renews it.
    pub by_hand: bool,
    /// Which request this is, if the token is the user's own, who may ask again under it when no answer came. To cancel a request drops
    /// only what that very request obtained.
    pub request: Option<Token>,
}
