//! Reserving the next value of a sequence: serial numbers, shards, whatever must not be used twice.

use std::ffi::OsString;

use super::next_value::{self, Found};
use super::outcome::Outcome;
use crate::lock::ending::Ending;
use crate::report::event::Event;
use crate::report::reporter::Reporter;
use crate::store::{Backend, Claim, Grant, RequestError, Reserved, Sequences, Wanted, integer};
use crate::sys::clock::Moment;
use crate::sys::signals::Signals;
use crate::text::escape::escaped;

/// How many values are tried before it is clear that the program finds none that is free.
const CANDIDATES_MAX: u32 = 10_000;

/// A sequence of values, of which each run takes one.
#[derive(Clone, Debug)]
pub struct Sequence {
    /// How one value follows another, and the first of all.
    pub order: Order,
    /// Whether a value whose command has failed stays reserved until its lease runs out.
    pub keep_on_failure: bool,
}

/// How one value of a sequence follows another.
#[derive(Clone, Debug)]
pub enum Order {
    /// Integers, at equal distances.
    Step {
        /// The first of all.
        from: i64,
        /// From one to the next; not 0.
        step: i64,
    },
    /// As a program prints them.
    Program {
        /// The first of all.
        from: String,
        /// It is called with a value, and prints the next.
        program: OsString,
    },
}

/// Reserves the next value of the sequence of the claim's key that nobody else has reserved. Gives what was granted, and the
/// value. If there is none, it has been said why, and the outcome is what is to be made of it.
pub fn reserve(
    store: &mut dyn Backend,
    claim: &Claim,
    sequence: &Sequence,
    reporter: &Reporter,
    signals: &Signals,
) -> Result<(Grant, String), Outcome> {
    let began = Moment::now();
    let key = escaped(claim.key.as_str());
    let reserved = match &sequence.order {
        Order::Step { from, step } => count(store, claim, *from, *step),
        Order::Program { from, program } => search(store, claim, from, |value| after(program, value, signals)),
    };
    match reserved {
        Ok((grant, value)) => {
            let waited = Moment::now().since(began);
            reporter.tell(Event::Acquired { fence: grant.fence, slot: None, value: Some(&value), waited });
            Ok((grant, value))
        }
        Err(Failure::Store(failed)) => {
            let error = failed.cancel(store, claim);
            reporter.fail(&error.context(format!("cannot reserve a value of the sequence \"{key}\"")));
            Err(Outcome::StoreFailed)
        }
        Err(Failure::Nothing(why)) => {
            reporter.tell(Event::Failed { why: &format!("no value of the sequence \"{key}\" is reserved: {why}") });
            Err(Outcome::Failed)
        }
        Err(Failure::Interrupted(signal)) => {
            reporter.tell(Event::Interrupted(signal));
            Err(Outcome::Ended(Ending::Signaled(signal)))
        }
    }
}

/// Why there is no value.
enum Failure {
    Store(RequestError),
    Nothing(String),
    Interrupted(i32),
}

impl From<RequestError> for Failure {
    fn from(error: RequestError) -> Self {
        Failure::Store(error)
    }
}

/// Lets the store count.
fn count(store: &mut dyn Sequences, claim: &Claim, from: i64, step: i64) -> Result<(Grant, String), Failure> {
    match store.reserve(claim, &Wanted::Next { from, step })? {
        Reserved::Mine(grant, value) => Ok((grant, value)),
        Reserved::NoNext(last) if integer(&last).is_some() => {
            Err(Failure::Nothing(format!("{last} is the last one, the next would not fit into 64 bits")))
        }
        Reserved::NoNext(last) | Reserved::Moved(Some(last)) => {
            Err(Failure::Nothing(format!("its last value, \"{}\", is no integer; use --next", escaped(&last))))
        }
        Reserved::Taken | Reserved::Moved(None) => Err(Failure::Nothing("the store does not count".into())),
    }
}

/// The value that follows another, by the program.
fn after(program: &OsString, value: &str, signals: &Signals) -> Result<String, Failure> {
    match next_value::of(program, value, signals) {
        Ok(Found::Value(next)) => Ok(next),
        Ok(Found::Interrupted(signal)) => Err(Failure::Interrupted(signal)),
        Err(why) => Err(Failure::Nothing(why)),
    }
}

/// Asks for one candidate after the other, until one is free.
fn search(
    store: &mut dyn Sequences,
    claim: &Claim,
    from: &str,
    mut after: impl FnMut(&str) -> Result<String, Failure>,
) -> Result<(Grant, String), Failure> {
    // As if there had been no value yet: if there has, the store tells which was the last.
    let (mut last, mut candidate, mut steps) = (None, from.to_owned(), 1);
    for _ in 0..CANDIDATES_MAX {
        let wanted = Wanted::Value { value: candidate.clone(), after: last.clone(), steps };
        match store.reserve(claim, &wanted)? {
            Reserved::Mine(grant, value) => return Ok((grant, value)),
            Reserved::Taken => (candidate, steps) = (after(&candidate)?, steps + 1),
            Reserved::Moved(moved) => {
                candidate = moved.as_deref().map_or_else(|| Ok(from.to_owned()), &mut after)?;
                (last, steps) = (moved, 1);
            }
            Reserved::NoNext(_) => return Err(Failure::Nothing("the store counts, but was not asked to".into())),
        }
    }
    Err(Failure::Nothing(format!("of {CANDIDATES_MAX} candidates each was reserved")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lock::holder::Holder;
    use crate::lock::key::Key;
    use crate::lock::lease::Ttl;
    use crate::lock::token::Token;

    /// A store in which the first values of a sequence are reserved, and which is only asked for more.
    struct Full {
        reserved: u32,
        asked: u32,
    }

    impl Sequences for Full {
        fn reserve(&mut self, _: &Claim, wanted: &Wanted) -> Result<Reserved, RequestError> {
            let Wanted::Value { value, after: None, steps } = wanted else { panic!("not asked for: {wanted:?}") };
            self.asked += 1;
            assert_eq!((value, *steps), (&self.asked.to_string(), self.asked));
            if self.asked <= self.reserved {
                return Ok(Reserved::Taken);
            }
            Ok(Reserved::Mine(Grant { fence: 1, slot: 0, lease_from: None }, value.clone()))
        }
    }

    /// What a search among so many reserved values finds, and how often the store was asked.
    fn search_among(reserved: u32) -> (Result<String, String>, u32) {
        let claim = Claim {
            key: Key::new("k".as_ref()).expect("is a key"),
            token: Token::random(),
            ttl: Ttl::None,
            holder: Holder::default(),
            slots: 1,
            by_hand: false,
            request: None,
        };
        let mut store = Full { reserved, asked: 0 };
        let after = |value: &str| Ok((value.parse::<u32>().expect("a number") + 1).to_string());
        let found = search(&mut store, &claim, "1", after).map(|(_, value)| value).map_err(|failure| match failure {
            Failure::Nothing(why) => why,
            _ => panic!("it was the store's fault, or a signal's"),
        });
        (found, store.asked)
    }

    #[test]
    fn a_search_ends_after_ten_thousand_candidates() {
        assert_eq!(search_among(9_999), (Ok("10000".into()), 10_000));
        assert_eq!(search_among(10_000), (Err("of 10000 candidates each was reserved".into()), 10_000));
    }
}
