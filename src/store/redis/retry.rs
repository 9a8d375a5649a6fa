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

impl RedisStore {
    /// Runs a script that is safe to run twice, again and again until it is answered, is rejected for good, or `timeout` is over. One
    /// attempt takes at most half of that: its connection may have been forgotten by something on the way without a word.
    pub(super) fn run_until_answered(&mut self, script: &Cmd, timeout: Duration) -> Result<Value, Failure> {
        let until = Moment::now() + timeout;
        let mut pauses = Pauses::new();
        loop {
            let left = until.since(Moment::now());
            let failure = match self.run(script, left.min(timeout / 2)) {
                Ok(reply) => return Ok(reply),
                Err(failure) => failure,
            };
            let pause = pauses.next();
            if !failure.may_pass() || Moment::now() + pause >= until {
                return Err(failure);
            }
            thread::sleep(pause);
        }
    }
}
