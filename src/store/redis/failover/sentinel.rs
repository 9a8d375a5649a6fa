//! Sentinels, which know the primary of a service.
//!
//! The primary is what a majority of the service's Sentinels names at the same time: its address and its configuration
//! epoch, which grows with each failover. A Sentinel never goes back to an earlier epoch, and any two majorities have a
//! Sentinel in common.
//!
//! Only the Sentinels that the URL names have a vote. The majority is one of all: of those that the URL names, or of
//! those that one of them knows of, whichever are more. But one that knows of so many that those in the URL can never
//! be a majority of them can itself never be right, and is passed over. So a Sentinel of another deployment that is
//! among them by mistake can make the primary unknown, but it can never name another one: it has one vote, and the
//! Sentinels that it knows have none.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use redis::{Cmd, Value};

use super::quorum::{Quorum, half_left};
use super::{Address, Primary, majority};
use crate::net::tls::Tls;
use crate::store::redis::connection::Replies;
use crate::store::redis::failure::{Failure, UNEXPECTED};
use crate::store::redis::reply::text;
use crate::store::redis::url::Server;
use crate::sys::clock::Moment;

/// By how much a Sentinel's clock may have been stepped since the failover, in ms: by that clock it measures how long
/// it has known the primary.
const STEP_MS: u64 = 600_000;

/// The Sentinels of one service.
pub(in crate::store::redis) struct Sentinels {
    service: String,
    /// What a primary is like, except for its address.
    server: Server,
    /// The Sentinels that the URL names.
    pub(super) panel: Quorum,
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
    /// Which are of another deployment, as it seems, or named twice, and why.
    pub(in crate::store::redis) strangers: Vec<String>,
    /// The primary, if a majority agrees on it.
    pub(in crate::store::redis) primary: Option<String>,
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
        // Ask for the address first: a Sentinel that learns of another primary between the two answers then gives a new
        // epoch with an old address.
        let questions = vec![
            sentinel(&["MYID"]),
            sentinel(&["GET-MASTER-ADDR-BY-NAME", &service]),
            sentinel(&["MASTER", &service]),
        ];
        Sentinels { server, panel: Quorum::new(named, tls), questions, service }
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

    /// Reads the answers until a majority agrees, or it is certain that none can.
    pub(super) fn read_primary(&mut self, deadline: Moment) -> Result<Primary, Failure> {
        let named = self.panel.len();
        let is_enough = |views: &[SentinelView]| agreed(views, named).is_some() || are_too_few(views, named);
        let views = self.panel.read_answers(Vec::new(), deadline, SentinelView::read, is_enough);
        let Some(((host, port), epoch, standing)) = agreed(&views, named) else {
            self.panel.give_up();
            return Err(self.no_majority(&views));
        };
        // Before the first failover, nobody knows how long it has been the primary, or of any other primary.
        let standing = standing.saturating_sub(STEP_MS);
        let standing = if epoch == 0 { -1 } else { i64::try_from(standing).unwrap_or(i64::MAX) };
        let (term, service) = (format!("{epoch}:{host}:{port}"), self.service.clone());
        Ok(Primary { server: self.server.at(&host, port), term, standing, service })
    }

    /// Asks all Sentinels, and waits for each that may answer.
    pub(super) fn report(&mut self, deadline: Moment) -> SentinelReport {
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
        let named = self.panel.len();
        let primary = agreed(&views, named).map(|((host, port), ..)| self.server.at(&host, port).to_string());
        let sentinel_count =
            if primary.is_some() { count(fitting(&views, named), named) } else { count(&views, named) };
        let mut strangers = self.strangers(&views);
        if primary.is_some() {
            strangers.extend(views.iter().filter(|view| !view.fits(named)).map(|view| self.knows_too_many(view)));
        }
        SentinelReport {
            service: self.service.clone(),
            named,
            sentinel_count,
            silent: self.panel.failure_texts(),
            strangers,
            primary,
            replicas: number("num-slaves").unwrap_or(0),
            down_after: number("down-after-milliseconds").map(Duration::from_millis),
        }
    }

    /// Returns the Sentinels that name another primary than most of them do, or that are named twice, and why.
    fn strangers(&self, views: &[SentinelView]) -> Vec<String> {
        let votes = |address: &Address| views.iter().filter(|view| view.address == *address).count();
        let Some(usual) = views.iter().map(|view| &view.address).max_by_key(|address| votes(address)) else {
            return Vec::new();
        };
        let place = |(host, port): &Address| self.server.at(host, *port).to_string();
        let of = |(number, view): (usize, &SentinelView)| {
            if let Some(same) = views[..number].iter().find(|other| other.id == view.id) {
                return Some(format!("{} and {} are one Sentinel, with one vote", same.at, view.at));
            }
            (view.address != *usual).then(|| {
                let (its, usual) = (place(&view.address), place(usual));
                format!("{} (one of {}) says that the primary is {its}, not {usual}", view.at, view.all())
            })
        };
        views.iter().enumerate().filter_map(of).collect()
    }

    /// Says that this Sentinel cannot be right, and what to do if it is of this service.
    fn knows_too_many(&self, view: &SentinelView) -> String {
        let SentinelView { at, others, .. } = view;
        format!("{at} knows of {others} others; if some no longer exist, run SENTINEL RESET {} on it", self.service)
    }

    fn no_majority(&self, views: &[SentinelView]) -> Failure {
        let (service, named) = (&self.service, self.panel.len());
        let are_too_few = are_too_few(views, named);
        let all = if are_too_few { count(views, named) } else { count(fitting(views, named), named) };
        let unknown =
            |failure: &Failure| matches!(failure, Failure::Rejected(own) if own.error.contains("No such master"));
        match self.panel.failure() {
            Some((sentinel, failure)) if views.is_empty() && unknown(failure) => Failure::no_primary(
                format!(
                    "{sentinel} does not know the service {service:?}; check the name behind the / in the store's URL"
                ),
                false,
            ),
            _ if are_too_few => {
                let knows_most = views.iter().max_by_key(|view| view.others).map_or("", |view| &view.at);
                Failure::no_primary(
                    format!(
                        "the primary of {service:?} cannot be confirmed: {knows_most} is one of {all}, so {} must agree, and the \
                         store's URL names only {named}; name all Sentinels of the service there, or run SENTINEL RESET {service} on \
                         each Sentinel if some no longer exist",
                        majority(all)
                    ),
                    false,
                )
            }
            failed => {
                let mut because = self.panel.why();
                for view in views.iter().filter(|view| !view.fits(named)) {
                    because = format!("{because}; {}", self.knows_too_many(view));
                }
                let named: BTreeSet<&Address> = views.iter().map(|view| &view.address).collect();
                if named.len() > 1 {
                    let named = named.iter().map(|(host, port)| self.server.at(host, *port).to_string());
                    let named = named.collect::<Vec<_>>().join(", and ");
                    because = format!("{because}; they name {named} (lockrun doctor lists which names which)");
                }
                let ids: BTreeSet<&str> = views.iter().map(|view| view.id.as_str()).collect();
                let failed = failed.filter(|_| views.is_empty());
                let is_transient = failed.is_none_or(|(_, why)| why.is_transient());
                let why = format!(
                    "the primary of {service:?} is not known: of its {all} Sentinels {} answered, and not {} \
                     agree{because}",
                    ids.len(),
                    majority(all)
                );
                Failure::no_primary(why, is_transient)
            }
        }
    }
}

/// The Sentinels that agree, and for how long each has known the primary.
type Supporters<'a> = BTreeMap<&'a str, u64>;

/// Returns how many Sentinels there are, as far as is known: as many as the URL names, or as one of them knows, itself
/// included.
fn count<'a>(views: impl IntoIterator<Item = &'a SentinelView>, named: usize) -> usize {
    let known = views.into_iter().map(SentinelView::all).max().unwrap_or(0);
    known.max(named)
}

/// Returns the views of the Sentinels of which those that the URL names can be a majority.
fn fitting(views: &[SentinelView], named: usize) -> impl Iterator<Item = &SentinelView> {
    views.iter().filter(move |view| view.fits(named))
}

/// Returns whether so many of the Sentinels that the URL names know of too many others that the rest cannot be a
/// majority, even if all of them agree.
fn are_too_few(views: &[SentinelView], named: usize) -> bool {
    let unfit = views.iter().filter(|view| !view.fits(named)).count();
    named.saturating_sub(unfit) < majority(named)
}

/// Returns the address, the epoch and the standing on which a majority agrees; the URL names so many Sentinels. A
/// Sentinel with several addresses has one vote.
fn agreed(views: &[SentinelView], named: usize) -> Option<(Address, u64, u64)> {
    let needed = majority(count(fitting(views, named), named));
    let mut votes: BTreeMap<(&Address, u64), Supporters<'_>> = BTreeMap::new();
    for view in fitting(views, named) {
        votes.entry((&view.address, view.epoch)).or_default().insert(&view.id, view.standing);
    }
    let ((address, epoch), supporters) = votes.into_iter().find(|(_, supporters)| supporters.len() >= needed)?;
    // For so long a majority has known it.
    let mut standings: Vec<u64> = supporters.into_values().collect();
    standings.sort_unstable_by(|one, other| other.cmp(one));
    Some((address.clone(), epoch, standings[needed - 1]))
}

impl SentinelView {
    /// Returns how many Sentinels there are, as it says, itself included.
    fn all(&self) -> usize {
        self.others.saturating_add(1)
    }

    /// Returns whether those that the URL names can be a majority of the Sentinels of which it knows.
    fn fits(&self, named: usize) -> bool {
        majority(self.all()) <= named
    }

    /// Reads the answers of a `sentinel` to the questions.
    fn read(sentinel: &Server, replies: Replies) -> Result<Self, Failure> {
        let mut replies = replies.into_iter();
        let mut next = || replies.next().unwrap_or(Ok(Value::Nil));
        let (id, address, master) = (next()?, next()?, next()?);
        let id = text(&id).ok_or(UNEXPECTED)?;
        let Value::Array(address) = address else { return Err(UNEXPECTED) };
        let [host, port] = &address[..] else { return Err(UNEXPECTED) };
        let port: Option<u16> = text(port).and_then(|port| port.parse().ok());
        let address = (text(host).ok_or(UNEXPECTED)?, port.ok_or(UNEXPECTED)?);
        let master = Fields::of(&master);
        // At the end of a failover the address is already that of the new primary, while the rest still describes the
        // old one.
        let is_its = master.text("ip").as_ref() == Some(&address.0) && master.number("port") == Some(address.1.into());
        let standing = master.number("role-reported-time").filter(|_| is_its).unwrap_or(0);
        let epoch = master.number("config-epoch").ok_or(UNEXPECTED)?;
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

    fn sentinel() -> Server {
        let site = url::parse("redis+sentinel://id/service").expect("is a URL");
        let Some(url::Failover::Sentinel { sentinels, .. }) = site.failover else { panic!("names Sentinels") };
        sentinels[0].clone()
    }

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

    #[test]
    fn a_majority_of_all_agrees_on_address_and_epoch() {
        let agreed = |views: &[SentinelView], named| agreed(views, named).map(|(address, epoch, _)| (address.1, epoch));
        let (a, b, c) = (view("a", 1, 3, 0, 2), view("b", 1, 3, 0, 2), view("c", 2, 4, 0, 2));
        assert_eq!(agreed(&[a.clone(), b.clone(), c.clone()], 3), Some((1, 3)));
        assert_eq!(agreed(&[a.clone(), c.clone()], 3), None, "one each");
        assert_eq!(agreed(std::slice::from_ref(&a), 1), None, "it knows of two others");
        assert_eq!(agreed(&[a.clone(), a.clone()], 2), None, "one that is named twice");
        assert_eq!(
            agreed(&[a.clone(), a.clone(), b.clone()], 4),
            None,
            "one that is named twice, of four that are named"
        );
        assert_eq!(agreed(&[a.clone(), b.clone()], 2), Some((1, 3)), "two of three, of which two are named");
        assert_eq!(agreed(&[a.clone(), b.clone()], 5), None, "five are named, of whom those do not know");
        let five = [view("d", 1, 3, 0, 4), view("e", 1, 3, 0, 4), view("f", 2, 4, 0, 4)];
        assert_eq!(agreed(&five, 3), None, "three are named, and there are five");
        let (alone, other) = (view("a", 1, 3, 0, 0), view("b", 1, 3, 0, 0));
        assert_eq!(agreed(&[alone, other], 5), None, "five are named, and do not know each other");
        assert_eq!(agreed(&[a, view("b", 1, 2, 0, 2)], 3), None, "different epochs");
        assert_eq!(agreed(&[view("a", 1, 0, 0, 0)], 1), Some((1, 0)));
        assert_eq!(agreed(&[], 1), None);
    }

    #[test]
    fn a_stranger_never_decides() {
        for others in [0, 2, 4, usize::MAX] {
            let (a, b, stranger) = (view("a", 1, 3, 0, 2), view("b", 1, 3, 0, 2), view("s", 9, 3, 0, others));
            let mut views = [a, b, stranger];
            for _ in 0..views.len() {
                views.rotate_left(1);
                for heard in 1..=views.len() {
                    let found = agreed(&views[..heard], 3).map(|(address, ..)| address.1);
                    assert!(found.is_none_or(|port| port == 1), "{others} others: {found:?}");
                }
            }
        }
    }

    #[test]
    fn one_that_knows_of_too_many_decides_nothing() {
        let too_few = |others: &[usize], named| {
            let views: Vec<SentinelView> = others.iter().map(|others| view("a", 1, 3, 0, *others)).collect();
            are_too_few(&views, named)
        };
        assert!(too_few(&[2], 1) && !too_few(&[2], 2) && !too_few(&[2, 2], 2) && too_few(&[4], 2));
        assert!(!too_few(&[], 3) && !too_few(&[8], 3), "the others can agree");
        assert!(too_few(&[8, 8], 3) && too_few(&[8, 2, 8], 3) && !too_few(&[8, 2, 2], 3));
        let (a, b, c) = (view("a", 1, 3, 0, 2), view("b", 1, 3, 0, 2), view("c", 1, 3, 0, 8));
        for views in [[&a, &b, &c], [&a, &c, &b], [&c, &a, &b]] {
            let views: Vec<SentinelView> = views.into_iter().cloned().collect();
            assert_eq!(agreed(&views, 3).map(|(address, ..)| address.1), Some(1));
            let lone: Vec<SentinelView> = views.into_iter().filter(|view| view.id != "b").collect();
            assert_eq!(agreed(&lone, 3), None, "its vote counts for nothing");
        }
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
        let read = |replies| SentinelView::read(&sentinel(), replies);
        assert_eq!(read(replies("h")).expect("is one"), view("id", 7, 3, 900, 2));
        assert_eq!(read(replies("old")).expect("is one"), view("id", 7, 3, 0, 2));
        assert!(read(vec![Ok(bulk("id")), Ok(Value::Nil), Ok(Value::Nil)]).is_err());
        assert!(read(vec![]).is_err());
    }
}
