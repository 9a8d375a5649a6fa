//! What goes on beside a wait: it is shown, and once the lock is as good as ours, the guardian is made ready, so that COMMAND
//! starts as soon as the lock is ours.

use std::ops::ControlFlow;
use std::time::Duration;

use crate::progress::Progress;
use crate::store::{Held, Watcher};
use crate::supervise::Launch;
use crate::supervise::guardian::{Preparations, Prepared};
use crate::supervise::interrupt::Ticking;
use crate::supervise::signals::Signals;

/// A guardian that is made ready when it is as good as needed.
pub struct Readiness<'a> {
    launch: &'a Launch,
    signals: &'a Signals,
    preparations: Option<Preparations>,
    guardian: Option<Prepared>,
}

impl<'a> Readiness<'a> {
    /// Nothing is ready for `launch` yet.
    pub fn new(launch: &'a Launch, signals: &'a Signals) -> Self {
        Readiness { launch, signals, preparations: None, guardian: None }
    }

    /// The guardian, if one was made ready and nobody has killed it since.
    pub fn guardian(self) -> Option<Prepared> {
        self.guardian.filter(Prepared::is_there)
    }

    // What cannot be had now is asked for again, and told, when it is needed.

    fn prepare(&mut self) {
        if self.preparations.is_none() {
            self.preparations = Preparations::new().ok();
        }
    }

    fn make_guardian(&mut self) {
        if self.guardian.is_none() {
            self.prepare();
            let preparations = self.preparations.take();
            self.guardian = preparations.and_then(|made| Prepared::new(made, self.launch, self.signals).ok());
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

    fn claiming(&mut self) {
        if let Some(readiness) = &mut self.readiness {
            readiness.make_guardian();
        }
    }

    fn not_yet(&mut self) {
        if let Some(readiness) = &mut self.readiness {
            readiness.guardian = None;
            readiness.prepare();
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
