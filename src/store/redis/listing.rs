//! Lists and prunes all locks. One that cannot be read does not hide the others.

use std::collections::BTreeSet;
use std::time::Duration;

use redis::{Cmd, Value};

use super::connection::Replies;
use super::failover::ListedPrimary;
use super::failure::Failure;
use super::script::{FORGET, LIST, PRUNE};
use super::{RedisStore, keys, millis, reply};
use crate::lock::key::Key;
use crate::store::{KeyStatus, Listing, Prune, StoreError};
use crate::sys::clock::Moment;
use crate::sys::counter::Counter;
use crate::text::escape::escaped;

/// How many scripts travel together: each carries its whole text.
const FLIGHT: usize = 50;

impl RedisStore {
    /// Returns the status of every key.
    pub(super) fn list_all(&mut self) -> Result<Listing<KeyStatus>, StoreError> {
        let mut listing = self.at_each_primary(true, |store| {
            let keys = store.all_keys()?;
            let list = |store: &RedisStore, key: &Key| store.bare_script(&LIST, key);
            let mut listing = Listing { found: Vec::with_capacity(keys.len()), unreadable: Vec::new() };
            store.ask_each(&keys, list, |key, reply| reply::read_status(key, reply).map(Some), &mut listing)?;
            Ok(listing)
        })?;
        listing.found.sort_by(|one, other| one.key.as_str().cmp(other.key.as_str()));
        Ok(listing)
    }

    /// Returns what `look` finds on the primary, or on each primary of a cluster. A primary that cannot be read does
    /// not hide the others. Where another server can become the primary, a majority must confirm this one before and
    /// after the look; a primary that no majority confirms is still read if it `may_be_doubted`.
    fn at_each_primary<T>(
        &mut self,
        may_be_doubted: bool,
        mut look: impl FnMut(&mut RedisStore) -> Result<Listing<T>, StoreError>,
    ) -> Result<Listing<T>, StoreError> {
        let Some(witnesses) = &mut self.witnesses else { return look(self) };
        let mut all = Listing { found: Vec::new(), unreadable: Vec::new() };
        let mut looked_at = Vec::new();
        let before = witnesses.primaries(Moment::now() + self.timeout);
        for ListedPrimary { primary, doubt } in before.map_err(|failure| failure.explain(&self.server))? {
            if let (Some(doubt), false) = (&doubt, may_be_doubted) {
                all.unreadable.push(doubt.explain(&primary.server));
                continue;
            }
            let store = RedisStore::at(primary.server.clone(), self.tls.clone(), self.timeout);
            // A script without a term begins none: nobody has confirmed this one.
            let known = doubt.is_none().then(|| (0, primary.clone()));
            let listing_left = self.listing_left;
            let mut store = RedisStore { failover_scope: self.failover_scope, primary: known, listing_left, ..store };
            let looked = look(&mut store);
            self.listing_left = store.listing_left;
            match looked {
                Ok(listing) => looked_at.push((primary, listing)),
                Err(error) => all.unreadable.push(error),
            }
        }
        let after =
            if looked_at.is_empty() { Ok(Vec::new()) } else { witnesses.primaries(Moment::now() + self.timeout) };
        let after = after.map_err(Failure::of_confirmation);
        for (primary, listing) in looked_at {
            let still = after.as_ref().map(|after| after.iter().find(|listed| listed.primary.is_still(&primary)));
            let doubt = match still {
                Ok(Some(ListedPrimary { doubt, .. })) => doubt.as_ref().map(|doubt| doubt.explain(&primary.server)),
                Ok(None) => Some(Failure::Demoted("another one has taken its place".into()).explain(&primary.server)),
                Err(failure) => Some(failure.explain(&primary.server)),
            };
            if doubt.is_none() || may_be_doubted && matches!(still, Ok(Some(_))) {
                all.found.extend(listing.found);
            }
            all.unreadable.extend(listing.unreadable);
            all.unreadable.extend(doubt);
        }
        Ok(all)
    }
}

impl Prune for RedisStore {
    fn prune(&mut self, key: Option<&Key>, unused_for: Duration, really: bool) -> Result<Listing<Key>, StoreError> {
        let prune = |store: &RedisStore, key: &Key| {
            store.bare_script(&PRUNE, key).arg(millis(unused_for)).arg(u8::from(really)).take()
        };
        let mut listing = self.while_listing(|store| {
            store.at_each_primary(false, |store| {
                let mut keys = store.all_keys()?;
                keys.retain(|one| key.is_none_or(|key| key == one));
                let mut listing = Listing { found: Vec::new(), unreadable: Vec::new() };
                let removed = |key, reply: &Value| Ok((*reply == Value::Int(1)).then_some(key));
                match store.ask_each(&keys, prune, removed, &mut listing) {
                    Err(error) => listing.ended_by(error),
                    Ok(()) => Ok(listing),
                }
            })
        })?;
        listing.found.sort_by(|one, other| one.as_str().cmp(other.as_str()));
        Ok(listing)
    }

    fn forget_success(&mut self, key: &Key) -> Result<bool, StoreError> {
        let script = self.bare_script(&FORGET, key);
        self.has_resent = false;
        Ok(self.answer(&script)? == Value::Int(1) || self.has_resent)
    }
}

impl RedisStore {
    /// Returns all keys that were ever held under our prefix, sorted by name.
    fn all_keys(&mut self) -> Result<Vec<Key>, StoreError> {
        let pattern = keys::pattern(&self.server.prefix);
        let mut found = BTreeSet::new();
        let mut cursor = "0".to_owned();
        loop {
            let scan = redis::cmd("SCAN").arg(&cursor).arg("MATCH").arg(&pattern).arg("COUNT").arg(1000).take();
            let (next, names) =
                reply::read_scan(&self.answer(&scan)?).map_err(|failure| failure.explain(&self.server))?;
            found.extend(names.iter().filter_map(|name| keys::of_fence(&self.server.prefix, name)));
            if next == "0" {
                return Ok(found.into_iter().filter_map(|key| Key::new(key.as_ref()).ok()).collect());
            }
            cursor = next;
        }
    }

    /// Runs a `script`, which is safe to run twice, for each of the `keys`, and adds what `read` makes of the replies to
    /// the `listing`. A key whose script fails because of what it finds there is unreadable. Any other failure ends it,
    /// after the answers that have arrived.
    fn ask_each<T>(
        &mut self,
        keys: &[Key],
        script: impl Fn(&Self, &Key) -> Cmd,
        read: impl Fn(Key, &Value) -> Result<Option<T>, Failure>,
        listing: &mut Listing<T>,
    ) -> Result<(), StoreError> {
        let mut counter = Counter::new("looking at locks", Some(keys.len()));
        let mut rest = keys;
        while !rest.is_empty() {
            let scripts: Vec<Cmd> = rest.iter().take(FLIGHT).map(|key| script(self, key)).collect();
            let answers = self.answers(&scripts);
            counter.add(answers.len());
            let (asked, left) = rest.split_at(answers.len());
            rest = left;
            let mut failed = None;
            for (key, answer) in asked.iter().zip(answers) {
                match answer {
                    Err(failure) if !failure.is_of_one_key() => failed = failed.or(Some(failure)),
                    answer => match answer.and_then(|reply| read(key.clone(), &reply)) {
                        Ok(found) => listing.found.extend(found),
                        Err(failure) => {
                            let what = format!("cannot read the lock \"{}\"", escaped(key.as_str()));
                            listing.unreadable.push(failure.explain(&self.server).context(what));
                        }
                    },
                }
            }
            if let Some(failure) = failed {
                return Err(failure.explain(&self.server));
            }
        }
        Ok(())
    }

    /// Runs scripts that are safe to run twice, in one flight, and returns the answers to them, or to the first. After
    /// an answer that did not arrive there are none.
    fn answers(&mut self, scripts: &[Cmd]) -> Replies {
        let scripts: Vec<Cmd> = scripts.iter().map(|script| self.in_known_term(script)).collect();
        let Some(mut connection) = self.connection.take() else {
            // The first script travels alone, and opens the connection.
            return vec![self.run(&scripts[0], self.timeout)];
        };
        connection.listing_left = self.listing_left;
        let answers = connection.request_all(&scripts, Moment::now() + self.timeout);
        self.listing_left = connection.listing_left;
        let is_in_step = answers.iter().all(|answer| matches!(answer, Ok(_) | Err(Failure::Rejected(_))));
        self.connection = is_in_step.then_some(connection);
        answers
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use crate::lock::key::Key;
    use crate::net::scripted;
    use crate::store::Address;

    /// Returns an answer that describes a lock with this fence.
    fn status(fence: u32) -> String {
        format!("*7\r\n:1\r\n$1\r\n{fence}\r\n*0\r\n*0\r\n$0\r\n\r\n$0\r\n\r\n:0\r\n")
    }

    #[test]
    fn what_follows_an_unreadable_answer_is_not_read() {
        let scan = "*2\r\n$1\r\n0\r\n*1\r\n$17\r\nlockrun:{a}:fence\r\n";
        let servers = [format!("{scan}?\r\n{}", status(1)), status(2)].map(String::into_bytes);
        let mut store = Address::parse("redis://h").expect("is a URL").open(Duration::from_secs(1)).expect("is opened");
        scripted::with(servers, || {
            store.list(None).expect_err("it cannot be read");
            let listing = store.list(Some(&Key::new("a".as_ref()).expect("is a key"))).expect("is answered");
            assert_eq!(listing.found[0].fence, 2);
        });
    }

    #[test]
    fn a_pruning_that_is_ended_midway_names_what_it_has_removed() {
        let scan = "*2\r\n$1\r\n0\r\n*3\r\n$17\r\nlockrun:{a}:fence\r\n$17\r\nlockrun:{b}:fence\r\n$17\r\nlockrun:{c}:fence\r\n";
        let pruned = |answers: &str| {
            let mut store =
                Address::parse("redis://h").expect("is a URL").open(Duration::from_secs(1)).expect("is opened");
            scripted::with([format!("{scan}{answers}").into_bytes()], || store.prune(None, Duration::ZERO, true))
        };
        let refused = "-OOM command not allowed when used memory > 'maxmemory'.\r\n";
        for (answers, removed, why) in [
            (format!(":1\r\n{refused}{refused}"), &["a"][..], "OOM"),
            (format!("{refused}:1\r\n:0\r\n"), &["b"], "OOM"),
            (":1\r\n:1\r\n".to_owned(), &["a", "b"], "closed the connection"),
        ] {
            let listing = pruned(&answers).expect("something was removed");
            assert_eq!(listing.found.iter().map(Key::as_str).collect::<Vec<_>>(), removed);
            let [error] = &listing.unreadable[..] else { panic!("{:?}", listing.unreadable) };
            let error = format!("{error:#}");
            assert!(error.contains("cannot prune the other keys") && error.contains(why), "{error}");
        }
        pruned(&format!("{refused}{refused}{refused}")).expect_err("nothing was removed");
        // What is wrong with one key is not the reason why the others got no answer.
        let of_one_key = "-WRONGTYPE Operation against a key holding the wrong kind of value\r\n";
        let listing = pruned(&format!("{of_one_key}:1\r\n")).expect("something was removed");
        assert_eq!(listing.found.iter().map(Key::as_str).collect::<Vec<_>>(), ["b"]);
        let errors: Vec<String> = listing.unreadable.iter().map(|error| format!("{error:#}")).collect();
        assert!(errors[0].contains("\"a\"") && errors[0].contains("WRONGTYPE"), "{errors:?}");
        assert!(errors[1].contains("closed the connection") && errors.len() == 2, "{errors:?}");
    }
}
