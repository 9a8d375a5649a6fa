//! The growing pauses between attempts at something that fails for a while.

use std::time::Duration;

/// The first pause, and the longest.
const PAUSE: (Duration, Duration) = (Duration::from_millis(10), Duration::from_millis(500));

/// A sequence of pauses, each twice as long as the one before, up to the longest.
pub struct Backoff(Duration);

impl Backoff {
    /// Begins with the shortest pause.
    pub fn new() -> Self {
        Backoff(PAUSE.0)
    }

    /// Begins with the shortest pause again if it has worked for longer than the longest pause, for this `span`, before
    /// it failed again.
    pub fn worked_for(&mut self, span: Duration) {
        if span > PAUSE.1 {
            *self = Backoff::new();
        }
    }

    /// Returns the next pause.
    pub fn next(&mut self) -> Duration {
        let pause = self.0;
        self.0 = (pause * 2).min(PAUSE.1);
        pause
    }
}
