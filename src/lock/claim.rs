//! A claim to a lock.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::holder::Holder;
use super::key::Key;
use super::lease::Ttl;
use super::state::Purpose;
use super::token::Token;

/// The longest that a place in the queue lasts without a request of its waiter: for so long a dead one can keep the
/// lock unused.
const PLACE_MAX: Duration = Duration::from_secs(30);

/// A claim to a lock, under a token, for a holder.
#[derive(Clone, Debug)]
pub struct Claim {
    /// The lock's name.
    pub key: Key,
    /// The token of this acquisition. The store checks every later change against it.
    pub token: Token,
    /// How long the lease lasts after each renewal.
    pub ttl: Ttl,
    /// The process that claims the lock.
    pub holder: Holder,
    /// How the lock may be shared.
    pub mode: Mode,
    /// Skips the lock if a run that began less than this ago has succeeded.
    pub once_per: Option<Duration>,
    /// Whether the lock is acquired by hand and outlives this process. Otherwise a run holds and renews it.
    pub by_hand: bool,
    /// Identifies this request if the user chose the token, and may therefore repeat a request that got no reply.
    /// Cancelling a request drops only what that request obtained.
    pub request: Option<Token>,
}

impl Claim {
    /// Returns how long the claim's place in a queue lasts after each of its requests.
    pub fn place(&self) -> Duration {
        self.ttl.length().map_or(PLACE_MAX, |ttl| ttl.min(PLACE_MAX))
    }

    /// Returns what the lock is claimed for.
    pub fn purpose(&self) -> Purpose {
        if self.by_hand { Purpose::Hand } else { Purpose::Run }
    }
}

/// How a lock may be shared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Beside other holders with slots, up to this many in all. At least 1; with 1 the lock is held alone.
    Slots(u32),
    /// Beside any number of other shared holders, and no others.
    Shared,
}

impl Mode {
    /// Held alone.
    pub const EXCLUSIVE: Self = Mode::Slots(1);

    /// Returns whether the lock is held alone.
    // Serde requires a reference.
    #[allow(clippy::trivially_copy_pass_by_ref)]
    pub fn is_exclusive(&self) -> bool {
        *self == Self::EXCLUSIVE
    }

    /// Returns the number of slots if there are several: only then does a run learn its slot.
    pub fn several_slots(self) -> Option<u32> {
        match self {
            Mode::Slots(slots) if slots > 1 => Some(slots),
            _ => None,
        }
    }
}

impl Default for Mode {
    /// Returns [`Mode::EXCLUSIVE`].
    fn default() -> Self {
        Self::EXCLUSIVE
    }
}

#[cfg(test)]
impl Claim {
    /// Returns a claim whose lease never expires, for tests.
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
