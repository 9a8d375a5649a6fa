//! What would make locks in this cluster unsafe or slow.

use std::collections::{BTreeMap, BTreeSet};
use std::thread;
use std::time::Duration;

use serde::Deserialize;
use serde_json::Value;

use super::api::{self, Header, RequestOp};
use super::client::{Client, Effect};
use super::failure::Failure;
use super::keys::Names;
use super::url::{Cluster, shown};
use super::{EtcdStore, change};
use crate::lock::state::{Applied, LockState};
use crate::store::diagnostic::{Diagnostic, Level, encryption, latency, trial};
use crate::store::engine::{Operation, Records as _};
use crate::sys::blocked_signals::with_signals_blocked;
use crate::sys::clock::Moment;

/// A member's answer about itself.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Status {
    header: Header,
    version: String,
    #[serde(rename = "dbSize")]
    size: String,
    leader: String,
    errors: Vec<String>,
    #[serde(rename = "isLearner")]
    is_learner: bool,
}

/// The members of the cluster.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Members {
    members: Vec<Member>,
}

/// A member, as the cluster knows it.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Member {
    #[serde(rename = "isLearner")]
    is_learner: bool,
}

impl Members {
    /// Returns the number of those that vote.
    fn voting(&self) -> usize {
        self.members.iter().filter(|member| !member.is_learner).count()
    }

    fn has_learners(&self) -> bool {
        self.members.iter().any(|member| member.is_learner)
    }
}

/// The hash of a member's data, and from which revision on it has them.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(default)]
struct Hash {
    hash: u32,
    compact_revision: String,
}

/// The alarms that are active.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Alarms {
    alarms: Vec<Value>,
}

/// From this size on, a database is near etcd's default limit of 2 GiB.
const LARGE: u64 = 1_700_000_000;

/// Examines the members of `store`, and tries a lock there under a name that nobody else uses.
pub(super) fn diagnose(store: &mut EtcdStore) -> Vec<Diagnostic> {
    let mut diagnostics = Vec::new();
    if let Err(failure) = look(store, &mut diagnostics) {
        let unusable = Diagnostic::unusable(store.explain(&failure).to_string(), "");
        // The only member has failed in the same way before.
        diagnostics.retain(|diagnostic| diagnostic.text != unusable.text);
        diagnostics.push(unusable);
    }
    diagnostics
}

fn look(store: &mut EtcdStore, diagnostics: &mut Vec<Diagnostic>) -> Result<(), Failure> {
    let timeout = store.timeout;
    let statuses = each_member(&store.client.cluster, timeout, diagnostics);
    let strangers = judge_clusters(&statuses);
    if strangers.is_none() {
        diagnostics.extend(compare_data(&store.client.cluster, statuses.len(), timeout));
    }
    diagnostics.extend(strangers);
    let Cluster { members, login, .. } = &store.client.cluster;
    let is_encrypted = store.client.cluster.is_encrypted();
    diagnostics.extend(encryption::diagnose_password(members, is_encrypted, login.is_some(), "etcds://", timeout));
    let members: Members = ask(&mut store.client, &api::member_list(), timeout)?;
    diagnostics.push(judge_size(members.voting(), members.has_learners()));
    let unanswered = store.client.cluster.members.len() - statuses.len();
    diagnostics.extend(judge_url(&statuses, unanswered, members.voting()));
    let alarms: Alarms = ask(&mut store.client, &api::alarms(), timeout).unwrap_or_default();
    diagnostics.extend(alarms.alarms.iter().map(judge_alarm));
    let key = trial::key();
    // A majority confirms a read, as it does each step of a lock.
    let read = RequestOp::Get(Names::new(&store.client.cluster.prefix, &key).state);
    let measured = latency::diagnose(timeout, || -> Result<_, Failure> {
        ask::<Value>(&mut store.client, &api::transaction(&[], [&read], &[]), timeout)?;
        // Its clock, in whole seconds, is too coarse to be judged.
        Ok(None)
    });
    diagnostics.extend(measured?);
    let lease = change::number();
    let granted: api::Lease = ask(&mut store.client, &api::grant(lease, 1), timeout)?;
    diagnostics.push(judge_least_lease(granted.ttl));
    store.unused_leases.push(lease);
    diagnostics.push(with_signals_blocked(|| {
        let tried = trial::diagnose(store, &key);
        store.is_trial = true;
        let _ = store.once(Operation::OnLock(&key), |state, _| {
            *state = LockState::default();
            Ok(Applied::only(()))
        });
        tried
    }));
    store.revoke_unused_leases();
    Ok(())
}

/// Asks the present member.
fn ask<T: for<'a> Deserialize<'a>>(
    client: &mut Client,
    request: &super::http::Request,
    timeout: Duration,
) -> Result<T, Failure> {
    let responses = client.exchange(std::slice::from_ref(request), Effect::Reads, Moment::now() + timeout)?;
    let response = responses.first().ok_or(Failure::Closed)?;
    match Failure::of_response(response) {
        Some(failure) => Err(failure),
        None => api::read(&response.body),
    }
}

/// Examines each member in the URL. Returns the names and the answers of those that have answered.
fn each_member(cluster: &Cluster, timeout: Duration, diagnostics: &mut Vec<Diagnostic>) -> Vec<(String, Status)> {
    let mut statuses = Vec::new();
    for member in &cluster.members {
        let alone = Cluster { members: vec![member.clone()], ..cluster.clone() };
        let status = match Client::new(alone.clone()) {
            Ok(mut client) => ask::<Status>(&mut client, &api::member_status(), timeout),
            Err(error) => {
                diagnostics.push(Diagnostic::unusable(error, ""));
                continue;
            }
        };
        match status {
            Ok(status) => {
                diagnostics.extend(judge_member(&member.to_string(), &status));
                statuses.push((member.to_string(), status));
            }
            Err(failure) => {
                let others_may_answer = failure.is_of_member() && cluster.members.len() > 1;
                let advice =
                    if others_may_answer { "locks work as long as a majority of the members does" } else { "" };
                diagnostics.push(Diagnostic::warn(failure.explain(&alone).to_string(), advice));
            }
        }
    }
    statuses
}

/// Judges whether all members that have answered belong to one cluster.
fn judge_clusters(statuses: &[(String, Status)]) -> Option<Diagnostic> {
    let mut clusters: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (name, status) in statuses {
        clusters.entry(&status.header.cluster_id).or_default().push(name);
    }
    let lists: Vec<String> = clusters.values().map(|names| names.join(", ")).collect();
    (lists.len() > 1).then(|| {
        Diagnostic::fail(
            format!("the members in the URL belong to {} clusters: {}", lists.len(), lists.join("; ")),
            "two runs can hold one lock, each in another cluster; name only the members of one cluster",
        )
    })
}

/// How often members whose data seem to differ are asked: one of them may be compacting its data.
const COMPARISONS: u32 = 3;

/// Compares the data of the members, if several have `answered`.
fn compare_data(cluster: &Cluster, answered: usize, timeout: Duration) -> Option<Diagnostic> {
    if answered < 2 {
        return None;
    }
    let mut judged = None;
    for attempt in 0..COMPARISONS {
        if attempt > 0 {
            thread::sleep(Duration::from_millis(200));
        }
        match hashes(cluster, timeout) {
            Ok((revision, hashes)) => judged = Some(judge_hashes(revision, &hashes)),
            Err(failure) => {
                return Some(Diagnostic::note(
                    format!("the members' data cannot be compared: {}", failure.explain(cluster)),
                    "compare them as a user who may: etcdctl endpoint hashkv --cluster",
                ));
            }
        }
        if judged.as_ref().is_some_and(|judged| judged.level == Level::Ok) {
            break;
        }
    }
    judged
}

/// Returns the hashes of the data of those members that answer, all as of one revision, and that revision.
fn hashes(cluster: &Cluster, timeout: Duration) -> Result<(i64, Vec<(String, Hash)>), Failure> {
    let mut clients = Vec::new();
    let mut revision = i64::MAX;
    for member in &cluster.members {
        let alone = Cluster { members: vec![member.clone()], ..cluster.clone() };
        // A member that is away was reported before.
        let Ok(mut client) = Client::new(alone) else { continue };
        if let Ok(status) = ask::<Status>(&mut client, &api::member_status(), timeout) {
            revision = revision.min(status.header.revision);
            clients.push((member.to_string(), client));
        }
    }
    let hash = |(name, mut client)| Ok((name, ask::<Hash>(&mut client, &api::hash(revision), timeout)?));
    let hashes: Result<_, Failure> = clients.into_iter().map(hash).collect();
    Ok((revision, hashes?))
}

/// Judges whether the members have the same data. Members that have compacted theirs to different revisions cannot be compared.
fn judge_hashes(revision: i64, hashes: &[(String, Hash)]) -> Diagnostic {
    let differ = |(name, hash): &(String, Hash)| {
        let is_other = |(_, it): &&(String, Hash)| it.compact_revision == hash.compact_revision && it.hash != hash.hash;
        hashes.iter().find(is_other).map(|(other, _)| format!("{name} and {other}"))
    };
    match hashes.iter().find_map(differ) {
        None => Diagnostic::ok(format!("the members have the same data at revision {revision}")),
        Some(two) => Diagnostic::fail(
            format!("the members {two} have different data at revision {revision}"),
            "two runs can hold one lock, each by the data of another member; stop the jobs, find the member that is wrong with \
             `etcdctl endpoint hashkv --cluster`, remove it from the cluster, and add it again without its data",
        ),
    }
}

/// Judges whether the URL names all of so many `voting` members, of which some in the URL have not answered.
fn judge_url(statuses: &[(String, Status)], unanswered: usize, voting: usize) -> Option<Diagnostic> {
    let named = statuses.iter().filter(|(_, status)| !status.is_learner);
    let named: BTreeSet<&str> = named.map(|(_, status)| status.header.member_id.as_str()).collect();
    (named.len() + unanswered < voting).then(|| {
        Diagnostic::note(
            format!("the URL names {} of the {voting} members", named.len() + unanswered),
            "lockrun asks no other member if those are away; name all members, unless the URL names a load balancer",
        )
    })
}

fn judge_member(name: &str, status: &Status) -> Vec<Diagnostic> {
    let size: u64 = status.size.parse().unwrap_or(0);
    let mut diagnostics = vec![if status.leader.is_empty() || status.leader == "0" {
        Diagnostic::warn(format!("the member {name} knows no leader"), "it takes no requests until there is one")
    } else {
        Diagnostic::ok(format!("the member {name} runs etcd {}", status.version))
    }];
    if status.is_learner {
        diagnostics.push(Diagnostic::warn(
            format!("the member {name} is a learner"),
            "it answers no request for a lock; name only members that vote",
        ));
    }
    let old = status.version.split('.').map(|part| part.parse::<u32>().unwrap_or(0)).collect::<Vec<_>>() < vec![3, 4];
    if old {
        diagnostics.push(Diagnostic::warn(
            format!("the member {name} runs etcd {}", status.version),
            "lockrun is tested with etcd 3.4 and later",
        ));
    }
    if size > LARGE {
        diagnostics.push(Diagnostic::warn(
            format!("the database of the member {name} has {} MB", size / 1_000_000),
            "when it is full, no lock can be acquired; compact and defragment it, or raise --quota-backend-bytes",
        ));
    }
    let errors = status.errors.iter();
    diagnostics.extend(errors.map(|error| Diagnostic::warn(format!("the member {name} says: {error}"), "")));
    diagnostics
}

/// Judges the number of members that vote.
fn judge_size(voting: usize, has_learners: bool) -> Diagnostic {
    let majority = voting / 2 + 1;
    let besides = if has_learners { " besides learners, which do not vote" } else { "" };
    match voting {
        1 => Diagnostic::note(
            format!("the cluster has one member{besides}"),
            "while that is away, no lock can be acquired or renewed; three members survive the loss of one",
        ),
        2 => Diagnostic::warn(
            format!("the cluster has two members{besides}"),
            "both are needed: it is no safer than one; three members survive the loss of one",
        ),
        _ => Diagnostic::ok(format!("the cluster has {voting} members{besides}, of which {majority} are needed")),
    }
}

/// Judges the lease, in seconds, that was granted when the shortest was asked for.
fn judge_least_lease(seconds: i64) -> Diagnostic {
    if seconds <= 2 {
        return Diagnostic::ok(format!("the shortest lease that the cluster grants lasts {seconds} s"));
    }
    Diagnostic::note(
        format!(
            "the shortest lease that the cluster grants lasts {seconds} s, one and a half of its election time-outs"
        ),
        "after a crash, a lock with a shorter --ttl stays held for as long",
    )
}

fn judge_alarm(alarm: &Value) -> Diagnostic {
    let kind = alarm["alarm"].as_str().unwrap_or("unknown");
    match kind {
        "NOSPACE" => Diagnostic::unusable(
            "the alarm NOSPACE is active: the database is full, and no lock can be acquired",
            "compact and defragment it, then disarm the alarm with `etcdctl alarm disarm`, and run `lockrun doctor` again: \
             members of etcd 3.4 that crash after that can end up with different data",
        ),
        "CORRUPT" => Diagnostic::unusable(
            "the alarm CORRUPT is active: the members' data differ, and no lock can be acquired",
            "replace the member that `etcdctl alarm list` names, then disarm the alarm with `etcdctl alarm disarm`",
        ),
        kind => Diagnostic::fail(format!("the alarm {kind} is active"), "see `etcdctl alarm list`"),
    }
}
