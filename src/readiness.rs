//! What goes on beside a wait: it is shown, and once the lock is as good as ours, the guardian is made ready, so that COMMAND
//! starts as soon as the lock is ours.

use std::time::Duration;

use crate::progress::Progress;
use crate::store::{Held, Watcher};
use crate::supervise::Launch;
use crate::supervise::guardian::{Preparations, Prepared};
use crate::supervise::interrupt::Ticking;
use crate::supervise::signals::Signals;

/// Looks on while lockrun waits.
pub struct Readiness<'a> {
    progress: Progress<'a>,
    launch: &'a Launch,
    preparations: Option<Preparations>,
    signals: &'a Signals,
    guardian: Option<Prepared>,
}

impl<'a> Readiness<'a> {
    /// Shows the wait as `progress`; gets ready for `launch`.
    pub fn new(progress: Progress<'a>, launch: &'a Launch, signals: &'a Signals) -> Self {
        Readiness { progress, launch, preparations: Preparations::new().ok(), signals, guardian: None }
    }

    /// The wait is over. Gives the guardian, if one was made ready.
    pub fn guardian(self) -> Option<Prepared> {
        self.guardian
    }
}

impl Watcher for Readiness<'_> {
    fn waiting(&mut self, held: &Held) {
        self.progress.waiting(held);
    }

    fn claiming(&mut self) {
        if self.guardian.is_none() {
            // If it cannot be had, that is told when it is needed.
            let preparations = self.preparations.take().map_or_else(Preparations::new, Ok);
            self.guardian = preparations.and_then(|made| Prepared::new(made, self.launch, self.signals)).ok();
        }
    }

    fn not_yet(&mut self) {
        self.guardian = None;
    }
}

impl Ticking for Readiness<'_> {
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
