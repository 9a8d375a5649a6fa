//! Taking a lock as patiently as the user wants, and saying what came of it.

use crate::clock::Moment;
use crate::escape::escaped;
use crate::event::Event;
use crate::outcome::{Ending, Outcome};
use crate::outer::Outer;
use crate::plan::OnHeld;
use crate::progress::Progress;
use crate::readiness::{Onlooker, Readiness};
use crate::store::{Acquired, Claim, Grant, Held, Store, Wait};
use crate::supervise::signals::Signals;
use crate::teller::Teller;

/// What to do when a lock is held.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    /// Whether to wait.
    pub on_held: OnHeld,
    /// The exit status if it stays held.
    pub held_status: u8,
}

/// Takes the lock that `claim` names, and gets ready for what it is for. If there is no grant, it has been said why, and the
/// outcome is what is to be made of it.
pub fn acquire(
    store: &mut dyn Store,
    claim: &Claim,
    patience: Patience,
    outer: &Outer,
    teller: &Teller,
    signals: &Signals,
    readiness: Option<&mut Readiness<'_>>,
) -> Result<Grant, Outcome> {
    let Patience { on_held, held_status } = patience;
    let began = Moment::now();
    // With several slots another one may come free.
    let waits_for_itself = |held: &Held| claim.slots == 1 && outer.hold(held);
    let acquired = match on_held {
        OnHeld::Fail | OnHeld::Skip => store.acquire(claim, None),
        OnHeld::Wait(span) => {
            let until = span.map(|span| began + span);
            let progress = Progress::new(teller, &waits_for_itself);
            let watcher = &mut Onlooker::new(progress, readiness);
            store.acquire(claim, Some(Wait { until, signals, watcher }))
        }
    };
    match acquired {
        Ok(Acquired::Mine(grant)) => {
            let slot = (claim.slots > 1).then_some(grant.slot);
            teller.tell(Event::Acquired { fence: grant.fence, slot, value: None, waited: Moment::now().since(began) });
            Ok(grant)
        }
        Ok(Acquired::Interrupted(signal)) => {
            teller.tell(Event::Interrupted(signal));
            Err(Outcome::Ended(Ending::Signaled(signal)))
        }
        Ok(Acquired::Held(held)) if on_held == OnHeld::Skip => {
            teller.tell(Event::Skipped(&held));
            Err(Outcome::Skipped)
        }
        Ok(Acquired::Held(held)) => {
            let around = matches!(on_held, OnHeld::Wait(_)) && waits_for_itself(&held);
            teller.tell(if around { Event::HeldAround(&held) } else { Event::Held(&held) });
            Err(Outcome::Held(held_status))
        }
        Err(error) => {
            let key = escaped(claim.key.as_str());
            teller.fail(&error.context(format!("cannot take the lock \"{key}\"")));
            Err(Outcome::StoreFailed)
        }
    }
}
