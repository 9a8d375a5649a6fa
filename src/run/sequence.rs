//! Reserving the next value of a sequence: serial numbers, shards and other values that must not be used twice.

use std::ffi::OsString;
use std::time::Duration;

use super::next_value::{self, NextValue, SilentObserver};
use super::outcome::{HELD, Outcome};
use crate::lock::ending::Ending;
use crate::report::Verbosity;
use crate::report::event::Event;
use crate::report::reporter::Reporter;
use crate::store::{Backend, Claim, Grant, RequestError, Reserved, RetryClass, Wanted, integer};
use crate::supervise::guardian::Guardian;
use crate::sys::backoff::Backoff;
use crate::sys::clock::Moment;
use crate::sys::counter::Counter;
use crate::sys::signals::Signals;
use crate::sys::wait::{Waiter, WakeReason};
use crate::text::duration;
use crate::text::escape::escaped;

/// How many values are tried before the search for a free one fails.
const CANDIDATES_MAX: u32 = 10_000;

/// For how long to go on at least if the store answers, but is too busy: others keep changing the same lock, or too
/// many are connected.
const BUSY_FOR: Duration = Duration::from_secs(30);

/// A sequence of values. Each run uses one.
#[derive(Clone, Debug)]
pub struct Sequence {
    /// How one value follows another, and the first value.
    pub order: Order,
    /// Whether a value whose command has failed stays reserved until its lease expires.
    pub keep_on_failure: bool,
}

/// How one value of a sequence follows another.
#[derive(Clone, Debug)]
pub enum Order {
    /// Integers, at equal distances.
    Step {
        /// The first value.
        from: i64,
        /// The distance from one to the next; not 0.
        step: i64,
    },
    /// Computed by a program.
    Program {
        /// The first value.
        from: String,
        /// The program, which prints the value that follows its argument.
        program: OsString,
    },
}

/// Reserves the next value of the key's sequence that no other run has reserved; `guardian` is set if this process is
/// one. For `store_retry`, see [`Asking::ask`]. Returns the grant and the value. If that fails, reports why and returns
/// the run's outcome.
pub fn reserve(
    store: &mut dyn Backend,
    claim: &Claim,
    sequence: &Sequence,
    store_retry: Duration,
    reporter: &Reporter,
    signals: &Signals,
    guardian: Option<&Guardian>,
) -> Result<(Grant, String), Outcome> {
    let began = Moment::now();
    let key = escaped(claim.key.as_str());
    let mut asking = Asking { store, claim, store_retry, reporter, signals, guardian };
    let ask = |wanted: &Wanted| asking.ask(wanted);
    let reserved = match &sequence.order {
        Order::Step { from, step } => reserve_integer(ask, *from, *step),
        Order::Program { from, program } => {
            let next_after = |value: &str| compute_next(program, value, signals, guardian);
            reserve_computed(ask, from, reporter.verbosity, next_after)
        }
    };
    match reserved {
        Ok((grant, value)) => {
            let waited = Moment::now().since(began);
            reporter.report(Event::Acquired { fence: grant.fence, slot: None, value: Some(&value), waited });
            Ok((grant, value))
        }
        Err(Failure::Store(failed)) => {
            let error = failed.cancel(store, claim);
            reporter.fail(&error.context(format!("cannot reserve a value of the sequence \"{key}\"")));
            Err(Outcome::StoreFailed)
        }
        Err(Failure::NoValue(why)) => {
            reporter.report(Event::Failed { why: &format!("cannot reserve a value of the sequence \"{key}\": {why}") });
            Err(Outcome::Failed)
        }
        Err(Failure::Withheld(span)) => {
            let span = duration::say(span);
            let why = format!("its server has started, or failed over, and reserves nothing for another {span}");
            reporter.report(Event::Failed { why: &format!("cannot reserve a value of the sequence \"{key}\": {why}") });
            Err(Outcome::Held(HELD))
        }
        Err(Failure::Interrupted(signal)) => {
            reporter.report(Event::Interrupted(signal));
            Err(Outcome::Ended(Ending::Signaled(signal)))
        }
    }
}

/// Asks the store for a value, and goes on while the store is away, or too busy.
struct Asking<'a> {
    store: &'a mut dyn Backend,
    claim: &'a Claim,
    store_retry: Duration,
    reporter: &'a Reporter,
    signals: &'a Signals,
    guardian: Option<&'a Guardian>,
}

impl Asking<'_> {
    /// Returns the store's answer. A store that is away is asked for `store_retry`, and one that is too busy for
    /// [`BUSY_FOR`] at least, each from its first such answer to this request.
    fn ask(&mut self, wanted: &Wanted) -> Result<Reserved, Failure> {
        let (mut backoff, mut away_from, mut busy_from) = (Backoff::new(), None, None);
        loop {
            let failed = match self.store.reserve(self.claim, wanted) {
                // A request that was sent could reserve a value although the next one asks for another.
                Err(failed) if failed.never_sent && failed.retry_class != RetryClass::Permanent => failed,
                answered => {
                    if answered.is_ok() && away_from.is_some() {
                        self.reporter.report(Event::Recovered);
                    }
                    return Ok(answered?);
                }
            };
            let now = Moment::now();
            let (from, patience) = if failed.retry_class == RetryClass::Busy {
                // A store that is busy has answered.
                if away_from.take().is_some() {
                    self.reporter.report(Event::Recovered);
                }
                (*busy_from.get_or_insert(now), self.store_retry.max(BUSY_FOR))
            } else {
                (*away_from.get_or_insert(now), self.store_retry)
            };
            let tried = now.since(from);
            if tried >= patience {
                return Err(Failure::Store(failed.after_trying_for(tried)));
            }
            if away_from == Some(now) {
                self.reporter.report(Event::Outage { why: &format!("{:#}", failed.error), left: patience });
            }
            if let Some(signal) = pause(backoff.next(), self.signals, self.guardian) {
                return Err(Failure::Interrupted(signal));
            }
        }
    }
}

/// Waits for `span`, and for as long as lockrun is stopped. Returns a signal that would terminate lockrun, if one came.
fn pause(span: Duration, signals: &Signals, guardian: Option<&Guardian>) -> Option<i32> {
    loop {
        let woken = Waiter::new(signals).wait_for(None, Some(Moment::now() + span), &mut SilentObserver { guardian });
        match woken {
            Ok(WakeReason::Signal(signal)) => return Some(signal),
            _ if guardian.is_some_and(Guardian::is_stopped) => {}
            _ => return None,
        }
    }
}

/// Why no value was reserved.
enum Failure {
    Store(RequestError),
    NoValue(String),
    /// After a failover, the store reserves nothing for this long.
    Withheld(Duration),
    Interrupted(i32),
}

impl From<RequestError> for Failure {
    fn from(error: RequestError) -> Self {
        Failure::Store(error)
    }
}

/// Reserves the next integer, which the store computes.
fn reserve_integer(
    mut ask: impl FnMut(&Wanted) -> Result<Reserved, Failure>,
    from: i64,
    step: i64,
) -> Result<(Grant, String), Failure> {
    match ask(&Wanted::Next { from, step })? {
        Reserved::Mine(grant, value) => Ok((grant, value)),
        Reserved::NoNext(last) if integer(&last).is_some() => {
            Err(Failure::NoValue(format!("{last} is the last one: the next would not fit into 64 bits")))
        }
        Reserved::NoNext(last) | Reserved::LastChanged(Some(last)) => {
            Err(Failure::NoValue(format!("its last value, \"{}\", is not an integer; use --next", escaped(&last))))
        }
        Reserved::Withheld(span) => Err(Failure::Withheld(span)),
        Reserved::Taken | Reserved::LastChanged(None) => {
            Err(Failure::NoValue("the store did not compute an integer".into()))
        }
    }
}

/// Returns the value that the program prints for `value`.
fn compute_next(
    program: &OsString,
    value: &str,
    signals: &Signals,
    guardian: Option<&Guardian>,
) -> Result<String, Failure> {
    match next_value::run(program, value, signals, guardian) {
        Ok(NextValue::Value(next)) => Ok(next),
        Ok(NextValue::Interrupted(signal)) => Err(Failure::Interrupted(signal)),
        Err(why) => Err(Failure::NoValue(why)),
    }
}

/// Tries one candidate after the other until one is free. Shows how many, unless the run is quiet.
fn reserve_computed(
    mut ask: impl FnMut(&Wanted) -> Result<Reserved, Failure>,
    from: &str,
    verbosity: Verbosity,
    mut next_after: impl FnMut(&str) -> Result<String, Failure>,
) -> Result<(Grant, String), Failure> {
    // Assumes an unused sequence; otherwise the store returns the last value.
    let (mut last, mut candidate, mut steps) = (None, from.to_owned(), 1);
    let mut counter = (verbosity > Verbosity::Quiet).then(|| Counter::new("looking for a free value, tried", None));
    for _ in 0..CANDIDATES_MAX {
        if let Some(counter) = &mut counter {
            counter.add(1);
        }
        let wanted = Wanted::Value { value: candidate.clone(), after: last.clone(), steps };
        match ask(&wanted)? {
            Reserved::Mine(grant, value) => return Ok((grant, value)),
            Reserved::Withheld(span) => return Err(Failure::Withheld(span)),
            Reserved::Taken => (candidate, steps) = (next_after(&candidate)?, steps + 1),
            Reserved::LastChanged(now_last) => {
                candidate = now_last.as_deref().map_or_else(|| Ok(from.to_owned()), &mut next_after)?;
                (last, steps) = (now_last, 1);
            }
            Reserved::NoNext(_) => {
                return Err(Failure::NoValue("the store computed an integer although a value was given".into()));
            }
        }
    }
    Err(Failure::NoValue(format!("all of {CANDIDATES_MAX} candidates are reserved")))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns what [`reserve_computed`] finds if the first `reserved` values are reserved, and how often the store was
    /// asked.
    fn reserve_computed_among(reserved: u32) -> (Result<String, String>, u32) {
        let mut asked = 0;
        let ask = |wanted: &Wanted| {
            let Wanted::Value { value, after: None, steps } = wanted else { panic!("not asked for: {wanted:?}") };
            asked += 1;
            assert_eq!((value, *steps), (&asked.to_string(), asked));
            if asked <= reserved {
                return Ok(Reserved::Taken);
            }
            Ok(Reserved::Mine(Grant { fence: 1, slot: 0, lease_from: None, by_hand_off: false }, value.clone()))
        };
        let after = |value: &str| Ok((value.parse::<u32>().expect("a number") + 1).to_string());
        let found = reserve_computed(ask, "1", Verbosity::Quiet, after);
        let found = found.map(|(_, value)| value).map_err(|failure| match failure {
            Failure::NoValue(why) => why,
            _ => panic!("it was the store's fault, or a signal's"),
        });
        (found, asked)
    }

    #[test]
    fn a_search_ends_after_ten_thousand_candidates() {
        assert_eq!(reserve_computed_among(9_999), (Ok("10000".into()), 10_000));
        assert_eq!(reserve_computed_among(10_000), (Err("all of 10000 candidates are reserved".into()), 10_000));
    }
}
