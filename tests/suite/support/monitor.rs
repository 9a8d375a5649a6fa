//! What a server is asked, command by command.

use std::collections::BTreeMap;

use super::redis::Redis;
use super::resp::Client;

/// Sees every command that clients send over the network. Those that scripts call are not among them, nor are those that
/// the tests themselves send over the server's socket.
pub(crate) struct Monitor(Client);

impl Monitor {
    pub(crate) fn of(redis: &Redis) -> Self {
        let mut client = Client::connect(&redis.socket()).expect("the server accepts");
        client.ask(&["MONITOR"]).expect("the server answers");
        Self(client)
    }

    /// How often each command was sent since the beginning.
    #[track_caller]
    pub(crate) fn counts(mut self, redis: &Redis) -> BTreeMap<String, usize> {
        redis.ask(&["ECHO", "that was all"]);
        let mut counts = BTreeMap::new();
        loop {
            let seen = self.0.reply().expect("the server goes on telling");
            // TIME [DATABASE ADDRESS] "COMMAND" "ARGUMENT" ...
            let seen = seen.text();
            if seen.contains("that was all") {
                return counts;
            }
            let (head, rest) = seen.split_once("] \"").expect("a command");
            if head.contains(" 127.0.0.1:") {
                let name = rest.split('"').next().expect("a name").to_lowercase();
                *counts.entry(name).or_default() += 1;
            }
        }
    }
}
