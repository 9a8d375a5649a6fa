//! Asking again while a server is away, or does not do what it is asked for now.

use std::thread;
use std::time::Duration;

use redis::{Cmd, Value};

use super::RedisStore;
use super::connection::Failure;
use crate::sys::clock::Moment;

/// The pauses between two attempts: the first, and the longest.
const PAUSE: (Duration, Duration) = (Duration::from_millis(10), Duration::from_millis(500));

/// The pauses between attempts, each twice as long as the one before.
pub(super) struct Pauses(Duration);

impl Pauses {
    /// From the shortest one on.
    pub(super) fn new() -> Self {
        Pauses(PAUSE.0)
    }

    /// Returns the next one.
    pub(super) fn next(&mut self) -> Duration {
        let pause = self.0;
        self.0 = (pause * 2).min(PAUSE.1);
        pause
    }
}

/// What came of asking again and again.
pub(super) struct Answered {
    /// The reply to the last attempt.
    pub(super) reply: Value,
    /// Whether an earlier attempt may have been carried out, too.
    pub(super) may_be_again: bool,
}

impl RedisStore {
    /// Runs a script that is safe to run twice, again and again until it is answered, is rejected for good, or `timeout` is over.
    ///
    /// A connection that has been idle for long may have been forgotten by something on the way without a word: the time spent
    /// on it does not count.
    pub(super) fn run_until_answered(&mut self, script: &Cmd, timeout: Duration) -> Result<Answered, Failure> {
        let mut is_idle = self.connection.is_some();
        let mut until = Moment::now() + timeout;
        let (mut pauses, mut may_be_again) = (Pauses::new(), false);
        loop {
            let failure = match self.run(script, until.since(Moment::now())) {
                Ok(reply) => return Ok(Answered { reply, may_be_again }),
                Err(failure) => failure,
            };
            may_be_again |= matches!(failure, Failure::Closed | Failure::NoAnswer(_));
            if is_idle && matches!(failure, Failure::NoAnswer(_)) {
                until = Moment::now() + timeout;
            }
            is_idle = false;
            let pause = pauses.next();
            if !failure.may_pass() || Moment::now() + pause >= until {
                return Err(failure);
            }
            thread::sleep(pause);
        }
    }
}
