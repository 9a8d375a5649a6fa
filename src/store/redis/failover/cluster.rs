//! The nodes of a cluster, which know the primary of each hash slot.
//!
//! A primary is the node that a majority of the other primaries calls so (those that vote when a replica wants to replace
//! it), with its configuration epoch, which changes with each failover and each move of a slot to another node. Its own vote
//! does not count: it may be cut off from all others. If there are fewer than two others, no replica can be elected in its
//! place, and its own vote is enough.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crc::{CRC_16_XMODEM, Crc};
use redis::{Cmd, Value};

use super::panel::{Panel, half_left};
use super::{Address, ListedPrimary, Primary, majority};
use crate::net::endpoint::Endpoint;
use crate::net::tls::Tls;
use crate::store::redis::connection::Replies;
use crate::store::redis::failure::Failure;
use crate::store::redis::reply::{UnexpectedReply, text};
use crate::store::redis::url::Server;
use crate::sys::clock::Moment;

/// How many hash slots a cluster has.
const SLOTS: u16 = 16384;

/// From how many primaries on a replica can be elected: a majority of them has to vote for it, and the replaced one does not
/// vote.
const CAN_REPLACE: usize = 3;

/// The most primaries that a cluster may have: each of them is asked.
const PRIMARIES_MAX: usize = 200;

/// Returns the hash slot of `key`: the CRC16 (XMODEM) of the text between its first brace and the next closing one, as
/// Redis's cluster specification defines it.
pub(in crate::store::redis) fn slot_of(key: &str) -> u16 {
    const CRC: Crc<u16> = Crc::<u16>::new(&CRC_16_XMODEM);
    let tag = key.split_once('{').and_then(|(_, rest)| rest.split_once('}')).map(|(tag, _)| tag);
    CRC.checksum(tag.filter(|tag| !tag.is_empty()).unwrap_or(key).as_bytes()) % SLOTS
}

/// The nodes of a cluster.
pub(in crate::store::redis) struct Cluster {
    /// The nodes that the URL names.
    named: Vec<Server>,
    /// The primaries, or the nodes that the URL names until the primaries are known.
    pub(super) panel: Panel,
    question: [Cmd; 1],
}

/// What is known of a cluster.
pub(in crate::store::redis) struct ClusterReport {
    /// How many primaries it has.
    pub(in crate::store::redis) primaries: usize,
    /// The primaries that have no replica.
    pub(in crate::store::redis) alone: Vec<String>,
    /// Why some do not answer.
    pub(in crate::store::redis) silent: Vec<String>,
    /// After how long a silence a node counts as failed, if we may know it.
    pub(in crate::store::redis) node_timeout: Option<Duration>,
}

/// How one node sees the cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
struct View {
    /// The id of the node.
    id: String,
    /// The primaries that have slots.
    primaries: Vec<Node>,
    /// The ids of the nodes that have a replica not known to have failed.
    replicated: BTreeSet<String>,
}

/// A primary.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Node {
    id: String,
    address: Address,
    epoch: u64,
    /// The first and the last slot of each range.
    slots: Vec<(u16, u16)>,
}

impl Cluster {
    pub(super) fn new(named: Vec<Server>, tls: Option<Tls>) -> Self {
        Cluster { panel: Panel::new(&named, tls), named, question: [redis::cmd("CLUSTER").arg("NODES").take()] }
    }

    /// Asks which node is the primary of `slot`.
    pub(super) fn locate(&mut self, slot: u16, deadline: Moment) -> Result<Primary, Failure> {
        self.ask_all(deadline);
        // A node that knows few others may have been cut off before they joined, or belong to another cluster: hear the
        // others, too.
        let is_clear = |views: &[View]| primary_count(views) >= CAN_REPLACE && agreed(views, slot).is_some();
        let views = self.read_views_until(Vec::new(), Moment::now() + half_left(deadline), is_clear);
        self.read_primary_after(views, slot, deadline)
    }

    /// Asks all known primaries, and the nodes that the URL names.
    fn ask_all(&mut self, deadline: Moment) {
        for server in &self.named {
            self.panel.add(server.clone());
        }
        self.panel.send(&self.question, usize::MAX, deadline);
    }

    /// Asks all primaries, and waits for each that may answer.
    pub(super) fn report(&mut self, deadline: Moment) -> Result<ClusterReport, Failure> {
        let view = self.newest_view(deadline)?;
        let question = [redis::cmd("CONFIG").arg("GET").arg("cluster-node-timeout").take()];
        self.panel.send(&question, usize::MAX, deadline);
        let soon = Moment::now() + half_left(deadline);
        let read = |_: &Server, replies: Replies| match replies.into_iter().next() {
            Some(Ok(Value::Array(pair))) => Ok(pair.get(1).and_then(text).and_then(|time| time.parse().ok())),
            _ => Ok(None),
        };
        let heard: Vec<Option<u64>> = self.panel.read_answers(Vec::new(), soon, read, |_| false);
        self.panel.give_up();
        let alone = view.primaries.iter().filter(|node| !view.replicated.contains(&node.id));
        Ok(ClusterReport {
            primaries: view.primaries.len(),
            alone: alone.map(|node| self.server(node).to_string()).collect(),
            silent: self.panel.failure_texts(),
            node_timeout: heard.into_iter().flatten().max().map(Duration::from_millis),
        })
    }

    /// Returns all primaries.
    pub(super) fn primaries(&mut self, deadline: Moment) -> Result<Vec<ListedPrimary>, Failure> {
        self.ask_all(deadline);
        let all_agree = |views: &[View]| {
            let newest = newest(views).filter(|view| view.primaries.len() >= CAN_REPLACE);
            newest.is_some_and(|view| view.primaries.iter().all(|node| is_agreed(views, node)))
        };
        let soon = Moment::now() + half_left(deadline);
        let views = self.read_views_until(Vec::new(), soon, all_agree);
        self.panel.give_up();
        let view = self.keep_primaries(&views).ok_or_else(|| self.no_majority(&[], 0))?;
        let listed = |node: &Node| ListedPrimary {
            primary: self.primary(node),
            doubt: (!is_agreed(&views, node)).then(|| {
                let slot = node.slots.first().map_or(0, |(first, _)| *first);
                self.no_majority(&views, slot).of_confirmation()
            }),
        };
        Ok(view.primaries.iter().map(listed).collect())
    }

    pub(super) fn ask(&mut self, deadline: Moment) {
        // One of the connected members may be the primary itself, whose vote does not count.
        let enough = majority(self.panel.len().saturating_sub(1)) + 1;
        self.panel.send(&self.question, enough, deadline);
    }

    /// Reads the answers until a majority agrees.
    pub(super) fn read_primary(&mut self, slot: u16, deadline: Moment) -> Result<Primary, Failure> {
        self.read_primary_after(Vec::new(), slot, deadline)
    }

    fn read_primary_after(&mut self, views: Vec<View>, slot: u16, deadline: Moment) -> Result<Primary, Failure> {
        let views = self.read_views_until(views, deadline, |views| agreed(views, slot).is_some());
        let Some(node) = agreed(&views, slot) else {
            self.panel.give_up();
            return Err(self.no_majority(&views, slot));
        };
        self.keep_primaries(&views);
        Ok(self.primary(&node))
    }

    fn primary(&self, node: &Node) -> Primary {
        Primary {
            server: self.server(node),
            term: format!("{}:{}", node.epoch, node.id),
            standing: -1,
            service: String::new(),
        }
    }

    /// Reads the answers until they are enough. Also asks primaries that the answers name.
    fn read_views_until(
        &mut self,
        mut views: Vec<View>,
        deadline: Moment,
        is_enough: impl Fn(&[View]) -> bool,
    ) -> Vec<View> {
        loop {
            let like = &self.named[0];
            let known: Vec<Server> = self.panel.servers().cloned().collect();
            let is_new = |node: &Node| !known.contains(&at(like, node)) && known.len() < PRIMARIES_MAX;
            let names_others = |views: &[View]| views.iter().any(|view| view.primaries.iter().any(is_new));
            views =
                self.panel.read_answers(views, deadline, View::read, |views| is_enough(views) || names_others(views));
            if is_enough(&views) || !names_others(&views) {
                return views;
            }
            for node in views.iter().flat_map(|view| &view.primaries) {
                if self.panel.len() < PRIMARIES_MAX {
                    self.panel.add(at(like, node));
                }
            }
            self.panel.ask_rest(deadline);
        }
    }

    /// Replaces the panel by the primaries in the newest of these views. Returns that view.
    fn keep_primaries(&mut self, views: &[View]) -> Option<View> {
        let view = newest(views)?;
        self.panel.replace_members(view.primaries.iter().map(|node| self.server(node)).collect());
        Some(view.clone())
    }

    /// Asks all, and returns the view of the node that knows of the latest change.
    fn newest_view(&mut self, deadline: Moment) -> Result<View, Failure> {
        self.ask_all(deadline);
        let soon = Moment::now() + half_left(deadline);
        let views = self.read_views_until(Vec::new(), soon, |_| false);
        self.panel.give_up();
        self.keep_primaries(&views).ok_or_else(|| self.no_majority(&[], 0))
    }

    fn no_majority(&self, views: &[View], slot: u16) -> Failure {
        let because = self.panel.why();
        let is_served = views.is_empty() || views.iter().any(|view| view.primary_of(slot).is_some());
        let why = match views.len() {
            0 => format!("no node of the cluster answers{because}"),
            _ if !is_served => format!("no node of the cluster serves the hash slot {slot}{because}"),
            heard => format!(
                "the primary of the hash slot {slot} is not known: of {} primaries in the cluster {heard} answered, and too few \
                 others agree on it{because}",
                primary_count(views)
            ),
        };
        let is_transient = !views.is_empty() || self.panel.failure().is_none_or(|(_, failure)| failure.is_transient());
        Failure::NoPrimary { why, is_transient }
    }

    /// Returns where a node is.
    fn server(&self, node: &Node) -> Server {
        at(&self.named[0], node)
    }
}

/// Returns a server `like` this one, at the address of a node.
fn at(like: &Server, node: &Node) -> Server {
    like.at(&node.address.0, node.address.1)
}

/// Returns the view that knows of the latest change.
fn newest(views: &[View]) -> Option<&View> {
    views.iter().max_by_key(|view| view.primaries.iter().map(|node| node.epoch).max())
}

/// Returns whether enough nodes agree that a node has the slots it is said to have.
fn is_agreed(views: &[View], node: &Node) -> bool {
    let is_its = |slot| agreed(views, slot).is_some_and(|it| it.id == node.id && it.epoch == node.epoch);
    node.slots.iter().all(|(first, last)| is_its(*first) && is_its(*last))
}

/// Returns how many primaries there are, as far as is known.
fn primary_count(views: &[View]) -> usize {
    views.iter().map(|view| view.primaries.len()).max().unwrap_or(0)
}

/// Returns the node that enough others call the primary of `slot`.
fn agreed(views: &[View], slot: u16) -> Option<Node> {
    let primary_count = primary_count(views);
    let mut votes: BTreeMap<(&str, u64), (BTreeSet<&str>, &Node)> = BTreeMap::new();
    for view in views {
        // A replica does not vote.
        let may_vote = view.primaries.iter().any(|node| node.id == view.id);
        if let (true, Some(primary)) = (may_vote, view.primary_of(slot)) {
            let (its_voters, _) = votes.entry((&primary.id, primary.epoch)).or_insert((BTreeSet::new(), primary));
            its_voters.insert(&view.id);
        }
    }
    let is_enough = |voters: &BTreeSet<&str>, primary: &Node| {
        if primary_count >= CAN_REPLACE {
            voters.iter().filter(|id| **id != primary.id).count() >= majority(primary_count - 1)
        } else {
            voters.contains(primary.id.as_str())
        }
    };
    votes.into_values().find(|(voters, primary)| is_enough(voters, primary)).map(|(_, primary)| primary.clone())
}

impl View {
    /// Reads the answer of `node` to CLUSTER NODES.
    fn read(node: &Server, replies: Replies) -> Result<Self, Failure> {
        let unexpected = || Failure::UnexpectedReply(UnexpectedReply);
        let reply = replies.into_iter().next().ok_or_else(unexpected)??;
        View::parse(&text(&reply).ok_or_else(unexpected)?, node).ok_or_else(unexpected)
    }

    /// Reads the lines `ID IP:PORT@BUS,HOSTNAME FLAGS PRIMARY PING PONG EPOCH LINK SLOT...`.
    fn parse(listed: &str, node: &Server) -> Option<Self> {
        let mut view = View { id: String::new(), primaries: Vec::new(), replicated: BTreeSet::new() };
        for line in listed.lines() {
            let words: Vec<&str> = line.split_whitespace().collect();
            let [id, address, flags, replica_of, _, _, epoch, _, slots @ ..] = &words[..] else { return None };
            let flags: Vec<&str> = flags.split(',').collect();
            if flags.contains(&"myself") {
                (*id).clone_into(&mut view.id);
            }
            if flags.contains(&"slave") && !flags.contains(&"fail") {
                view.replicated.insert((*replica_of).to_owned());
            }
            // Slots that are being moved are in brackets.
            let slots: Vec<(u16, u16)> = slots.iter().filter_map(|range| row(range)).collect();
            if flags.contains(&"master") && !slots.is_empty() {
                let (id, address) = ((*id).to_owned(), address_of(address, node)?);
                view.primaries.push(Node { id, address, epoch: epoch.parse().ok()?, slots });
            }
        }
        (!view.id.is_empty() && view.primaries.len() <= PRIMARIES_MAX).then_some(view)
    }

    fn primary_of(&self, slot: u16) -> Option<&Node> {
        self.primaries.iter().find(|node| node.slots.iter().any(|(first, last)| (*first..=*last).contains(&slot)))
    }
}

/// Reads `FIRST-LAST`, or a single slot.
fn row(range: &str) -> Option<(u16, u16)> {
    let (first, last) = range.split_once('-').unwrap_or((range, range));
    Some((first.parse().ok()?, last.parse().ok()?))
}

/// Reads `IP:PORT@BUS,HOSTNAME`. A node may not know its own address: then it is at the address where it was asked. Over TLS
/// the name is preferred, because certificates are issued for names.
fn address_of(listed: &str, asked: &Server) -> Option<Address> {
    let (ip, port) = listed.split(['@', ',']).next()?.rsplit_once(':')?;
    let Endpoint::Tcp { host, tls, .. } = &asked.endpoint else { return None };
    let name = listed.split(',').nth(1).filter(|name| !name.is_empty() && !name.contains('='));
    let named = match (name, ip) {
        (Some(name), _) if tls.is_some() => name,
        (Some(name), "") => name,
        (None, "") => host,
        (_, ip) => ip.trim_start_matches('[').trim_end_matches(']'),
    };
    Some((named.to_owned(), port.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::redis::url;

    const NODES: &str = "\
aaa 127.0.0.1:7000@17000 myself,master - 0 0 1 connected 0-5460 5462 [5461-<-bbb]
bbb 127.0.0.1:7001@17001,host-b master - 0 0 2 connected 5461-10922
ccc 127.0.0.1:7002@17002 master - 0 0 3 connected 10923-16383
ddd 127.0.0.1:7003@17003 slave aaa 0 0 1 connected
eee 127.0.0.1:7004@17004 master,fail - 0 0 0 disconnected
";

    fn node() -> Server {
        url::parse("redis://localhost").expect("is a URL").server
    }

    fn view(text: &str) -> View {
        View::parse(text, &node()).expect("is a view")
    }

    #[test]
    fn a_view_is_read() {
        let read = view(NODES);
        assert_eq!((read.id.as_str(), read.primaries.len()), ("aaa", 3));
        let at = |slot| read.primary_of(slot).map(|node| (node.id.as_str(), node.epoch, node.address.1));
        assert_eq!(
            (at(0), at(5461), at(5462), at(16383)),
            (Some(("aaa", 1, 7000)), Some(("bbb", 2, 7001)), Some(("aaa", 1, 7000)), Some(("ccc", 3, 7002)))
        );
        for garbage in ["", "aaa", "aaa x:y z", "aaa 127.0.0.1:7000@17000 master - 0 0 1 connected 0-1"] {
            assert_eq!(View::parse(garbage, &node()), None, "{garbage}");
        }
    }

    #[test]
    fn addresses_are_read() {
        let secure = url::parse("rediss://asked").expect("is a URL").server;
        let at = |listed: &str, asked: &Server| address_of(listed, asked).map(|(host, port)| format!("{host} {port}"));
        assert_eq!(at("10.0.0.1:7000@17000", &node()).as_deref(), Some("10.0.0.1 7000"));
        assert_eq!(at("10.0.0.1:7000@17000,name", &node()).as_deref(), Some("10.0.0.1 7000"));
        assert_eq!(at("10.0.0.1:7000@17000,name", &secure).as_deref(), Some("name 7000"));
        assert_eq!(at("::1:7000@17000", &node()).as_deref(), Some("::1 7000"));
        assert_eq!(at(":7000@17000", &node()).as_deref(), Some("localhost 7000"));
        assert_eq!(at("10.0.0.1:7000@17000,,shard-id=x", &secure).as_deref(), Some("10.0.0.1 7000"));
        assert_eq!(at("nonsense", &node()), None);
    }

    #[test]
    fn the_others_decide() {
        let seen_by = |id: &str| View { id: id.into(), ..view(NODES) };
        let agreed = |views: &[View]| agreed(views, 0).map(|node| node.id);
        let (a, b, c, d) = (seen_by("aaa"), seen_by("bbb"), seen_by("ccc"), seen_by("ddd"));
        assert_eq!(agreed(&[b.clone(), c.clone()]).as_deref(), Some("aaa"));
        assert_eq!(agreed(&[a.clone(), b.clone()]), None, "it speaks for itself");
        assert_eq!(agreed(&[b.clone(), b.clone(), d]), None, "a replica has no voice, nor one two");
        let newer = View::parse(&NODES.replace("0 0 1 connected 0", "0 0 9 connected 0"), &node()).expect("is a view");
        assert_eq!(agreed(&[b, View { id: "ccc".into(), ..newer }]), None, "different epochs");
        let alone = view("aaa 127.0.0.1:7000@17000 myself,master - 0 0 1 connected 0-16383\n");
        assert_eq!(super::agreed(&[alone], 7).map(|node| node.id).as_deref(), Some("aaa"));
        assert_eq!(agreed(&[a]), None);
    }

    #[test]
    fn slots_are_of_hash_tags() {
        // Redis's cluster specification: the CRC16 of 123456789 is 0x31C3.
        assert_eq!(slot_of("123456789"), 0x31C3 % SLOTS);
        assert_eq!(slot_of("lockrun:{a}:holders"), slot_of("a"));
        // An empty tag does not count as a tag.
        assert_eq!(slot_of("a{}b"), 13694);
    }
}
