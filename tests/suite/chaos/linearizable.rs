//! A linearizability checker after Wing and Gong, with Lowe's memory of what was tried.
//!
//! It gets operations, each with the moments at which it was invoked and responded, and a sequential model of what they
//! do. It looks for an order in which each took effect at one moment between its two, as the model allows. An operation
//! whose end is unknown may take effect at any time after it was invoked, or never.

use std::collections::HashSet;
use std::hash::Hash;

/// An operation, and between which moments it took place.
#[derive(Clone, Debug)]
pub(super) struct Operation<O> {
    pub(super) what: O,
    pub(super) invoked: i64,
    /// `None` if its end is unknown.
    pub(super) responded: Option<i64>,
}

/// A model: what an operation makes of a state; `None` if it could not have had its result.
pub(super) trait Model {
    type Operation;
    type State: Clone + Eq + Hash;

    fn apply(&self, what: &Self::Operation, state: &Self::State) -> Option<Self::State>;
}

/// Looks for an order. Fails with the operation at whose response no order was left, in the attempt that got furthest.
pub(super) fn check<M: Model>(
    model: &M,
    initial: M::State,
    operations: &[Operation<M::Operation>],
) -> Result<(), usize> {
    let mut timeline = Timeline::of(operations);
    let mut open = operations.iter().filter(|operation| operation.responded.is_some()).count();
    let mut state = initial;
    let mut done = Done::default();
    let mut tried = HashSet::new();
    let mut steps = Vec::new();
    let (mut furthest, mut stuck) = (0, 0);
    let mut at = timeline.first();
    while open > 0 {
        // The end is never reached while an operation that has responded is left: its response comes first.
        let Event { number, is_response } = timeline.events[at];
        let operation = &operations[number];
        if is_response {
            if at >= furthest {
                (furthest, stuck) = (at, number);
            }
            let Some((last, before)) = steps.pop() else { return Err(stuck) };
            state = before;
            done.remove(last);
            timeline.put_back(last);
            open += usize::from(operations[last].responded.is_some());
            at = timeline.after(timeline.call_of[last]);
            continue;
        }
        let next = model.apply(&operation.what, &state);
        let next = next.filter(|next| tried.insert((done.with(number), next.clone())));
        let Some(next) = next else {
            at = timeline.after(at);
            continue;
        };
        steps.push((number, std::mem::replace(&mut state, next)));
        done = done.with(number);
        timeline.take_out(number);
        open -= usize::from(operation.responded.is_some());
        at = timeline.first();
    }
    Ok(())
}

/// The operations that have taken effect, numbered in the order of their invocation: all below a limit, and these.
#[derive(Clone, Default, PartialEq, Eq, Hash)]
struct Done {
    below: usize,
    others: Vec<usize>,
}

impl Done {
    fn with(&self, number: usize) -> Self {
        let mut with = self.clone();
        let at = with.others.partition_point(|other| *other < number);
        with.others.insert(at, number);
        let run = with.others.iter().zip(with.below..).take_while(|(other, expected)| **other == *expected).count();
        with.others.drain(..run);
        with.below += run;
        with
    }

    fn remove(&mut self, number: usize) {
        if number < self.below {
            self.others.splice(0..0, number + 1..self.below);
            self.below = number;
        } else {
            self.others.retain(|other| *other != number);
        }
    }
}

#[derive(Clone, Copy)]
struct Event {
    number: usize,
    is_response: bool,
}

/// The calls and responses of all operations that have not taken effect yet, in order of time. The first entry is no
/// event.
struct Timeline {
    events: Vec<Event>,
    next: Vec<usize>,
    previous: Vec<usize>,
    call_of: Vec<usize>,
    response_of: Vec<Option<usize>>,
}

impl Timeline {
    fn of<O>(operations: &[Operation<O>]) -> Self {
        let call = |(number, operation): (usize, &Operation<O>)| (operation.invoked, false, number);
        let response = |(number, operation): (usize, &Operation<O>)| Some((operation.responded?, true, number));
        let calls = operations.iter().enumerate().map(call);
        let mut order: Vec<_> = calls.chain(operations.iter().enumerate().filter_map(response)).collect();
        // Within one moment, all calls come before all responses: the operations may have overlapped.
        order.sort_unstable();
        let mut timeline = Self {
            events: vec![Event { number: usize::MAX, is_response: false }],
            next: (1..order.len() + 2).collect(),
            previous: (0..order.len() + 2).map(|at| at.saturating_sub(1)).collect(),
            call_of: vec![0; operations.len()],
            response_of: vec![None; operations.len()],
        };
        for (at, (_, is_response, number)) in order.into_iter().enumerate() {
            timeline.events.push(Event { number, is_response });
            if is_response {
                timeline.response_of[number] = Some(at + 1);
            } else {
                timeline.call_of[number] = at + 1;
            }
        }
        timeline
    }

    fn first(&self) -> usize {
        self.next[0]
    }

    fn after(&self, at: usize) -> usize {
        self.next[at]
    }

    fn take_out(&mut self, number: usize) {
        for at in [Some(self.call_of[number]), self.response_of[number]].into_iter().flatten() {
            let (previous, next) = (self.previous[at], self.next[at]);
            self.next[previous] = next;
            self.previous[next] = previous;
        }
    }

    /// Puts back the operation that was taken out last.
    fn put_back(&mut self, number: usize) {
        for at in [self.response_of[number], Some(self.call_of[number])].into_iter().flatten() {
            let (previous, next) = (self.previous[at], self.next[at]);
            self.next[previous] = at;
            self.previous[next] = at;
        }
    }
}

mod tests {
    use super::*;

    /// A register, which each operation writes or reads.
    struct Register;

    enum Use {
        Write(u8),
        Read(u8),
    }
    use Use::{Read, Write};

    impl Model for Register {
        type Operation = Use;
        type State = u8;

        fn apply(&self, what: &Use, state: &u8) -> Option<u8> {
            match *what {
                Write(value) => Some(value),
                Read(value) => (value == *state).then_some(value),
            }
        }
    }

    fn of(uses: impl IntoIterator<Item = (Use, i64, Option<i64>)>) -> Result<(), usize> {
        let operation = |(what, invoked, responded)| Operation { what, invoked, responded };
        check(&Register, 0, &uses.into_iter().map(operation).collect::<Vec<_>>())
    }

    // Operations one after the other take effect in this order.
    #[test]
    fn one_after_the_other() {
        assert_eq!(of([(Write(1), 0, Some(1)), (Read(1), 2, Some(3))]), Ok(()));
        assert_eq!(of([(Write(1), 0, Some(1)), (Read(0), 2, Some(3))]), Err(1));
        assert_eq!(of([]), Ok(()));
    }

    // Overlapping operations may take effect in any order, which makes the checker backtrack.
    #[test]
    fn at_once() {
        let writes = || [(Write(1), 0, Some(9)), (Write(2), 1, Some(9)), (Write(3), 2, Some(9))];
        assert_eq!(
            of(writes().into_iter().chain([(Read(3), 3, Some(4)), (Read(2), 5, Some(6)), (Read(1), 7, Some(8))])),
            Ok(())
        );
        assert_eq!(
            of(writes().into_iter().chain([(Read(3), 3, Some(4)), (Read(2), 5, Some(6)), (Read(3), 7, Some(8))])),
            Err(5)
        );
    }

    // An order may suit one reader, but it has to suit all.
    #[test]
    fn a_value_that_was_there_already_is_not_forgotten() {
        assert_eq!(of([(Write(1), 0, Some(9)), (Read(1), 1, Some(2)), (Read(0), 3, Some(4))]), Err(2));
        assert_eq!(of([(Write(1), 0, Some(9)), (Read(1), 1, Some(4)), (Read(0), 3, Some(5))]), Ok(()));
    }

    // An operation without an end may take effect late, or never.
    #[test]
    fn an_unknown_end() {
        assert_eq!(of([(Write(1), 0, None), (Read(0), 1, Some(2)), (Read(1), 3, Some(4))]), Ok(()));
        assert_eq!(of([(Write(1), 0, None), (Read(0), 1, Some(2))]), Ok(()));
        assert_eq!(of([(Write(1), 0, None), (Read(1), 1, Some(2)), (Read(0), 3, Some(4))]), Err(2));
    }
}
