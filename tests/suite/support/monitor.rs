//! The commands that a Redis server carries out.

use std::collections::BTreeMap;

use super::redis::Redis;
use super::resp::Client;

/// A client that sees every command that the server carries out.
pub(crate) struct Monitor(Client);

impl Monitor {
    pub(crate) fn of(redis: &Redis) -> Self {
        let mut client = Client::connect(&redis.socket()).expect("the server accepts");
        client.ask(&["MONITOR"]).expect("the server answers");
        Self(client)
    }

    /// Returns every command since the beginning, including those that scripts call, as `TIME [DATABASE WHO] "COMMAND"
    /// "ARGUMENT" ...`, where WHO is an address or `lua`.
    #[track_caller]
    pub(crate) fn seen(mut self, redis: &Redis) -> Vec<String> {
        redis.ask(&["ECHO", "that was all"]);
        let told = std::iter::from_fn(|| Some(self.0.reply().expect("the server goes on telling").text().to_owned()));
        told.take_while(|seen| !seen.contains("that was all")).collect()
    }

    /// Returns how often clients have sent each command since the beginning.
    #[track_caller]
    pub(crate) fn counts(self, redis: &Redis) -> BTreeMap<String, usize> {
        count(&self.seen(redis))
    }
}

/// Returns how often clients have sent each command over the network. Commands that scripts call do not count, nor do
/// those that the tests themselves send over the server's socket.
#[track_caller]
pub(crate) fn count(seen: &[String]) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for seen in seen {
        let (head, rest) = seen.split_once("] \"").expect("a command");
        if head.contains(" 127.0.0.1:") {
            let name = rest.split('"').next().expect("a name").to_lowercase();
            *counts.entry(name).or_default() += 1;
        }
    }
    counts
}
