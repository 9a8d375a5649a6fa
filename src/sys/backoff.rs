//! The pauses between two attempts at something that fails for a while.

use std::time::Duration;

/// The first pause, and the longest.
const PAUSE: (Duration, Duration) = (Duration::from_millis(10), Duration::from_millis(500));

/// Pauses, each twice as long as the one before.
pub struct Backoff(Duration);

impl Backoff {
    /// Begins with the shortest one.
    pub fn new() -> Self {
        Backoff(PAUSE.0)
    }

    /// Returns the next one.
    pub fn next(&mut self) -> Duration {
        let pause = self.0;
        self.0 = (pause * 2).min(PAUSE.1);
        pause
    }
}
