//! The clock and the waiting of a thread that is a simulation, in place of the system's. Only in the unit tests.

use std::cell::RefCell;
use std::rc::Rc;

use super::clock::Moment;
use super::wait::WakeReason;

/// What simulated processes live in.
pub trait Surroundings {
    /// Returns the present moment for the process that runs.
    fn now(&self) -> Moment;

    /// Waits until `until`, if it is given, or until a signal comes.
    fn wait(&self, until: Option<Moment>) -> WakeReason;
}

thread_local! {
    static SURROUNDINGS: RefCell<Option<Rc<dyn Surroundings>>> = const { RefCell::new(None) };
}

/// Lets all that runs on this thread live in `surroundings` from now on; with `None`, on the real machine.
pub fn enter(surroundings: Option<Rc<dyn Surroundings>>) {
    SURROUNDINGS.set(surroundings);
}

fn surroundings() -> Option<Rc<dyn Surroundings>> {
    SURROUNDINGS.with_borrow(Clone::clone)
}

/// Returns the present moment in this thread's simulation, if it is one.
pub(super) fn now() -> Option<Moment> {
    surroundings().map(|surroundings| surroundings.now())
}

/// Waits in this thread's simulation, if it is one.
pub(super) fn wait(until: Option<Moment>) -> Option<WakeReason> {
    surroundings().map(|surroundings| surroundings.wait(until))
}
