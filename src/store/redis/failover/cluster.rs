//! The nodes of a cluster, which know the primary of each hash slot.
//!
//! Which cluster is meant is what a majority of the nodes that the URL names says: they answer, and know each other. If
//! two of them do not know each other, one is a node of another cluster, or was reset, added or removed just now, and
//! no primary is known. So the runs of one URL never use two clusters at once.
//!
//! A primary is the node that a majority of the other primaries calls so (those that vote when a replica wants to
//! replace it), with its configuration epoch, which changes with each failover and each move of a slot to another node.
//! Its own vote does not count: it may be cut off from all others. If there are fewer than two others, no replica can
//! be elected in its place, and its own vote is enough.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crc::{CRC_16_XMODEM, Crc};
use redis::{Cmd, Value};

use super::quorum::{Quorum, half_left};
use super::{Address, ListedPrimary, Primary, majority};
use crate::net::endpoint::Endpoint;
use crate::net::tls::Tls;
use crate::store::redis::connection::Replies;
use crate::store::redis::failure::{Failure, UNEXPECTED};
use crate::store::redis::reply::text;
use crate::store::redis::url::Server;
use crate::sys::clock::Moment;

/// How many hash slots a cluster has.
const SLOTS: u16 = 16384;

/// From how many primaries on a replica can be elected: a majority of them has to vote for it, and the replaced one
/// does not vote.
const CAN_REPLACE: usize = 3;

/// The most primaries that a cluster may have: each of them is asked.
const PRIMARIES_MAX: usize = 200;

/// The most nodes that a cluster may have, as Redis's cluster specification advises.
const NODES_MAX: usize = 1000;

/// The greatest length of a node's id, and of its address.
const ID_MAX: usize = 40;
const ADDRESS_MAX: usize = 512;

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
    pub(super) panel: Quorum,
    question: [Cmd; 1],
}

/// What is known of a cluster.
pub(in crate::store::redis) struct ClusterReport {
    /// How many nodes the URL names, and how many there are.
    pub(in crate::store::redis) named: usize,
    pub(in crate::store::redis) nodes: usize,
    /// How many primaries it has.
    pub(in crate::store::redis) primaries: usize,
    /// The primaries that have no replica.
    pub(in crate::store::redis) alone: Vec<String>,
    /// Why some do not answer.
    pub(in crate::store::redis) silent: Vec<String>,
    /// Which of the named nodes are none of this cluster, and why.
    pub(in crate::store::redis) strangers: Vec<String>,
    /// After how long a silence a node counts as failed, if we may know it.
    pub(in crate::store::redis) node_timeout: Option<Duration>,
}

/// How one node sees the cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
struct View {
    /// Where it was asked.
    at: Server,
    /// The id of the node.
    id: String,
    /// The ids of the nodes that it knows.
    known: BTreeSet<String>,
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
    /// Whether it has the slot that is asked about.
    has_slot: bool,
}

/// Why it is not known which cluster is meant.
#[derive(Debug, PartialEq, Eq)]
enum Unclear<'a> {
    /// These two nodes, which the URL names, are not of the same one.
    Strangers(&'a Server, &'a Server),
    /// Only so many of the nodes that the URL names have answered.
    TooFew(usize),
}

impl Cluster {
    pub(super) fn new(named: &[Server], tls: Option<Tls>) -> Self {
        let panel = Quorum::new(named, tls);
        // Each once.
        let named = panel.servers().cloned().collect();
        Cluster { panel, named, question: [redis::cmd("CLUSTER").arg("NODES").take()] }
    }

    /// Asks which node is the primary of `slot`.
    pub(super) fn locate(&mut self, slot: u16, deadline: Moment) -> Result<Primary, Failure> {
        self.ask_all(deadline);
        let has_agreed = |views: &[&View]| agreed(views, |node| node.has_slot).is_some();
        let views = self.read_views_until(slot, deadline, has_agreed);
        let found = ours(&self.named, &views).ok().and_then(|ours| agreed(&ours, |node| node.has_slot));
        let Some(node) = found else {
            self.panel.give_up();
            return Err(self.no_majority(&views, Some(slot)));
        };
        self.keep_primaries(&views);
        Ok(self.primary(node))
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
        let soon = Moment::now() + half_left(deadline);
        let read = |server: &Server, replies| View::read(server, replies, 0);
        self.ask_all(deadline);
        let mut views = self.panel.read_answers(Vec::new(), soon, read, |_| false);
        // Also the other primaries, if the named nodes agree on them.
        let primaries = ours(&self.named, &views).ok().and_then(|ours| newest(&ours)).map(|view| &view.primaries);
        let primaries: Vec<Server> = primaries.into_iter().flatten().map(|node| self.server(node)).collect();
        for server in primaries {
            self.panel.add(server);
        }
        self.panel.ask_rest(deadline);
        views = self.panel.read_answers(views, soon, read, |_| false);
        self.panel.give_up();
        let silent = self.panel.failure_texts();
        let named: Vec<&View> = of_named(&self.named, &views).collect();
        let friends = |view: &View| named.iter().filter(|other| view.is_with(other)).count();
        // The one that most of the others belong to.
        let usual = named.iter().rev().max_by_key(|view| friends(view));
        let Some(usual) = usual else { return Err(self.no_majority(&views, None)) };
        let strangers = named.iter().filter(|view| !usual.is_with(view)).map(|view| {
            let what = if view.primaries.is_empty() { "knows no cluster" } else { "is not of the same cluster" };
            format!("{} {what}: it and {} do not know each other", view.at, usual.at)
        });
        let of_usual: Vec<&View> = views.iter().filter(|view| usual.is_with(view)).collect();
        let view = newest(&of_usual).unwrap_or(usual);
        let servers: Vec<Server> = view.primaries.iter().map(|node| self.server(node)).collect();
        let alone = view.primaries.iter().filter(|node| !view.replicated.contains(&node.id));
        let mut report = ClusterReport {
            named: self.named.len(),
            nodes: view.known.len(),
            primaries: view.primaries.len(),
            alone: alone.map(|node| self.server(node).to_string()).collect(),
            silent,
            strangers: strangers.collect(),
            node_timeout: None,
        };
        self.panel.replace_members(servers);
        let question = [redis::cmd("CONFIG").arg("GET").arg("cluster-node-timeout").take()];
        self.panel.send(&question, usize::MAX, deadline);
        let soon = Moment::now() + half_left(deadline);
        let read = |_: &Server, replies: Replies| match replies.into_iter().next() {
            Some(Ok(Value::Array(pair))) => Ok(pair.get(1).and_then(text).and_then(|time| time.parse().ok())),
            _ => Ok(None),
        };
        let heard: Vec<Option<u64>> = self.panel.read_answers(Vec::new(), soon, read, |_| false);
        self.panel.give_up();
        report.node_timeout = heard.into_iter().flatten().max().map(Duration::from_millis);
        Ok(report)
    }

    /// Returns all primaries.
    pub(super) fn primaries(&mut self, deadline: Moment) -> Result<Vec<ListedPrimary>, Failure> {
        self.ask_all(deadline);
        let all_agree = |views: &[&View]| {
            newest(views).is_some_and(|view| view.primaries.iter().all(|node| is_agreed(views, node)))
        };
        let views = self.read_views_until(0, Moment::now() + half_left(deadline), all_agree);
        self.panel.give_up();
        let listed = ours(&self.named, &views).ok().and_then(|ours| {
            let listed = |node: &Node| ListedPrimary {
                primary: self.primary(node),
                doubt: (!is_agreed(&ours, node)).then(|| self.no_majority(&views, None).of_confirmation()),
            };
            newest(&ours).map(|view| view.primaries.iter().map(listed).collect())
        });
        self.keep_primaries(&views);
        listed.ok_or_else(|| self.no_majority(&views, None))
    }

    pub(super) fn ask(&mut self, deadline: Moment) {
        // One of the connected members may be the primary itself, whose vote does not count.
        let enough = majority(self.panel.len().saturating_sub(1)) + 1;
        self.panel.send(&self.question, enough, deadline);
    }

    /// Reads the answers of the known primaries until a majority agrees.
    pub(super) fn read_primary(&mut self, slot: u16, deadline: Moment) -> Result<Primary, Failure> {
        let found = |views: &[View]| {
            let views: Vec<&View> = views.iter().collect();
            agreed(&views, |node| node.has_slot).cloned()
        };
        let read = |server: &Server, replies| View::read(server, replies, slot);
        let views = self.panel.read_answers(Vec::new(), deadline, read, |views| found(views).is_some());
        if let Some(node) = found(&views) {
            return Ok(self.primary(&node));
        }
        self.panel.give_up();
        Err(self.no_majority(&views, Some(slot)))
    }

    fn primary(&self, node: &Node) -> Primary {
        Primary {
            server: self.server(node),
            term: format!("{}:{}", node.epoch, node.id),
            standing: -1,
            service: String::new(),
        }
    }

    /// Reads the answers until those of our cluster are enough, or the named nodes turn out not to be of one cluster.
    /// When it is known which cluster is ours, also asks its other primaries.
    fn read_views_until(&mut self, slot: u16, deadline: Moment, is_enough: impl Fn(&[&View]) -> bool) -> Vec<View> {
        let (named, panel) = (&self.named, &mut self.panel);
        let mut views = Vec::new();
        loop {
            let known: Vec<Server> = panel.servers().cloned().collect();
            let missing = |ours: &[&View]| -> Vec<Server> {
                let primaries = newest(ours).into_iter().flat_map(|view| &view.primaries);
                let missing = primaries.map(|node| at(&named[0], node)).filter(|server| !known.contains(server));
                missing.take((named.len() + PRIMARIES_MAX).saturating_sub(known.len())).collect()
            };
            let is_over = |views: &[View]| match ours(named, views) {
                Ok(ours) => is_enough(&ours) || !missing(&ours).is_empty(),
                Err(Unclear::Strangers(..)) => true,
                Err(Unclear::TooFew(_)) => false,
            };
            let read = |server: &Server, replies| View::read(server, replies, slot);
            views = panel.read_answers(views, deadline, read, is_over);
            let added = ours(named, &views).ok().filter(|ours| !is_enough(ours)).map(|ours| missing(&ours));
            let Some(added) = added.filter(|added| !added.is_empty()) else { return views };
            for server in added {
                panel.add(server);
            }
            panel.ask_rest(deadline);
        }
    }

    /// Replaces the panel by the primaries of our cluster, as these views tell, if they do.
    fn keep_primaries(&mut self, views: &[View]) {
        let primaries = ours(&self.named, views).ok().and_then(|ours| {
            newest(&ours).map(|view| view.primaries.iter().map(|node| self.server(node)).collect::<Vec<Server>>())
        });
        if let Some(primaries) = primaries {
            self.panel.replace_members(primaries);
        }
    }

    fn no_majority(&self, views: &[View], slot: Option<u16>) -> Failure {
        let because = self.panel.why();
        let what = slot.map_or_else(|| "a primary".to_owned(), |slot| format!("the primary of the hash slot {slot}"));
        let is_served = slot.is_none() || views.iter().any(|view| view.primaries.iter().any(|node| node.has_slot));
        let why = match ours(&self.named, views) {
            _ if views.is_empty() => format!("no node of the cluster answers{because}"),
            Err(Unclear::Strangers(one, other)) => format!(
                "{one} and {other} are not nodes of one cluster; take the one that does not belong there out of the store's URL \
                 (lockrun doctor says which it is), or try again if one was just added or reset"
            ),
            _ if !is_served => format!("no node of the cluster serves the hash slot {}{because}", slot.unwrap_or(0)),
            Err(Unclear::TooFew(heard)) => format!(
                "of the {} nodes that the store's URL names {heard} answered as members of a cluster, and {} must{because}",
                self.named.len(),
                majority(self.named.len())
            ),
            _ => format!(
                "{what} is not known: of {} primaries in the cluster {} answered, and too few others agree on it{because}",
                primary_count(&views.iter().collect::<Vec<_>>()),
                views.len()
            ),
        };
        let is_transient = !views.is_empty() || self.panel.failure().is_none_or(|(_, failure)| failure.is_transient());
        Failure::no_primary(why, is_transient)
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

/// Returns the views of the nodes that the URL names.
fn of_named<'a>(named: &[Server], views: &'a [View]) -> impl Iterator<Item = &'a View> {
    views.iter().filter(|view| named.iter().any(|server| server.endpoint == view.at.endpoint))
}

/// Returns the views of those nodes that are of the cluster which a URL with these `named` nodes means.
fn ours<'a>(named: &[Server], views: &'a [View]) -> Result<Vec<&'a View>, Unclear<'a>> {
    // A node that is still empty, or was reset, does not contradict the others.
    let heard: Vec<&View> = of_named(named, views).filter(|view| !view.primaries.is_empty()).collect();
    for (number, one) in heard.iter().enumerate() {
        if let Some(other) = heard[..number].iter().find(|other| !one.is_with(other)) {
            return Err(Unclear::Strangers(&other.at, &one.at));
        }
    }
    if heard.len() < majority(named.len()) {
        return Err(Unclear::TooFew(heard.len()));
    }
    Ok(views.iter().filter(|view| heard.iter().all(|one| one.is_with(view))).collect())
}

/// Returns the view that knows of the latest change.
fn newest<'a>(views: &[&'a View]) -> Option<&'a View> {
    views.iter().copied().max_by_key(|view| view.primaries.iter().map(|node| node.epoch).max())
}

/// Returns whether enough nodes agree that a node is a primary, since this epoch.
fn is_agreed(views: &[&View], node: &Node) -> bool {
    agreed(views, |it| it.id == node.id && it.epoch == node.epoch).is_some()
}

/// Returns how many primaries there are, as far as is known.
fn primary_count(views: &[&View]) -> usize {
    views.iter().map(|view| view.primaries.len()).max().unwrap_or(0)
}

/// Returns the node that enough others call the primary that `is_meant`.
fn agreed<'a>(views: &[&'a View], is_meant: impl Fn(&Node) -> bool) -> Option<&'a Node> {
    let primary_count = primary_count(views);
    let mut votes: BTreeMap<(&str, u64), (BTreeSet<&str>, &Node)> = BTreeMap::new();
    for view in views {
        // A replica does not vote.
        let may_vote = view.primaries.iter().any(|node| node.id == view.id);
        if let (true, Some(primary)) = (may_vote, view.primaries.iter().find(|node| is_meant(node))) {
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
    votes.into_values().find(|(voters, primary)| is_enough(voters, primary)).map(|(_, primary)| primary)
}

impl View {
    /// Reads the answer of `node` to CLUSTER NODES, to learn which primary has `slot`.
    fn read(node: &Server, replies: Replies, slot: u16) -> Result<Self, Failure> {
        let reply = replies.into_iter().next().ok_or(UNEXPECTED)??;
        let Value::BulkString(listed) = &reply else { return Err(UNEXPECTED) };
        str::from_utf8(listed).ok().and_then(|listed| View::parse(listed, node, slot)).ok_or(UNEXPECTED)
    }

    /// Returns whether both are of one cluster: they know each other.
    fn is_with(&self, other: &View) -> bool {
        self.known.contains(&other.id) && other.known.contains(&self.id)
    }

    /// Reads the lines `ID IP:PORT@BUS,HOSTNAME FLAGS PRIMARY PING PONG EPOCH LINK SLOT...`. Keeps of the slots only
    /// who has `slot`.
    fn parse(listed: &str, node: &Server, slot: u16) -> Option<Self> {
        let mut view = View {
            at: node.clone(),
            id: String::new(),
            known: BTreeSet::new(),
            primaries: Vec::new(),
            replicated: BTreeSet::new(),
        };
        for line in listed.lines() {
            let mut words = line.split_ascii_whitespace();
            let (id, address, flags) = (words.next()?, words.next()?, words.next()?);
            let (replica_of, epoch) = (words.next()?, words.nth(2)?);
            // The state of the link.
            words.next()?;
            let has_flag = |name| flags.split(',').any(|flag| flag == name);
            if id.len() > ID_MAX || replica_of.len() > ID_MAX || address.len() > ADDRESS_MAX {
                return None;
            }
            if has_flag("myself") {
                id.clone_into(&mut view.id);
            }
            // A node that is just being met is known by an id that is not its own.
            if !has_flag("handshake") {
                view.known.insert(id.to_owned());
            }
            if has_flag("slave") && !has_flag("fail") {
                view.replicated.insert(replica_of.to_owned());
            }
            // Slots that are being moved are in brackets.
            let mut ranges = words.filter_map(row).peekable();
            if has_flag("master") && ranges.peek().is_some() {
                let has_slot = ranges.any(|(first, last)| (first..=last).contains(&slot));
                let (id, address) = (id.to_owned(), address_of(address, node)?);
                view.primaries.push(Node { id, address, epoch: epoch.parse().ok()?, has_slot });
            }
            if view.known.len() > NODES_MAX || view.primaries.len() > PRIMARIES_MAX {
                return None;
            }
        }
        (!view.id.is_empty()).then_some(view)
    }
}

/// Reads `FIRST-LAST`, or a single slot.
fn row(range: &str) -> Option<(u16, u16)> {
    let (first, last) = range.split_once('-').unwrap_or((range, range));
    Some((first.parse().ok()?, last.parse().ok()?))
}

/// Reads `IP:PORT@BUS,HOSTNAME`. A node may not know its own address: then it is at the address where it was asked.
/// Over TLS the name is preferred, because certificates are issued for names.
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
        View::parse(text, &node(), 0).expect("is a view")
    }

    #[test]
    fn a_view_is_read() {
        let of = |slot| {
            let read = View::parse(NODES, &node(), slot).expect("is a view");
            assert_eq!((read.id.as_str(), read.primaries.len(), read.known.len()), ("aaa", 3, 5));
            let found = read.primaries.iter().find(|node| node.has_slot);
            found.map(|node| (node.id.clone(), node.epoch, node.address.1))
        };
        let is = |id: &str, epoch, port| Some((id.to_owned(), epoch, port));
        assert_eq!((of(0), of(5461), of(5462)), (is("aaa", 1, 7000), is("bbb", 2, 7001), is("aaa", 1, 7000)));
        assert_eq!(of(16383), is("ccc", 3, 7002));
        let long = format!("{} 127.0.0.1:7000@17000 myself,master - 0 0 1 connected 0", "a".repeat(ID_MAX + 1));
        let lines = (0..=NODES_MAX).map(|id| format!("{id} h:1@2 myself,master - 0 0 1 connected"));
        let many = lines.collect::<Vec<_>>().join("\n");
        let garbage = ["", "aaa", "aaa x:y z", "aaa 127.0.0.1:7000@17000 master - 0 0 1 connected 0-1"];
        for garbage in garbage.into_iter().chain([long.as_str(), &many]) {
            assert_eq!(View::parse(garbage, &node(), 0), None, "{garbage}");
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
        let agreed = |views: &[&View]| agreed(views, |node| node.has_slot).map(|node| node.id.clone());
        let (a, b, c, d) = (seen_by("aaa"), seen_by("bbb"), seen_by("ccc"), seen_by("ddd"));
        assert_eq!(agreed(&[&b, &c]).as_deref(), Some("aaa"));
        assert_eq!(agreed(&[&a, &b]), None, "it speaks for itself");
        assert_eq!(agreed(&[&b, &b, &d]), None, "a replica has no voice, nor one two");
        let newer = view(&NODES.replace("0 0 1 connected 0", "0 0 9 connected 0"));
        assert_eq!(agreed(&[&b, &View { id: "ccc".into(), ..newer }]), None, "different epochs");
        let alone = view("aaa 127.0.0.1:7000@17000 myself,master - 0 0 1 connected 0-16383\n");
        assert_eq!(agreed(&[&alone]).as_deref(), Some("aaa"));
        assert_eq!(agreed(&[&a]), None);
    }

    /// Returns a cluster whose URL names these hosts.
    fn naming(hosts: &str) -> Cluster {
        let site = url::parse(&format!("redis+cluster://{hosts}")).expect("is a URL");
        let Some(url::Failover::Cluster(named)) = site.failover else { panic!("names a cluster") };
        Cluster::new(&named, None)
    }

    #[test]
    fn the_named_nodes_decide_which_cluster_is_meant() {
        let cluster = naming("a,b,x");
        let at = |host: &str| cluster.named[0].at(host, 6379);
        let seen = |host: &str, id: &str| View { at: at(host), id: id.into(), ..view(NODES) };
        let (a, b, c) = (seen("a", "aaa"), seen("b", "bbb"), seen("c", "ccc"));
        let other =
            view("xxx 127.0.0.1:9@10 myself,master - 0 0 99 connected 0-16383\nyyy h:1@2 slave xxx 0 0 99 connected\n");
        let (stranger, its_replica) =
            (View { at: at("x"), ..other.clone() }, View { at: at("y"), id: "yyy".into(), ..other.clone() });
        let found = |views: &[&View]| {
            let views: Vec<View> = views.iter().copied().cloned().collect();
            let ours =
                ours(&cluster.named, &views).map(|ours| ours.iter().map(|view| view.id.clone()).collect::<Vec<_>>());
            ours.map_err(|unclear| match unclear {
                Unclear::Strangers(..) => "strangers".to_owned(),
                Unclear::TooFew(heard) => format!("{heard} answered"),
            })
        };
        let ids = |ids: &[&str]| Ok(ids.iter().map(|id| (*id).to_owned()).collect::<Vec<_>>());
        assert_eq!(
            found(&[&a, &b, &c, &its_replica]),
            ids(&["aaa", "bbb", "ccc"]),
            "one that was not named, and is not known"
        );
        assert_eq!(found(&[&a, &c]), Err("1 answered".into()), "the third may be a stranger");
        assert_eq!(found(&[&stranger, &its_replica]), Err("1 answered".into()), "so may be the first two");
        assert_eq!(found(&[&a, &b, &stranger]), Err("strangers".into()));
        assert_eq!(found(&[&stranger, &a]), Err("strangers".into()));
        // Its lines about the others are older than their lines about it, or the other way round.
        let forgotten = View { known: BTreeSet::from(["aaa".into()]), ..a.clone() };
        assert_eq!(found(&[&forgotten, &b]), Err("strangers".into()));
        assert_eq!(found(&[&b, &forgotten]), Err("strangers".into()));
        let empty = View { at: at("x"), ..view("zzz 127.0.0.1:9@10 myself,master - 0 0 0 connected\n") };
        assert_eq!(found(&[&empty, &a, &b]), ids(&["aaa", "bbb"]), "one that was reset");
        assert_eq!(found(&[&empty, &a]), Err("1 answered".into()));
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
