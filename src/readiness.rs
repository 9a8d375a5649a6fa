//! What goes on beside a wait: it is shown, and the guardian is made ready, so that COMMAND starts as soon as the lock is ours.

use std::ops::ControlFlow;
use std::time::Duration;

use crate::progress::Progress;
use crate::store::{Held, Watcher};
use crate::supervise::Launch;
use crate::supervise::guardian::Prepared;
use crate::supervise::interrupt::Ticking;
use crate::supervise::signals::Signals;

/// A guardian that is made ready while there is time.
pub struct Readiness<'a> {
    launch: &'a Launch,
    signals: &'a Signals,
    guardian: Option<Prepared>,
}

impl<'a> Readiness<'a> {
    /// Nothing is ready for `launch` yet.
    pub fn new(launch: &'a Launch, signals: &'a Signals) -> Self {
        Readiness { launch, signals, guardian: None }
    }

    /// The guardian, if one was made ready and nobody has killed it since.
    pub fn guardian(self) -> Option<Prepared> {
        self.guardian.filter(Prepared::is_there)
    }

    fn make_guardian(&mut self) {
        if !self.guardian.as_ref().is_some_and(Prepared::is_there) {
            // What cannot be had now is asked for again, and told, when it is needed.
            self.guardian = Prepared::new(self.launch, self.signals).ok();
        }
    }
}

/// Looks on while lockrun waits.
pub struct Onlooker<'a, 'b> {
    progress: Progress<'a>,
    readiness: Option<&'a mut Readiness<'b>>,
}

impl<'a, 'b> Onlooker<'a, 'b> {
    /// Shows the wait as `progress`, and makes ready what is to be ready.
    pub fn new(progress: Progress<'a>, readiness: Option<&'a mut Readiness<'b>>) -> Self {
        Onlooker { progress, readiness }
    }
}

impl Watcher for Onlooker<'_, '_> {
    fn waiting(&mut self, held: &Held) -> ControlFlow<()> {
        self.progress.waiting(held)
    }

    fn queueing(&mut self) {
        if let Some(readiness) = &mut self.readiness {
            readiness.make_guardian();
        }
    }
}

impl Ticking for Onlooker<'_, '_> {
    fn tick_every(&self) -> Option<Duration> {
        self.progress.tick_every()
    }

    fn tick(&mut self) {
        self.progress.tick();
    }

    fn pause(&mut self) {
        self.progress.pause();
    }
}
