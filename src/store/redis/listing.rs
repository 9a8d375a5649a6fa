//! Looking at all locks there are. One that cannot be read spoils no other.

use std::collections::BTreeSet;

use redis::{Cmd, Value};

use super::connection::Failure;
use super::{RedisStore, keys, reply};
use crate::lock::key::Key;
use crate::store::StoreError;
use crate::sys::clock::Moment;
use crate::text::escape::escaped;

/// How many scripts travel together: each has its whole text with it.
const FLIGHT: usize = 50;

impl RedisStore {
    /// All keys that have ever been held under our prefix, in the order of their names.
    pub(super) fn all_keys(&mut self) -> Result<Vec<Key>, StoreError> {
        let pattern = keys::pattern(&self.server.prefix);
        let mut found = BTreeSet::new();
        let mut cursor = "0".to_owned();
        loop {
            let scan = redis::cmd("SCAN").arg(&cursor).arg("MATCH").arg(&pattern).arg("COUNT").arg(1000).take();
            let (next, names) = reply::read_scan(&self.answer(&scan)?).map_err(|strange| self.is_strange(strange))?;
            found.extend(names.iter().filter_map(|name| keys::of_fence(&self.server.prefix, name)));
            if next == "0" {
                return Ok(found.into_iter().filter_map(|key| Key::new(key.as_ref()).ok()).collect());
            }
            cursor = next;
        }
    }

    /// The answers to `scripts` that are safe to run twice, one for each of the `keys`. A key under which its script fails for what
    /// it finds there is left out.
    pub(super) fn answers_of_each(&mut self, keys: Vec<Key>, scripts: &[Cmd]) -> Result<Vec<(Key, Value)>, StoreError> {
        self.left_out.clear();
        let mut answers = Vec::with_capacity(keys.len());
        for (key, answer) in keys.into_iter().zip(self.answers(scripts)?) {
            match answer {
                Ok(reply) => answers.push((key, reply)),
                Err(failure) => self.leave_out(&key, &failure),
            }
        }
        Ok(answers)
    }

    pub(super) fn leave_out(&mut self, key: &Key, failure: &Failure) {
        let what = format!("cannot read the lock \"{}\"", escaped(key.as_str()));
        self.left_out.push(failure.explain(&self.server).context(what));
    }

    /// The answers to scripts that are safe to run twice. They travel together, some at a time. Fails where the next script would
    /// fail, too.
    fn answers(&mut self, scripts: &[Cmd]) -> Result<Vec<Result<Value, Failure>>, StoreError> {
        let mut answers = Vec::with_capacity(scripts.len());
        while answers.len() < scripts.len() {
            let rest = &scripts[answers.len()..];
            let flight = match &mut self.connection {
                // Alone, the first one opens the connection.
                None => Ok(vec![self.run(&rest[0], self.timeout)]),
                Some(connection) => {
                    connection.request_all(&rest[..rest.len().min(FLIGHT)], Moment::now() + self.timeout)
                }
            };
            let flight = flight.map_err(|failure| failure.explain(&self.server))?;
            for answer in flight {
                match answer {
                    Err(failure) if !failure.is_of_one_key() => return Err(failure.explain(&self.server)),
                    answer => answers.push(answer),
                }
            }
        }
        Ok(answers)
    }
}
