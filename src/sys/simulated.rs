//! Simulated time and waiting for a thread, in place of the system's. Only for the unit tests.

use std::cell::RefCell;
use std::rc::Rc;

use super::clock::Moment;
use super::wait::WakeReason;

/// The environment of simulated processes.
pub trait Surroundings {
    /// Returns the present moment for the running process.
    fn now(&self) -> Moment;

    /// Waits until `until`, if it is given, or until something wakes the process.
    fn wait(&self, until: Option<Moment>) -> WakeReason;
}

thread_local! {
    static SURROUNDINGS: RefCell<Option<Rc<dyn Surroundings>>> = const { RefCell::new(None) };
}

/// Makes everything on this thread use `surroundings` from now on; with `None`, the real machine.
pub fn enter(surroundings: Option<Rc<dyn Surroundings>>) {
    SURROUNDINGS.set(surroundings);
}

fn surroundings() -> Option<Rc<dyn Surroundings>> {
    SURROUNDINGS.with_borrow(Clone::clone)
}

/// Returns the present moment of this thread's simulation, if it has one.
pub(super) fn now() -> Option<Moment> {
    surroundings().map(|surroundings| surroundings.now())
}

/// Waits in this thread's simulation, if it has one.
pub(super) fn wait(until: Option<Moment>) -> Option<WakeReason> {
    surroundings().map(|surroundings| surroundings.wait(until))
}
