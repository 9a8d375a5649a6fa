//! What goes on beside a wait: it is shown, and once the lock is as good as ours, the guardian is made ready, so that COMMAND
//! starts as soon as the lock is ours.

use std::ops::ControlFlow;
use std::time::Duration;

use crate::clock::Moment;
use crate::progress::Progress;
use crate::store::{Held, Watcher};
use crate::supervise::Launch;
use crate::supervise::guardian::{Preparations, Prepared};
use crate::supervise::interrupt::Ticking;
use crate::supervise::signals::Signals;

/// The next one in the queue makes its guardian ready this long after the one before it was granted the lock, which is to
/// start first, and keeps it so long: where runs are short the lock comes before that, and where they are not, a waiter is one
/// process and no more.
const READY: (Duration, Duration) = (Duration::from_millis(3), Duration::from_secs(1));

/// A guardian that is made ready when it is as good as needed.
pub struct Readiness<'a> {
    launch: &'a Launch,
    signals: &'a Signals,
    preparations: Option<Preparations>,
    guardian: Option<Prepared>,
    /// Since when we are next, if that is not long ago.
    next_since: Option<Moment>,
}

impl<'a> Readiness<'a> {
    /// Nothing is ready for `launch` yet.
    pub fn new(launch: &'a Launch, signals: &'a Signals) -> Self {
        Readiness { launch, signals, preparations: None, guardian: None, next_since: None }
    }

    /// The guardian, if one was made ready.
    pub fn guardian(self) -> Option<Prepared> {
        self.guardian
    }

    // What cannot be had now is asked for again, and told, when it is needed.

    fn prepare(&mut self) {
        if self.preparations.is_none() {
            self.preparations = Preparations::new().ok();
        }
    }

    /// When [`Self::tick`] wants to be called.
    fn tick_every(&self) -> Option<Duration> {
        self.next_since.map(|_| if self.guardian.is_none() { READY.0 } else { READY.1 })
    }

    fn tick(&mut self) {
        let Some(waited) = self.next_since.map(|since| Moment::now().since(since)) else { return };
        if waited >= READY.1 {
            self.next_since = None;
            self.guardian = None;
        } else if waited >= READY.0 {
            self.make_guardian();
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

    fn next(&mut self) {
        if let Some(readiness) = &mut self.readiness {
            readiness.next_since = Some(Moment::now());
        }
    }

    fn claiming(&mut self) {
        if let Some(readiness) = &mut self.readiness {
            readiness.make_guardian();
        }
    }

    fn not_yet(&mut self) {
        if let Some(readiness) = &mut self.readiness {
            readiness.next_since = None;
            readiness.guardian = None;
            readiness.prepare();
        }
    }
}

impl Ticking for Onlooker<'_, '_> {
    fn tick_every(&self) -> Option<Duration> {
        let readiness = self.readiness.as_ref().and_then(|readiness| readiness.tick_every());
        self.progress.tick_every().into_iter().chain(readiness).min()
    }

    fn tick(&mut self) {
        if let Some(readiness) = &mut self.readiness {
            readiness.tick();
        }
        self.progress.tick();
    }

    fn pause(&mut self) {
        self.progress.pause();
    }
}
