//! All locks there are: looked at, and pruned. One that cannot be read spoils no other.

use std::collections::BTreeSet;
use std::time::Duration;

use redis::{Cmd, Value};

use super::connection::Failure;
use super::reply::UnexpectedReply;
use super::script::{LIST, PRUNE};
use super::{RedisStore, keys, millis, reply};
use crate::lock::key::Key;
use crate::store::{KeyStatus, Listing, Prune, StoreError};
use crate::supervise::counter::Counter;
use crate::sys::clock::Moment;
use crate::text::escape::escaped;

/// How many scripts travel together: each has its whole text with it.
const FLIGHT: usize = 50;

impl RedisStore {
    /// What is known of every key.
    pub(super) fn list_all(&mut self) -> Result<Listing<KeyStatus>, StoreError> {
        let keys = self.all_keys()?;
        let scripts: Vec<Cmd> = keys.iter().map(|key| self.bare_script(&LIST, key)).collect();
        self.ask_each(keys, &scripts, |key, reply| reply::read_status(key, reply).map(Some))
    }
}

impl Prune for RedisStore {
    fn prune(&mut self, key: Option<&Key>, unused_for: Duration, really: bool) -> Result<Listing<Key>, StoreError> {
        let mut keys = self.all_keys()?;
        keys.retain(|one| key.is_none_or(|key| key == one));
        let prune = |key: &Key| self.bare_script(&PRUNE, key).arg(millis(unused_for)).arg(u8::from(really)).take();
        let scripts: Vec<Cmd> = keys.iter().map(prune).collect();
        self.ask_each(keys, &scripts, |key, reply| Ok((*reply == Value::Int(1)).then_some(key)))
    }
}

impl RedisStore {
    /// All keys that have ever been held under our prefix, in the order of their names.
    fn all_keys(&mut self) -> Result<Vec<Key>, StoreError> {
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

    /// What `read` makes of the answers to `scripts` that are safe to run twice, one for each of the `keys`. A key under which its script
    /// fails for what it finds there cannot be read.
    fn ask_each<T>(
        &mut self,
        keys: Vec<Key>,
        scripts: &[Cmd],
        read: impl Fn(Key, &Value) -> Result<Option<T>, UnexpectedReply>,
    ) -> Result<Listing<T>, StoreError> {
        let mut listing = Listing { found: Vec::with_capacity(keys.len()), unreadable: Vec::new() };
        for (key, answer) in keys.into_iter().zip(self.answers(scripts)?) {
            match answer.and_then(|reply| read(key.clone(), &reply).map_err(Failure::UnexpectedReply)) {
                Ok(found) => listing.found.extend(found),
                Err(failure) => {
                    let what = format!("cannot read the lock \"{}\"", escaped(key.as_str()));
                    listing.unreadable.push(failure.explain(&self.server).context(what));
                }
            }
        }
        Ok(listing)
    }

    /// The answers to scripts that are safe to run twice. They travel together, some at a time. Fails where the next script would
    /// fail, too.
    fn answers(&mut self, scripts: &[Cmd]) -> Result<Vec<Result<Value, Failure>>, StoreError> {
        let mut answers = Vec::with_capacity(scripts.len());
        let mut counter = Counter::new("looking at locks", Some(scripts.len()));
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
            counter.add(flight.len());
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
