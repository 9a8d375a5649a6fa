//! A claim to a lock.

use std::time::Duration;

use serde::{Deserialize, Serialize};

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
    /// How it may be shared.
    pub mode: Mode,
    /// The lock is not wanted if a run that began less than this ago has ended with 0.
    pub once_per: Option<Duration>,
    /// Whether the lock is acquired by hand and outlives this process. Otherwise a run holds and renews it.
    pub by_hand: bool,
    /// Identifies this request if the user chose the token, and may therefore repeat a request that got no reply. Cancelling a request
    /// drops only what this very request obtained.
    pub request: Option<Token>,
}

/// How a lock may be shared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Beside other holders with slots, up to so many in all; at least 1, which is to hold it alone.
    Slots(u32),
    /// Beside any number of others that share it, and nobody else.
    Shared,
}

impl Mode {
    /// Held alone.
    pub const EXCLUSIVE: Self = Mode::Slots(1);

    /// Returns how many slots there are, if there are several: then a run learns which one it has.
    pub fn several_slots(self) -> Option<u32> {
        match self {
            Mode::Slots(slots) if slots > 1 => Some(slots),
            _ => None,
        }
    }
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
            mode: Mode::EXCLUSIVE,
            once_per: None,
            by_hand: false,
            request: None,
        }
    }
}
