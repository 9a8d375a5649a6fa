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
use super::url::Cluster;
use super::{EtcdStore, change};
use crate::lock::state::{Applied, LockState};
use crate::store::diagnostic::{Diagnostic, encryption, latency, trial};
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

/// A member in the URL that has answered.
struct Answered {
    /// Its name, for messages.
    name: String,
    /// A connection to it alone.
    client: Client,
    status: Status,
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
    let mut answered = each_member(&store.client.cluster, timeout, diagnostics);
    diagnostics.extend(judge_clusters(&answered).or_else(|| compare_data(&mut answered, timeout)));
    let Cluster { members, login, .. } = &store.client.cluster;
    let is_encrypted = store.client.cluster.is_encrypted();
    diagnostics.extend(encryption::diagnose_password(members, is_encrypted, login.is_some(), "etcds://", timeout));
    let members: Members = ask(&mut store.client, &api::member_list(), timeout)?;
    let voting = members.members.iter().filter(|member| !member.is_learner).count();
    diagnostics.push(judge_size(voting));
    let unanswered = store.client.cluster.members.len() - answered.len();
    diagnostics.extend(judge_url(&answered, unanswered, voting));
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
    diagnostics.extend(judge_least_lease(granted.ttl));
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

/// Examines each member in the URL. Returns those that have answered.
fn each_member(cluster: &Cluster, timeout: Duration, diagnostics: &mut Vec<Diagnostic>) -> Vec<Answered> {
    let mut answered = Vec::new();
    for member in &cluster.members {
        let alone = Cluster { members: vec![member.clone()], ..cluster.clone() };
        let mut client = match Client::new(alone) {
            Ok(client) => client,
            Err(error) => {
                diagnostics.push(Diagnostic::unusable(error, ""));
                continue;
            }
        };
        match ask::<Status>(&mut client, &api::member_status(), timeout) {
            Ok(status) => {
                let name = member.to_string();
                diagnostics.extend(judge_member(&name, &status));
                answered.push(Answered { name, client, status });
            }
            Err(failure) => {
                let others_may_answer = failure.is_of_member() && cluster.members.len() > 1;
                let advice =
                    if others_may_answer { "locks work as long as a majority of the members does" } else { "" };
                diagnostics.push(Diagnostic::warn(failure.explain(&client.cluster).to_string(), advice));
            }
        }
    }
    answered
}

/// Judges whether all members that have answered belong to one cluster.
fn judge_clusters(answered: &[Answered]) -> Option<Diagnostic> {
    let mut clusters: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for Answered { name, status, .. } in answered {
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

/// Compares the data of the members that have answered, if they are several.
fn compare_data(answered: &mut [Answered], timeout: Duration) -> Option<Diagnostic> {
    if answered.len() < 2 {
        return None;
    }
    let (mut revision, mut different) = (0, None);
    for attempt in 0..COMPARISONS {
        if attempt > 0 {
            thread::sleep(Duration::from_millis(200));
        }
        // Meanwhile, the revision of before may have been compacted.
        let status =
            |Answered { client, .. }: &mut Answered| ask::<Status>(client, &api::member_status(), timeout).ok();
        revision = answered.iter_mut().filter_map(status).map(|status| status.header.revision).min().unwrap_or(0);
        let hash = |Answered { name, client, .. }: &mut Answered| {
            let hash = ask::<Hash>(client, &api::hash(revision), timeout);
            hash.map(|hash| (name.clone(), hash)).map_err(|failure| failure.explain(&client.cluster).to_string())
        };
        let hashes: Result<Vec<_>, String> = answered.iter_mut().map(hash).collect();
        match hashes {
            Ok(hashes) => different = differing(&hashes),
            Err(why) => {
                return Some(Diagnostic::note(
                    format!("the members' data cannot be compared: {why}"),
                    "compare them as a user who may: etcdctl endpoint hashkv --cluster",
                ));
            }
        }
        if different.is_none() {
            break;
        }
    }
    Some(match different {
        None => Diagnostic::ok(format!("the members have the same data at revision {revision}")),
        Some((one, other)) => Diagnostic::fail(
            format!("the members {one} and {other} have different data at revision {revision}"),
            "two runs can hold one lock, each by the data of another member; stop the jobs, find the member that is \
             wrong with `etcdctl endpoint hashkv --cluster`, remove it from the cluster, and add it again without its \
             data",
        ),
    })
}

/// Returns two members whose data differ. Members that have compacted theirs to different revisions cannot be compared.
fn differing(hashes: &[(String, Hash)]) -> Option<(String, String)> {
    hashes.iter().find_map(|(name, hash)| {
        let is_other = |(_, it): &&(String, Hash)| it.compact_revision == hash.compact_revision && it.hash != hash.hash;
        hashes.iter().find(is_other).map(|(other, _)| (name.clone(), other.clone()))
    })
}

/// Judges whether the URL names all of so many `voting` members, of which some in the URL have not answered.
fn judge_url(answered: &[Answered], unanswered: usize, voting: usize) -> Option<Diagnostic> {
    let named = answered.iter().map(|member| &member.status).filter(|status| !status.is_learner);
    let named: BTreeSet<&str> = named.map(|status| status.header.member_id.as_str()).collect();
    let count = named.len() + unanswered;
    (count < voting).then(|| {
        Diagnostic::note(
            format!("the URL names {count} of the {voting} members that vote"),
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
fn judge_size(voting: usize) -> Diagnostic {
    match voting {
        1 => Diagnostic::note(
            "the cluster has one member that votes",
            "while that is away, no lock can be acquired or renewed; three members survive the loss of one",
        ),
        2 => Diagnostic::warn(
            "the cluster has two members that vote",
            "both are needed: it is no safer than one; three members survive the loss of one",
        ),
        _ => Diagnostic::ok(format!(
            "the cluster has {voting} members that vote, of which {} are needed",
            voting / 2 + 1
        )),
    }
}

/// Judges the lease, in seconds, that was granted when the shortest was asked for.
fn judge_least_lease(seconds: i64) -> Option<Diagnostic> {
    (seconds > 2).then(|| {
        Diagnostic::note(
            format!(
                "the shortest lease that the cluster grants lasts {seconds} s, one and a half of its election time-outs"
            ),
            "after a crash, a lock with a shorter --ttl stays held for as long",
        )
    })
}

fn judge_alarm(alarm: &Value) -> Diagnostic {
    let kind = alarm["alarm"].as_str().unwrap_or("unknown");
    match kind {
        "NOSPACE" => Diagnostic::unusable(
            "the alarm NOSPACE is active: the database is full, and no lock can be acquired",
            "compact and defragment it, then disarm the alarm with `etcdctl alarm disarm`, and run `lockrun doctor` \
             again: members of etcd 3.4 that crash after that can end up with different data",
        ),
        "CORRUPT" => Diagnostic::unusable(
            "the alarm CORRUPT is active: the members' data differ, and no lock can be acquired",
            "replace the member that `etcdctl alarm list` names, then disarm the alarm with `etcdctl alarm disarm`",
        ),
        kind => Diagnostic::fail(format!("the alarm {kind} is active"), "see `etcdctl alarm list`"),
    }
}
