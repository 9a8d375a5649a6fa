//! Sentinels, which know the primary of a service.
//!
//! The primary is what a majority of the service's Sentinels names at the same time: its address and its configuration epoch,
//! which grows with each failover. A Sentinel never goes back to an earlier epoch, and any two majorities have a Sentinel in
//! common.
//!
//! The number of Sentinels is not taken from one source: the URL may name some that are gone, and lack some that were added;
//! a Sentinel that was cut off may not know the newest. The greatest number counts.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use redis::{Cmd, Value};

use super::member::SILENCE_MAX;
use super::panel::{Panel, half_left};
use super::{Address, Primary, majority};
use crate::net::tls::Tls;
use crate::store::redis::connection::Replies;
use crate::store::redis::failure::Failure;
use crate::store::redis::reply::{UnexpectedReply, text};
use crate::store::redis::url::Server;
use crate::sys::clock::Moment;

/// By how much a Sentinel's clock may have been stepped since the failover, in ms: by that clock it measures how long it has
/// known the primary.
const STEP_MS: u64 = 600_000;

/// The most Sentinels that are asked.
const MEMBERS_MAX: usize = 100;

/// The Sentinels of one service.
pub(in crate::store::redis) struct Sentinels {
    service: String,
    /// What a primary is like, except for its address.
    server: Server,
    pub(super) panel: Panel,
    /// The Sentinels that the URL names: only these are believed when they name others.
    named: Vec<Server>,
    /// Which Sentinel last answered at an address, or is said to be there.
    ids: BTreeMap<String, String>,
    /// Whether the Sentinels were asked for the others.
    has_learned: bool,
    questions: Vec<Cmd>,
}

/// What is known of a service and its Sentinels.
pub(in crate::store::redis) struct SentinelReport {
    /// The name of the service.
    pub(in crate::store::redis) service: String,
    /// How many Sentinels the URL names, and how many there are.
    pub(in crate::store::redis) named: usize,
    pub(in crate::store::redis) sentinel_count: usize,
    /// Why some do not answer.
    pub(in crate::store::redis) silent: Vec<String>,
    pub(in crate::store::redis) primary: String,
    /// How many replicas the primary has.
    pub(in crate::store::redis) replicas: u64,
    /// After how long a silence a primary counts as down.
    pub(in crate::store::redis) down_after: Option<Duration>,
}

/// What a Sentinel says.
#[derive(Clone, Debug, PartialEq, Eq)]
struct SentinelView {
    /// The address at which it was asked.
    at: String,
    /// Its id.
    id: String,
    /// The address of the primary.
    address: Address,
    /// The configuration epoch of that primary.
    epoch: u64,
    /// How long the Sentinel has known this primary, in ms.
    standing: u64,
    /// How many other Sentinels it knows.
    others: usize,
}

impl Sentinels {
    pub(super) fn new(service: String, named: &[Server], server: Server, tls: Option<Tls>) -> Self {
        let sentinel = |words: &[&str]| redis::cmd("SENTINEL").arg(words).take();
        // Ask for the address first: a Sentinel that learns of another primary between the two answers then gives a new epoch
        // with an old address.
        let questions = vec![
            sentinel(&["MYID"]),
            sentinel(&["GET-MASTER-ADDR-BY-NAME", &service]),
            sentinel(&["MASTER", &service]),
        ];
        Sentinels {
            server,
            panel: Panel::new(named, tls),
            named: named.to_vec(),
            ids: BTreeMap::new(),
            has_learned: false,
            questions,
            service,
        }
    }

    /// Asks which server is the primary.
    pub(super) fn locate(&mut self, deadline: Moment) -> Result<Primary, Failure> {
        self.ask_all(deadline);
        self.read_primary(deadline)
    }

    /// Asks all, including those that were away.
    fn ask_all(&mut self, deadline: Moment) {
        self.panel.send(&self.questions, usize::MAX, deadline);
    }

    pub(super) fn ask(&mut self, deadline: Moment) {
        self.panel.send(&self.questions, majority(self.panel.len()), deadline);
    }

    /// Reads the answers until a majority agrees. If the known Sentinels are not enough, asks for the others.
    pub(super) fn read_primary(&mut self, deadline: Moment) -> Result<Primary, Failure> {
        let mut views = self.read_views(Moment::now() + half_left(deadline), !self.has_learned);
        if self.agreed(&views).is_none() && Moment::now() < deadline {
            self.learn_of_others(&views, deadline);
            self.ask_all(deadline);
            views = self.read_views(deadline, false);
        }
        let Some(((host, port), epoch, standing)) = self.agreed(&views) else {
            self.panel.give_up();
            return Err(self.no_majority(&views));
        };
        // Before the first failover, nobody knows how long it has been the primary, or of any other primary.
        let standing = standing.saturating_sub(STEP_MS);
        let standing = if epoch == 0 { -1 } else { i64::try_from(standing).unwrap_or(i64::MAX) };
        let (term, service) = (format!("{epoch}:{host}:{port}"), self.service.clone());
        Ok(Primary { server: self.server.at(&host, port), term, standing, service })
    }

    /// Reads the answers until a majority agrees. If it `may_learn` of others, stops as soon as there turn out to be others
    /// while those asked cannot be a majority, or some of them are silent.
    fn read_views(&mut self, deadline: Moment, may_learn: bool) -> Vec<SentinelView> {
        let (named, ids, members, began) = (&self.named, &self.ids, self.panel.len(), Moment::now());
        let is_enough = |views: &[SentinelView]| {
            let sentinel_count = sentinel_count(views, named, ids);
            let needs_others = || {
                majority(sentinel_count) > members
                    || sentinel_count > members && Moment::now().since(began) >= SILENCE_MAX
            };
            agreed(views, sentinel_count).is_some() || may_learn && needs_others()
        };
        let views = self.panel.read_answers(Vec::new(), deadline, SentinelView::read, is_enough);
        self.ids.extend(views.iter().map(|view| (view.at.clone(), view.id.clone())));
        views
    }

    fn sentinel_count(&self, views: &[SentinelView]) -> usize {
        sentinel_count(views, &self.named, &self.ids)
    }

    fn agreed(&self, views: &[SentinelView]) -> Option<(Address, u64, u64)> {
        agreed(views, self.sentinel_count(views))
    }

    /// Asks all Sentinels, and waits for each that may answer.
    pub(super) fn report(&mut self, deadline: Moment) -> Result<SentinelReport, Failure> {
        let primary = self.locate(deadline)?;
        self.learn_of_others(&[], deadline);
        self.ask_all(deadline);
        let soon = Moment::now() + half_left(deadline);
        let read = |sentinel: &Server, replies: Replies| {
            let master = replies.last().and_then(|reply| reply.as_ref().ok()).map(Fields::of);
            Ok((SentinelView::read(sentinel, replies)?, master))
        };
        let heard = self.panel.read_answers(Vec::new(), soon, read, |_| false);
        self.panel.give_up();
        let number = |name| heard.iter().filter_map(|(_, master)| master.as_ref()?.number(name)).max();
        let views: Vec<SentinelView> = heard.iter().map(|(view, _)| view.clone()).collect();
        Ok(SentinelReport {
            service: self.service.clone(),
            named: self.named.len(),
            sentinel_count: self.sentinel_count(&views),
            silent: self.panel.failure_texts(),
            primary: primary.server.to_string(),
            replicas: number("num-slaves").unwrap_or(0),
            down_after: number("down-after-milliseconds").map(Duration::from_millis),
        })
    }

    fn no_majority(&self, views: &[SentinelView]) -> Failure {
        let (service, all) = (&self.service, self.sentinel_count(views));
        let unknown =
            |failure: &Failure| matches!(failure, Failure::Refused { error, .. } if error.contains("No such master"));
        match self.panel.failure() {
            Some((sentinel, failure)) if views.is_empty() && unknown(failure) => Failure::NoPrimary {
                why: format!(
                    "{sentinel} does not know the service {service:?}; check the name behind the / in the store's URL"
                ),
                is_transient: false,
            },
            failed => {
                let mut because = self.panel.why();
                let named: BTreeSet<&Address> = views.iter().map(|view| &view.address).collect();
                if named.len() > 1 {
                    let named = named.iter().map(|(host, port)| self.server.at(host, *port).to_string());
                    because = format!("{because}; they name {}", named.collect::<Vec<_>>().join(", and "));
                }
                let ids: BTreeSet<&str> = views.iter().map(|view| view.id.as_str()).collect();
                Failure::NoPrimary {
                    why: format!(
                        "the primary of {service:?} is not known: of its {all} Sentinels {} answered, and not {} agree{because}",
                        ids.len(),
                        majority(all)
                    ),
                    is_transient: views
                        .is_empty()
                        .then_some(failed)
                        .flatten()
                        .is_none_or(|(_, why)| why.is_transient()),
                }
            }
        }
    }

    /// Asks for the other Sentinels that these `views` may know.
    fn learn_of_others(&mut self, views: &[SentinelView], deadline: Moment) {
        self.has_learned = true;
        let expected = views.iter().map(|view| view.others).max().unwrap_or(0);
        let question = [redis::cmd("SENTINEL").arg("SENTINELS").arg(&self.service).take()];
        let soon = Moment::now() + half_left(deadline);
        self.panel.send(&question, usize::MAX, soon);
        let named = &self.named;
        let read = |sentinel: &Server, replies: Replies| {
            let is_named = named.iter().any(|it| it.endpoint == sentinel.endpoint);
            match replies.into_iter().next() {
                Some(Ok(Value::Array(others))) if is_named => Ok(others.iter().map(Fields::of).collect()),
                Some(Err(failure)) => Err(failure),
                _ => Ok(Vec::new()),
            }
        };
        // The list of a Sentinel that knows enough others is enough.
        let is_enough = |heard: &[Vec<Fields>]| heard.iter().any(|others| others.len() >= expected.max(1));
        let heard = self.panel.read_answers(Vec::new(), soon, read, is_enough);
        for other in heard.into_iter().flatten() {
            if let (Some(host), Some(port)) = (other.text("ip"), other.number("port"))
                && let Ok(port) = u16::try_from(port)
                && self.panel.len() < MEMBERS_MAX
            {
                let server = self.named[0].at(&host, port);
                self.ids.extend(other.text("runid").map(|id| (server.to_string(), id)));
                self.panel.add(server);
            }
        }
    }
}

/// The Sentinels that agree, and for how long each has known the primary.
type Supporters<'a> = BTreeMap<&'a str, u64>;

/// Returns how many Sentinels there are, as far as is known: the greatest of how many have answered or were ever said to
/// exist, how many one of them knows, and how many the URL names. A Sentinel that has not answered counts separately, unless
/// it is known which one is at its address.
fn sentinel_count(views: &[SentinelView], named: &[Server], ids: &BTreeMap<String, String>) -> usize {
    let heard: BTreeSet<&str> =
        views.iter().map(|view| view.id.as_str()).chain(ids.values().map(String::as_str)).collect();
    let known = views.iter().map(|view| view.others.saturating_add(1)).max().unwrap_or(0);
    let identity = |address: String| {
        let heard = views.iter().find(|view| view.at == address).map(|view| view.id.clone());
        heard.or_else(|| ids.get(&address).cloned()).ok_or(address)
    };
    let named: BTreeSet<Result<String, String>> = named.iter().map(|server| identity(server.to_string())).collect();
    heard.len().max(known).max(named.len())
}

/// Returns the address, the epoch and the standing on which a majority of `sentinel_count` agrees. A Sentinel with several addresses
/// has one vote.
fn agreed(views: &[SentinelView], sentinel_count: usize) -> Option<(Address, u64, u64)> {
    let needed = majority(sentinel_count);
    let mut votes: BTreeMap<(&Address, u64), Supporters<'_>> = BTreeMap::new();
    for view in views {
        votes.entry((&view.address, view.epoch)).or_default().insert(&view.id, view.standing);
    }
    let ((address, epoch), supporters) = votes.into_iter().find(|(_, supporters)| supporters.len() >= needed)?;
    // For so long a majority has known it.
    let mut standings: Vec<u64> = supporters.into_values().collect();
    standings.sort_unstable_by(|one, other| other.cmp(one));
    Some((address.clone(), epoch, standings[needed - 1]))
}

impl SentinelView {
    /// Reads the answers of a `sentinel` to the questions.
    fn read(sentinel: &Server, replies: Replies) -> Result<Self, Failure> {
        let unexpected = || Failure::UnexpectedReply(UnexpectedReply);
        let mut replies = replies.into_iter();
        let mut next = || replies.next().unwrap_or(Ok(Value::Nil));
        let (id, address, master) = (next()?, next()?, next()?);
        let id = text(&id).ok_or_else(unexpected)?;
        let Value::Array(address) = address else { return Err(unexpected()) };
        let [host, port] = &address[..] else { return Err(unexpected()) };
        let port: Option<u16> = text(port).and_then(|port| port.parse().ok());
        let address = (text(host).ok_or_else(unexpected)?, port.ok_or_else(unexpected)?);
        let master = Fields::of(&master);
        // At the end of a failover the address is already that of the new primary, while the rest still describes the old
        // one.
        let is_its = master.text("ip").as_ref() == Some(&address.0) && master.number("port") == Some(address.1.into());
        let standing = master.number("role-reported-time").filter(|_| is_its).unwrap_or(0);
        let epoch = master.number("config-epoch").ok_or_else(unexpected)?;
        let others = master.number("num-other-sentinels").and_then(|others| usize::try_from(others).ok());
        Ok(SentinelView { at: sentinel.to_string(), id, address, epoch, standing, others: others.unwrap_or(0) })
    }
}

/// An answer that lists names and values in turn.
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
    use crate::store::redis::url;

    fn view(id: &str, port: u16, epoch: u64, standing: u64, others: usize) -> SentinelView {
        SentinelView {
            at: format!("Sentinel at {id}:26379"),
            id: id.into(),
            address: ("h".into(), port),
            epoch,
            standing,
            others,
        }
    }

    /// Returns the Sentinels that a URL names.
    fn named(hosts: &str) -> Vec<Server> {
        let site = url::parse(&format!("redis+sentinel://{hosts}/service")).expect("is a URL");
        let Some(url::Failover::Sentinel { sentinels, .. }) = site.failover else { panic!("names Sentinels") };
        sentinels
    }

    #[test]
    fn a_majority_of_all_agrees_on_address_and_epoch() {
        let agreed = |views: &[SentinelView], hosts: &str| {
            let sentinel_count = sentinel_count(views, &named(hosts), &BTreeMap::new());
            agreed(views, sentinel_count).map(|(address, epoch, _)| (address.1, epoch))
        };
        let (a, b, c) = (view("a", 1, 3, 0, 2), view("b", 1, 3, 0, 2), view("c", 2, 4, 0, 2));
        assert_eq!(agreed(&[a.clone(), b.clone(), c.clone()], "a,b,c"), Some((1, 3)));
        assert_eq!(agreed(&[a.clone(), c.clone()], "a,b,c"), None, "one each");
        assert_eq!(agreed(std::slice::from_ref(&a), "a"), None, "it knows of two others");
        assert_eq!(agreed(&[a.clone(), a.clone()], "a,x"), None, "one that is named twice");
        assert_eq!(agreed(&[a.clone(), b.clone()], "a,b"), Some((1, 3)), "two of three, of which two are named");
        assert_eq!(agreed(&[a.clone(), b.clone()], "a,b,d,e,f"), None, "five are named, of whom those do not know");
        let five = [view("d", 1, 3, 0, 4), view("e", 1, 3, 0, 4), view("f", 2, 4, 0, 4)];
        assert_eq!(agreed(&five, "d,e,f"), None, "three are named, and there are five");
        let (alone, other) = (view("a", 1, 3, 0, 0), view("b", 1, 3, 0, 0));
        assert_eq!(agreed(&[alone, other], "a,b,c,d,e"), None, "five are named, and do not know each other");
        assert_eq!(agreed(&[a, view("b", 1, 2, 0, 2)], "a,b,c"), None, "different epochs");
        assert_eq!(agreed(&[view("a", 1, 0, 0, 0)], "a"), Some((1, 0)));
        assert_eq!(agreed(&[], "a"), None);
    }

    #[test]
    fn one_that_has_several_addresses_is_one() {
        let (a, b) = (view("a", 1, 3, 0, 2), view("b", 1, 3, 0, 2));
        let again = SentinelView { at: "Sentinel at x:26379".into(), ..a.clone() };
        let sentinel_count = |views: &[SentinelView], ids: &[(&str, &str)]| {
            let ids = ids.iter().map(|(at, id)| (format!("Sentinel at {at}:26379"), (*id).to_owned())).collect();
            sentinel_count(views, &named("a,b,c,x,y"), &ids)
        };
        assert_eq!(sentinel_count(&[a.clone(), b.clone(), again.clone()], &[]), 4, "c and y may be two");
        assert_eq!(sentinel_count(&[a.clone(), b.clone(), again], &[("c", "c"), ("y", "c")]), 3);
        assert_eq!(
            sentinel_count(&[a.clone(), b], &[("c", "c"), ("x", "a"), ("y", "c")]),
            3,
            "as they have answered before"
        );
        let forgetful = SentinelView { others: 0, ..a };
        let known = [("a", "a"), ("b", "b"), ("c", "c"), ("d", "d"), ("e", "e"), ("f", "f"), ("g", "g")];
        assert_eq!(sentinel_count(&[forgetful], &known), 7, "one has forgotten the others");
    }

    #[test]
    fn it_has_stood_for_as_long_as_a_majority_says() {
        let standing = |times: [u64; 3]| {
            let views: Vec<SentinelView> =
                times.iter().zip(["a", "b", "c"]).map(|(time, id)| view(id, 1, 1, *time, 2)).collect();
            agreed(&views, 3).expect("a majority").2
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
        let read = |replies| SentinelView::read(&named("id")[0], replies);
        assert_eq!(read(replies("h")).expect("is one"), view("id", 7, 3, 900, 2));
        assert_eq!(read(replies("old")).expect("is one"), view("id", 7, 3, 0, 2));
        assert!(read(vec![Ok(bulk("id")), Ok(Value::Nil), Ok(Value::Nil)]).is_err());
        assert!(read(vec![]).is_err());
    }
}
