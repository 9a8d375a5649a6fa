//! What would keep a run from outlasting a failover.

use std::time::Duration;

use crate::store::diagnostic::Diagnostic;
use crate::store::redis::failover::{ClusterReport, SentinelReport, WitnessReport, majority};
use crate::text::duration;

/// The lease of most runs: the default.
const USUAL_TTL: Duration = Duration::from_secs(30);

/// How long a failover usually takes once the primary was found to be down: until another one is elected and known to
/// all.
const ELECTION: Duration = Duration::from_secs(5);

/// What to do about a server that does not belong to the others.
const STRANGER: &str = "take the one that does not belong there out of the store's URL, on every host: it can keep \
                        locks from being had (69)";

/// Judges what the servers that know the primary report.
pub(super) fn judge(report: &WitnessReport) -> Vec<Diagnostic> {
    match report {
        WitnessReport::Sentinel(report) => judge_sentinels(report),
        WitnessReport::Cluster(report) => judge_cluster(report),
    }
}

fn judge_sentinels(report: &SentinelReport) -> Vec<Diagnostic> {
    let SentinelReport { service, named, sentinel_count, silent, strangers, primary, replicas, down_after } = report;
    let mut diagnostics = Vec::new();
    diagnostics.extend(primary.iter().map(|primary| {
        Diagnostic::ok(format!(
            "a majority of {sentinel_count} Sentinels says that the primary of {service:?} is {primary}"
        ))
    }));
    diagnostics.extend(warn_of_each(
        silent,
        "start it again: when a majority is away, locks cannot be acquired (69), and leases are lost",
    ));
    diagnostics.extend(warn_of_each(strangers, STRANGER));
    if *sentinel_count < 3 {
        diagnostics.push(Diagnostic::warn(
            format!("there are fewer than three Sentinels ({sentinel_count})"),
            "when one of them is away, there is no majority, and locks cannot be acquired (69); run three, on machines of \
             their own",
        ));
    }
    if *named < *sentinel_count && strangers.is_empty() {
        diagnostics.push(Diagnostic::warn(
            format!("the store's URL names {named} of {sentinel_count} Sentinels"),
            "only those are asked, and a majority of all must agree, or locks cannot be acquired (69); name them all",
        ));
    }
    if *replicas == 0 && primary.is_some() {
        diagnostics
            .push(Diagnostic::warn("the primary has no replica", "nothing can take its place; give it one or two"));
    }
    diagnostics.extend(down_after.map(|down_after| judge_delay("down-after-milliseconds", down_after)));
    diagnostics
}

fn judge_cluster(report: &ClusterReport) -> Vec<Diagnostic> {
    let ClusterReport { named, nodes, primaries, alone, silent, strangers, node_timeout } = report;
    let mut diagnostics = vec![Diagnostic::ok(format!(
        "the cluster has {primaries} primaries; to start, a run needs {} of the {named} nodes that the store's URL names",
        majority(*named)
    ))];
    diagnostics.extend(warn_of_each(
        silent,
        "start it again, or wait until a replica has taken its place: locks on it cannot be acquired (69), and with three \
         primaries no lease at all can be renewed meanwhile",
    ));
    diagnostics.extend(warn_of_each(strangers, STRANGER));
    if *named < 3 && nodes > named {
        diagnostics.push(Diagnostic::warn(
            format!("the store's URL names {named} of the cluster's {nodes} nodes"),
            "a majority of the named ones must answer, or locks cannot be acquired (69); name three or five, not all in one \
             failure zone",
        ));
    }
    if *primaries < 3 {
        diagnostics.push(Diagnostic::warn(
            format!("the cluster has fewer than three primaries ({primaries})"),
            "no replica can be elected in the place of one that is gone; use three or more",
        ));
    }
    for node in alone {
        diagnostics.push(Diagnostic::warn(
            format!("{node} has no replica"),
            "when it is gone, locks on it cannot be acquired (69); give it a replica",
        ));
    }
    diagnostics.extend(node_timeout.map(|timeout| judge_delay("cluster-node-timeout", timeout)));
    diagnostics
}

/// Returns a warning for each of these texts.
fn warn_of_each<'a>(texts: &'a [String], advice: &'a str) -> impl Iterator<Item = Diagnostic> + 'a {
    texts.iter().map(move |text| Diagnostic::warn(text.clone(), advice))
}

/// Compares a lease with the time after which a silent primary counts as down.
fn judge_delay(name: &str, delay: Duration) -> Diagnostic {
    let failover = delay + ELECTION;
    // The command gets TERM a third of the lease before its end, and the last renewal may be a third of the lease old.
    if failover * 3 < USUAL_TTL {
        let failover = duration::say(failover);
        return Diagnostic::ok(format!("a silent primary is replaced after about {failover} ({name})"));
    }
    Diagnostic::warn(
        format!("a silent primary is replaced only after about {} ({name})", duration::say(failover)),
        format!(
            "a lease of {} is lost before that, and the command is stopped (79): set {name} to 3000 or so, or use a \
             --ttl of {} or more",
            duration::say(USUAL_TTL),
            duration::say(failover * 3)
        ),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::diagnostic::Level;

    fn worst(diagnostics: &[Diagnostic]) -> Option<Level> {
        diagnostics.iter().map(|diagnostic| diagnostic.level).max()
    }

    #[test]
    fn weak_sentinels_are_reported() {
        let good = || SentinelReport {
            service: "s".into(),
            named: 3,
            sentinel_count: 3,
            silent: Vec::new(),
            strangers: Vec::new(),
            primary: Some("Redis at h:1".into()),
            replicas: 2,
            down_after: Some(Duration::from_secs(3)),
        };
        assert_eq!(worst(&judge_sentinels(&good())), Some(Level::Ok));
        for bad in [
            SentinelReport { named: 1, ..good() },
            SentinelReport { sentinel_count: 2, ..good() },
            SentinelReport { silent: vec!["one".into()], ..good() },
            SentinelReport { strangers: vec!["one".into()], ..good() },
            SentinelReport { replicas: 0, ..good() },
            SentinelReport { down_after: Some(Duration::from_secs(30)), ..good() },
        ] {
            assert_eq!(worst(&judge_sentinels(&bad)), Some(Level::Warn));
        }
    }

    #[test]
    fn weak_clusters_are_reported() {
        let good = || ClusterReport {
            named: 3,
            nodes: 6,
            primaries: 3,
            alone: Vec::new(),
            silent: Vec::new(),
            strangers: Vec::new(),
            node_timeout: Some(Duration::from_secs(3)),
        };
        assert_eq!(worst(&judge_cluster(&good())), Some(Level::Ok));
        for bad in [
            ClusterReport { primaries: 2, ..good() },
            ClusterReport { alone: vec!["one".into()], ..good() },
            ClusterReport { silent: vec!["one".into()], ..good() },
            ClusterReport { strangers: vec!["one".into()], ..good() },
            ClusterReport { named: 2, ..good() },
            ClusterReport { node_timeout: Some(Duration::from_secs(15)), ..good() },
        ] {
            assert_eq!(worst(&judge_cluster(&bad)), Some(Level::Warn));
        }
        let advises = |named| {
            let found = judge_cluster(&ClusterReport { named, ..good() });
            found.iter().any(|diagnostic| format!("{diagnostic:?}").contains("three or five"))
        };
        assert!(!advises(3) && !advises(5) && advises(2));
    }
}
