//! How a waiter learns that it is its turn: it watches its own lease key, which is written when the lock is handed to
//! it.

use std::os::fd::AsFd as _;

use super::EtcdStore;
use super::api::WatchMessage;
use super::failure::Failure;
use super::http::Connection;
use super::keys::Names;
use super::snapshot::HandedOver;
use crate::lock::claim::Claim;
use crate::store::Wakeup;
use crate::sys::clock::Moment;
use crate::sys::wait::{WaitObserver, Waiter, WakeReason};

/// A watch of our lease key: opened when we first sleep, and when another member answers us.
pub(super) struct Watch {
    member: usize,
    lease_key: String,
    connection: Connection,
}

impl EtcdStore {
    /// Sleeps until the lock is handed to the claim, until something else is a reason to ask again, or until `until`.
    pub(super) fn await_hand_off(
        &mut self,
        claim: &Claim,
        until: Option<Moment>,
        waiter: &mut Waiter<'_>,
        observer: &mut dyn WaitObserver,
    ) -> Result<Wakeup, Failure> {
        let lease_key = Names::new(&self.client.cluster.prefix, &claim.key).lease_key(&claim.token);
        let is_right = |watch: &Watch| watch.member == self.client.member && watch.lease_key == lease_key;
        let mut watch = match self.watch.take().filter(is_right) {
            Some(watch) => watch,
            None => self.open_watch(lease_key)?,
        };
        loop {
            let (heard, goes_on) = watch.connection.drain();
            let wakeup = read_wakeup(&heard, &watch.lease_key);
            if wakeup.is_none() && !goes_on {
                return Ok(Wakeup::AskAgain);
            }
            let wakeup = match wakeup {
                Some(wakeup) => Some(wakeup),
                None => match waiter.wait_for(Some(watch.connection.as_fd()), until, observer) {
                    Ok(WakeReason::Signal(signal)) => Some(Wakeup::Signal(signal)),
                    Ok(WakeReason::Time | WakeReason::Resumed) => Some(Wakeup::AskAgain),
                    Ok(WakeReason::Ready) => None,
                    Err(errno) => return Err(Failure::NoWait(errno)),
                },
            };
            if let Some(wakeup) = wakeup {
                // A holder does not watch.
                let waits_on = goes_on && !matches!(wakeup, Wakeup::HandedOver { .. });
                self.watch = waits_on.then_some(watch);
                return Ok(wakeup);
            }
        }
    }

    /// Watches our lease key, from the last answer on.
    fn open_watch(&mut self, lease_key: String) -> Result<Watch, Failure> {
        let connection = self.client.watch(&lease_key, self.seen_revision + 1, Moment::now() + self.timeout)?;
        Ok(Watch { member: self.client.member, lease_key, connection })
    }
}

/// Reads what a watch of this `lease key` has sent. What cannot be read, such as a message that has come in part, is a
/// reason to ask again.
fn read_wakeup(heard: &[u8], lease_key: &str) -> Option<Wakeup> {
    let mut asks_again = None;
    for line in heard.split(|byte| *byte == b'\n').filter(|line| line.starts_with(b"{")) {
        let Ok(message) = serde_json::from_slice::<WatchMessage>(line) else {
            asks_again = Some(Wakeup::AskAgain);
            continue;
        };
        for event in message.result.events {
            let is_lease_key = event.kv.key == lease_key;
            let handed_over = serde_json::from_str::<HandedOver>(&event.kv.value).ok();
            match handed_over.filter(|_| is_lease_key) {
                Some(HandedOver { fence, slot }) => return Some(Wakeup::HandedOver { fence, slot }),
                // Tokens may begin alike.
                None if !is_lease_key && !event.kv.key.starts_with(&format!("{lease_key}/")) => {}
                None => asks_again = Some(Wakeup::AskAgain),
            }
        }
    }
    asks_again
}

#[cfg(test)]
mod tests {
    use base64::Engine as _;
    use base64::engine::general_purpose::STANDARD;

    use super::*;

    /// Returns the events of these changes of keys, each in a message of its own, as the gateway sends them.
    fn heard(changes: &[(&str, &str)]) -> String {
        let message = |(key, value): &(&str, &str)| {
            let (key, value) = (STANDARD.encode(key), STANDARD.encode(value));
            let kv = format!(r#"{{"key":"{key}","mod_revision":"5","value":"{value}","lease":"7"}}"#);
            let message = format!(r#"{{"result":{{"header":{{"revision":"5"}},"events":[{{"kv":{kv}}}]}}}}"#);
            format!("{:x}\r\n{message}\n\r\n", message.len() + 1)
        };
        changes.iter().map(message).collect()
    }

    #[test]
    fn a_lease_key_says_what_its_holder_must_know() {
        let said = r#"{"fence": 9, "slot": 3}"#;
        let read = |changes: &[(&str, &str)]| read_wakeup(heard(changes).as_bytes(), "l/k/t");
        let handed_over = Some(Wakeup::HandedOver { fence: 9, slot: 3 });
        assert_eq!(read(&[("l/k/t", said)]), handed_over);
        assert_eq!(read(&[("l/k/t/look", ""), ("l/k/t", said)]), handed_over);
        // Its lease is revoked at once.
        assert_eq!(read(&[("l/k/t", said), ("l/k/t", r#"{"member": "1", "ends_ms": 2}"#)]), handed_over);
        assert_eq!(read(&[("l/k/t/look", "")]), Some(Wakeup::AskAgain));
        assert_eq!(read(&[("l/k/t-2", said), ("l/k/t.3/look", "")]), None, "other tokens");
        assert_eq!(read(&[]), None);
        let all = heard(&[("l/k/t", said)]);
        let part = &all.as_bytes()[..all.len() - 9];
        assert_eq!(read_wakeup(part, "l/k/t"), Some(Wakeup::AskAgain), "a part of a message");
    }
}
