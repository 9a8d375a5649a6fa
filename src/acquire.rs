//! Taking a lock as patiently as the user wants, and saying what came of it.

use crate::clock::Moment;
use crate::escape::escaped;
use crate::outcome::{Ending, Outcome};
use crate::outer::Outer;
use crate::plan::OnHeld;
use crate::progress::Progress;
use crate::report::{self, Verbosity};
use crate::store::{Acquired, Claim, Grant, Held, Store, Wait};
use crate::supervise::signals::Signals;

/// What to do when a lock is held.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    /// Whether to wait.
    pub on_held: OnHeld,
    /// The exit status if it stays held.
    pub held_status: u8,
    /// How much to say.
    pub verbosity: Verbosity,
}

/// Takes the lock that `claim` names. If there is no grant, it has been said why, and the outcome is what is to be made of it.
pub fn acquire(
    store: &mut dyn Store,
    claim: &Claim,
    patience: Patience,
    outer: &Outer,
    signals: &Signals,
) -> Result<Grant, Outcome> {
    let key = escaped(claim.key.as_str());
    let Patience { on_held, held_status, verbosity } = patience;
    // With several slots another one may come free.
    let waits_for_itself = |held: &Held| claim.slots == 1 && outer.hold(held);
    let acquired = match on_held {
        OnHeld::Fail | OnHeld::Skip => store.acquire(claim, None),
        OnHeld::Wait(span) => {
            let until = span.map(|span| Moment::now() + span);
            let watcher = &mut Progress::new(&claim.key, verbosity, &waits_for_itself);
            store.acquire(claim, Some(Wait { until, signals, watcher }))
        }
    };
    match acquired {
        Ok(Acquired::Mine(grant)) => {
            if verbosity == Verbosity::Verbose {
                report::say(&format!("lock \"{key}\" acquired, fence {}", grant.fence));
            }
            Ok(grant)
        }
        Ok(Acquired::Interrupted(signal)) => Err(Outcome::Ended(Ending::Signaled(signal))),
        Ok(Acquired::Held(held)) if on_held == OnHeld::Skip => {
            if verbosity == Verbosity::Verbose {
                report::say(&format!("skipped: {}", report::held(&claim.key, &held)));
            }
            Err(Outcome::Skipped)
        }
        Ok(Acquired::Held(held)) => {
            if matches!(on_held, OnHeld::Wait(_)) && waits_for_itself(&held) {
                report::say(&format!(
                    "refuses to wait for the lock \"{key}\": it is held by the very run that this one is part of, {held}"
                ));
            } else if verbosity > Verbosity::Quiet {
                report::say(&report::held(&claim.key, &held));
            }
            Err(Outcome::Held(held_status))
        }
        Err(error) => {
            report::error(&error.context(format!("cannot take the lock \"{key}\"")));
            Err(Outcome::StoreFailed)
        }
    }
}
