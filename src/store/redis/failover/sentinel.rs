//! Sentinels, which know the primary of a service.
//!
//! A primary is what a majority of the service's Sentinels says at once: the address and its configuration epoch, which grows with each
//! failover. A Sentinel never goes back to an earlier epoch, and two majorities have one in common.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use redis::{Cmd, Value};

use super::panel::Panel;
use super::{Address, Primary, majority};
use crate::store::redis::connection::{Failure, Replies};
use crate::store::redis::reply::{UnexpectedReply, text};
use crate::store::redis::url::Server;
use crate::sys::clock::Moment;

/// By how much the clock of a Sentinel may have been stepped since the failover, in ms: by that it tells how long it has known the primary.
const STEP_MS: u64 = 600_000;

/// The most Sentinels that are asked.
const MEMBERS_MAX: usize = 100;

/// The Sentinels of one service.
pub(in crate::store::redis) struct Sentinels {
    service: String,
    /// What a primary is like, but for its address.
    server: Server,
    panel: Panel,
    /// Those that the URL names: only these are believed when they name others.
    named: Vec<Server>,
    questions: Vec<Cmd>,
}

/// What is known of a service and its Sentinels.
pub(in crate::store::redis) struct SentinelReport {
    /// The name of the service.
    pub(in crate::store::redis) service: String,
    /// How many Sentinels the URL names, and how many there are.
    pub(in crate::store::redis) named: usize,
    pub(in crate::store::redis) seats: usize,
    /// Why some do not answer.
    pub(in crate::store::redis) silent: Vec<String>,
    /// The primary.
    pub(in crate::store::redis) primary: String,
    /// How many replicas it has.
    pub(in crate::store::redis) replicas: u64,
    /// After which silence a primary counts as down.
    pub(in crate::store::redis) down_after: Option<Duration>,
}

/// What a Sentinel says.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Voice {
    /// Which one it is.
    id: String,
    /// Where the primary is.
    address: Address,
    /// The configuration epoch of that.
    epoch: u64,
    /// How long it has known this primary, in ms.
    standing: u64,
    /// How many other Sentinels it knows.
    others: usize,
}

impl Sentinels {
    pub(super) fn new(service: String, named: &[Server], server: Server) -> Self {
        let sentinel = |words: &[&str]| redis::cmd("SENTINEL").arg(words).take();
        // The address first: a Sentinel that learns of another primary between the two answers gives a new epoch with an old address.
        let questions = vec![
            sentinel(&["MYID"]),
            sentinel(&["GET-MASTER-ADDR-BY-NAME", &service]),
            sentinel(&["MASTER", &service]),
        ];
        Sentinels { server, panel: Panel::new(named), named: named.to_vec(), questions, service }
    }

    /// Asks which server is the primary.
    pub(super) fn locate(&mut self, deadline: Moment) -> Result<Primary, Failure> {
        let started = Moment::now();
        let half = started + deadline.since(started) / 2;
        self.ask_all(half);
        match self.hear(half) {
            Err(failure) if !self.learn_of_others(deadline) => Err(failure),
            Err(_) => {
                self.ask_all(deadline);
                self.hear(deadline)
            }
            found => found,
        }
    }

    /// Asks all, those too that were away.
    fn ask_all(&mut self, deadline: Moment) {
        self.panel.send(&self.questions, self.panel.len(), deadline);
    }

    pub(super) fn ask(&mut self, deadline: Moment) {
        self.panel.send(&self.questions, majority(self.panel.len()), deadline);
    }

    /// Reads the answers, as far as a majority needs them.
    pub(super) fn hear(&mut self, deadline: Moment) -> Result<Primary, Failure> {
        let members = self.panel.len();
        let read = |_: &Server, replies| Voice::read(replies);
        let voices = self.panel.hear(&self.questions, deadline, read, |voices| agreed(voices, members).is_some());
        let Some(((host, port), epoch, standing)) = agreed(&voices, members) else {
            return Err(self.no_majority(&voices));
        };
        // Before the first failover there was no other primary, however it is called.
        let standing = standing.saturating_sub(STEP_MS);
        let standing = if epoch == 0 { -1 } else { i64::try_from(standing).unwrap_or(i64::MAX) };
        let term = if epoch == 0 { "0".to_owned() } else { format!("{epoch}:{host}:{port}") };
        Ok(Primary { server: self.server.at(&host, port), term, standing })
    }

    /// Asks all Sentinels, and waits for each that may answer.
    pub(super) fn report(&mut self, deadline: Moment) -> Result<SentinelReport, Failure> {
        let primary = self.locate(deadline)?;
        self.learn_of_others(deadline);
        self.ask_all(deadline);
        let soon = Moment::now() + deadline.since(Moment::now()) / 2;
        let read = |_: &Server, replies: Replies| {
            let master = replies.last().and_then(|reply| reply.as_ref().ok()).map(Fields::of);
            Ok((Voice::read(replies)?, master))
        };
        let heard = self.panel.hear(&self.questions, soon, read, |_| false);
        let number = |name| heard.iter().filter_map(|(_, master)| master.as_ref()?.number(name)).max();
        let voices: Vec<Voice> = heard.iter().map(|(voice, _)| voice.clone()).collect();
        Ok(SentinelReport {
            service: self.service.clone(),
            named: self.named.len(),
            seats: seats(&voices, self.panel.len()),
            silent: self.panel.complaints(),
            primary: primary.server.to_string(),
            replicas: number("num-slaves").unwrap_or(0),
            down_after: number("down-after-milliseconds").map(Duration::from_millis),
        })
    }

    fn no_majority(&self, voices: &[Voice]) -> Failure {
        let (service, all) = (&self.service, seats(voices, self.panel.len()));
        let unknown =
            |failure: &Failure| matches!(failure, Failure::Refused { error, .. } if error.contains("No such master"));
        match self.panel.failure() {
            Some((sentinel, failure)) if voices.is_empty() && unknown(failure) => Failure::NoPrimary {
                why: format!(
                    "{sentinel} does not know the service {service:?}; check the name behind the / in the store's URL"
                ),
                is_transient: false,
            },
            failed => {
                let because =
                    failed.map_or(String::new(), |(sentinel, failure)| format!("; {:#}", failure.explain(sentinel)));
                Failure::NoPrimary {
                    why: format!(
                        "the primary of {service:?} is not known: of its {all} Sentinels {} answered, and not {} agree{because}",
                        voices.len(),
                        majority(all)
                    ),
                    is_transient: voices
                        .is_empty()
                        .then_some(failed)
                        .flatten()
                        .is_none_or(|(_, why)| why.is_transient()),
                }
            }
        }
    }

    /// Asks those that the URL names for the others, which may be enough where those are not. Returns whether there are more now.
    fn learn_of_others(&mut self, deadline: Moment) -> bool {
        let before = self.panel.len();
        let question = [redis::cmd("SENTINEL").arg("SENTINELS").arg(&self.service).take()];
        let mut panel = Panel::new(&self.named);
        panel.send(&question, 1, deadline);
        let read = |_: &Server, replies: Replies| replies.into_iter().next().unwrap_or(Ok(Value::Nil));
        for listed in panel.hear(&question, deadline, read, |heard| !heard.is_empty()) {
            let Value::Array(others) = listed else { continue };
            for other in others.iter().map(Fields::of) {
                if let (Some(host), Some(port)) = (other.text("ip"), other.number("port"))
                    && let Ok(port) = u16::try_from(port)
                    && self.panel.len() < MEMBERS_MAX
                {
                    self.panel.add(self.named[0].at(&host, port));
                }
            }
        }
        self.panel.len() > before
    }
}

/// Those that agree, and how long each has known that.
type Party<'a> = BTreeMap<&'a str, u64>;

/// How many Sentinels there are, as far as it is known. Those of which we know only addresses may be others under another name, so their
/// number counts only if none of those that answer knows another one.
fn seats(voices: &[Voice], members: usize) -> usize {
    let ids: BTreeSet<&str> = voices.iter().map(|voice| voice.id.as_str()).collect();
    let others = voices.iter().map(|voice| voice.others).max().unwrap_or(0);
    if others == 0 { members.max(ids.len()) } else { ids.len().max(others.saturating_add(1)) }
}

/// Returns the address, the epoch and the standing on which a majority agrees. A Sentinel that has several addresses has one voice.
fn agreed(voices: &[Voice], members: usize) -> Option<(Address, u64, u64)> {
    let needed = majority(seats(voices, members));
    let mut parties: BTreeMap<(&Address, u64), Party<'_>> = BTreeMap::new();
    for voice in voices {
        parties.entry((&voice.address, voice.epoch)).or_default().insert(&voice.id, voice.standing);
    }
    let ((address, epoch), party) = parties.into_iter().find(|(_, party)| party.len() >= needed)?;
    // A majority has known it for so long.
    let mut standings: Vec<u64> = party.into_values().collect();
    standings.sort_unstable_by(|one, other| other.cmp(one));
    Some((address.clone(), epoch, standings[needed - 1]))
}

impl Voice {
    fn read(replies: Replies) -> Result<Self, Failure> {
        let strange = || Failure::UnexpectedReply(UnexpectedReply);
        let mut replies = replies.into_iter();
        let mut next = || replies.next().unwrap_or(Ok(Value::Nil));
        let (id, address, master) = (next()?, next()?, next()?);
        let id = text(&id).ok_or_else(strange)?;
        let Value::Array(address) = address else { return Err(strange()) };
        let [host, port] = &address[..] else { return Err(strange()) };
        let port: Option<u16> = text(port).and_then(|port| port.parse().ok());
        let address = (text(host).ok_or_else(strange)?, port.ok_or_else(strange)?);
        let master = Fields::of(&master);
        // While a failover ends, the address is that of the new primary already, and the rest still speaks of the old one.
        let is_its = master.text("ip").as_ref() == Some(&address.0) && master.number("port") == Some(address.1.into());
        let standing = master.number("role-reported-time").filter(|_| is_its).unwrap_or(0);
        let epoch = master.number("config-epoch").ok_or_else(strange)?;
        let others = master.number("num-other-sentinels").and_then(|others| usize::try_from(others).ok());
        Ok(Voice { id, address, epoch, standing, others: others.unwrap_or(0) })
    }
}

/// What a server tells as names and values in turn.
struct Fields(BTreeMap<String, String>);

impl Fields {
    fn of(reply: &Value) -> Self {
        let Value::Array(words) = reply else { return Fields(BTreeMap::new()) };
        let pair = |pair: &[Value]| Some((text(&pair[0])?, text(&pair[1])?));
        Fields(words.chunks_exact(2).filter_map(pair).collect())
    }

    fn text(&self, name: &str) -> Option<String> {
        self.0.get(name).cloned()
    }

    fn number(&self, name: &str) -> Option<u64> {
        self.0.get(name)?.parse().ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn voice(id: &str, port: u16, epoch: u64, standing: u64, others: usize) -> Voice {
        Voice { id: id.into(), address: ("h".into(), port), epoch, standing, others }
    }

    #[test]
    fn a_majority_of_all_agrees_on_address_and_epoch() {
        let agreed = |voices: &[Voice], members| agreed(voices, members).map(|(address, epoch, _)| (address.1, epoch));
        let (a, b, c) = (voice("a", 1, 3, 0, 2), voice("b", 1, 3, 0, 2), voice("c", 2, 4, 0, 2));
        assert_eq!(agreed(&[a.clone(), b.clone(), c.clone()], 3), Some((1, 3)));
        assert_eq!(agreed(&[a.clone(), c.clone()], 3), None, "one each");
        assert_eq!(agreed(std::slice::from_ref(&a), 1), None, "it knows of two others");
        assert_eq!(agreed(&[a.clone(), a.clone()], 2), None, "one that is named twice");
        assert_eq!(agreed(&[a.clone(), b.clone()], 6), Some((1, 3)), "three, under two names each");
        let (alone, other) = (voice("a", 1, 3, 0, 0), voice("b", 1, 3, 0, 0));
        assert_eq!(agreed(&[alone, other], 5), None, "five are named, and do not know each other");
        assert_eq!(agreed(&[a, voice("b", 1, 2, 0, 2)], 3), None, "different epochs");
        assert_eq!(agreed(&[voice("a", 1, 0, 0, 0)], 1), Some((1, 0)));
        assert_eq!(agreed(&[], 0), None);
    }

    #[test]
    fn it_has_stood_for_as_long_as_a_majority_says() {
        let standing = |times: [u64; 3]| {
            let voices: Vec<Voice> =
                times.iter().zip(["a", "b", "c"]).map(|(time, id)| voice(id, 1, 1, *time, 2)).collect();
            agreed(&voices, 3).expect("a majority").2
        };
        assert_eq!(standing([10, 30, 20]), 20);
        assert_eq!(standing([0, 0, 90]), 0);
    }

    #[test]
    fn a_voice_is_read() {
        let bulk = |text: &str| Value::BulkString(text.as_bytes().to_vec());
        let replies = |ip: &str| -> Replies {
            let master =
                ["ip", ip, "port", "7", "config-epoch", "3", "role-reported-time", "900", "num-other-sentinels", "2"];
            let master = Value::Array(master.iter().map(|word| bulk(word)).collect());
            vec![Ok(bulk("id")), Ok(Value::Array(vec![bulk("h"), bulk("7")])), Ok(master)]
        };
        assert_eq!(Voice::read(replies("h")).expect("is one"), voice("id", 7, 3, 900, 2));
        assert_eq!(Voice::read(replies("old")).expect("is one"), voice("id", 7, 3, 0, 2));
        assert!(Voice::read(vec![Ok(bulk("id")), Ok(Value::Nil), Ok(Value::Nil)]).is_err());
        assert!(Voice::read(vec![]).is_err());
    }
}
