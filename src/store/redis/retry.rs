//! Asking again while a server is away, or does not do what it is asked for now.

use std::thread;
use std::time::Duration;

use redis::{Cmd, Value};

use super::RedisStore;
use super::connection::Failure;
use crate::sys::backoff::Backoff;
use crate::sys::clock::Moment;

impl RedisStore {
    /// Runs a script that is safe to run twice, again and again until it is answered, is rejected for good, or `timeout` is over. One
    /// attempt takes at most half of that: its connection may have been forgotten by something on the way without a word.
    pub(super) fn run_until_answered(&mut self, script: &Cmd, timeout: Duration) -> Result<Value, Failure> {
        let until = Moment::now() + timeout;
        let mut backoff = Backoff::new();
        loop {
            let left = until.since(Moment::now());
            let failure = match self.run(script, left.min(timeout / 2)) {
                Ok(reply) => return Ok(reply),
                Err(failure) => failure,
            };
            let pause = backoff.next();
            if !failure.is_transient() || Moment::now() + pause >= until {
                return Err(failure);
            }
            thread::sleep(pause);
        }
    }
}
