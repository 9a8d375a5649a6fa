//! A lock that another run holds, and how messages name it.

use std::fmt;
use std::time::Duration;

use crate::lock::holder::Holder;
use crate::lock::state::Purpose;
use crate::lock::token::Token;
use crate::text::duration;

/// A lock that another run holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Held {
    /// The holder, as far as it is known.
    pub holder: Option<Holder>,
    /// How long it has held the lock.
    pub since: Option<Duration>,
    /// How long its lease still lasts, if it ends.
    pub expires_in: Option<Duration>,
    /// How long the lock is withheld from everybody, because the store has started or failed over to a new primary, and
    /// may not know of a lock that was acquired just before.
    pub withheld: Option<Duration>,
    /// Our place in the queue, from 0, if the store keeps the queue: then the place has to be renewed.
    pub place: Option<u64>,
    /// In how long to ask again, although nothing wakes us: a lease, or a place ahead of ours, has ended then. `None`:
    /// not before our place has to be renewed.
    pub look_in: Option<Duration>,
    /// The last fence issued, if we wait.
    pub last_fence: u64,
    /// Its token, only to be compared: any client that knows it can release the lock.
    pub token: Option<Token>,
    /// What it holds the lock for.
    pub purpose: Purpose,
    /// Whether its lock was revoked, and stays held only until its command has ended.
    pub is_revoked: bool,
}

impl Held {
    /// Returns whether the lock is withheld, and has no known holder.
    pub fn is_withheld(&self) -> bool {
        self.holder.is_none() && self.withheld.is_some()
    }

    /// Names the holder, as in `web-1 pid 4242 (deploy: ./report.sh) for 3m 12s`.
    pub fn named(&self) -> String {
        match &self.holder {
            Some(holder) => format!("{holder} for {}", span(self.since)),
            None => "a run that has left no name".to_owned(),
        }
    }

    /// Returns what frees a lock under which no command runs.
    fn what_frees_it(&self) -> String {
        match self.expires_in {
            Some(left) => format!("free in {}, or when it is released", duration::say(left)),
            None => "free with lockrun release, or lockrun break".to_owned(),
        }
    }
}

/// Describes how the lock is held, as it follows `is`: `held by web-1 pid 4242 (deploy: ./report.sh) for 3m 12s`, or
/// where no command runs under it, what frees it.
impl fmt::Display for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let (None, Some(span)) = (&self.holder, self.withheld) {
            let span = duration::say(span);
            return write!(
                f,
                "withheld for another {span}: its server has started, or failed over, and an earlier holder may still run"
            );
        }
        let named = self.named();
        match (self.is_revoked, self.purpose, self.expires_in) {
            (true, _, Some(left)) => {
                let left = duration::say(left);
                write!(f, "held by {named}, but revoked: free when its command has ended, in {left} at the latest")
            }
            (true, _, None) => write!(f, "held by {named}, but revoked: free when its command has ended"),
            (false, Purpose::Hand, _) => write!(f, "held by {named}, acquired by hand: {}", self.what_frees_it()),
            (false, Purpose::Kept, _) => {
                let who = self.holder.as_ref().map_or_else(|| named.clone(), Holder::to_string);
                write!(f, "kept by {who} after its run: {}", self.what_frees_it())
            }
            (false, Purpose::Run | Purpose::Unrecorded, _) => write!(f, "held by {named}"),
        }
    }
}

fn span(since: Option<Duration>) -> String {
    since.map_or_else(|| "an unknown time".into(), duration::say)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lock::key::Key;

    #[test]
    fn the_holder_is_named() {
        let holder = Holder {
            host: "web-1".into(),
            pid: 4242,
            user: "deploy".into(),
            command: "./report.sh".into(),
            label: None,
        };
        let message = crate::report::message::held_by(
            &Key::new("nightly-report".as_ref()).expect("is a key"),
            &Held { holder: Some(holder), since: Some(Duration::from_secs(192)), ..Held::default() },
        );
        assert_eq!(message, "lock \"nightly-report\" is held by web-1 pid 4242 (deploy: ./report.sh) for 3m 12s");
    }
}
