//! Which server is the primary, where a replica can take its place.
//!
//! The primary is the server that a majority calls so. A majority is asked with every request, and a lease counts from
//! before both. So once a majority knows another primary, every holder on the old one has counted its lease from an
//! earlier moment, and its command is dead after the longest lease. `failover.lua` keeps the new primary from granting
//! anything until then.

mod cluster;
mod quorum;
mod sentinel;
mod voter;

pub(super) use cluster::{ClusterReport, slot_of};
pub(super) use sentinel::SentinelReport;

use super::failure::Failure;
use super::url::{self, Server};
use crate::net::tls::Tls;
use crate::sys::clock::Moment;
use cluster::Cluster;
use sentinel::Sentinels;

/// The host and the port of a server.
type Address = (String, u16);

/// A primary, as a majority knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Primary {
    /// Where it is.
    pub(super) server: Server,
    /// The name of its term: a server gets another one each time it becomes the primary.
    pub(super) term: String,
    /// For at least how many milliseconds it has been the primary, as the scripts take it: see `failover.lua`.
    pub(super) standing: i64,
    /// The service whose primary it is, where one server may be that of several; otherwise empty.
    pub(super) service: String,
}

impl Primary {
    /// Returns whether this is the same server, and has not been replaced in between.
    pub(super) fn is_still(&self, other: &Primary) -> bool {
        self.server == other.server && self.term == other.term
    }
}

/// A primary to list.
pub(super) struct ListedPrimary {
    pub(super) primary: Primary,
    /// Why no majority confirms it, if none does.
    pub(super) doubt: Option<Failure>,
}

/// What the servers that know the primary report about themselves.
pub(super) enum WitnessReport {
    Sentinel(SentinelReport),
    Cluster(ClusterReport),
}

/// The servers that know the primary.
pub(super) enum PrimaryLocator {
    Sentinels(Sentinels),
    Cluster(Cluster),
}

impl PrimaryLocator {
    /// Takes the servers of `failover`, which are reached with `tls` if it is used. Primaries are reached like
    /// `server`.
    pub(super) fn new(failover: url::Failover, server: &Server, tls: Option<Tls>) -> Self {
        match failover {
            url::Failover::Sentinel { service, sentinels } => {
                PrimaryLocator::Sentinels(Sentinels::new(service, &sentinels, server.clone(), tls))
            }
            url::Failover::Cluster(nodes) => PrimaryLocator::Cluster(Cluster::new(&nodes, tls)),
        }
    }

    /// Calls one of these, then ends the child processes that still look up names.
    fn do_with<T>(
        &mut self,
        with_sentinels: impl FnOnce(&mut Sentinels) -> T,
        with_cluster: impl FnOnce(&mut Cluster) -> T,
    ) -> T {
        match self {
            PrimaryLocator::Sentinels(sentinels) => {
                let done = with_sentinels(sentinels);
                sentinels.panel.end_look_ups();
                done
            }
            PrimaryLocator::Cluster(cluster) => {
                let done = with_cluster(cluster);
                cluster.panel.end_look_ups();
                done
            }
        }
    }

    /// Asks which server is the primary of the keys in this hash slot (of all keys, where there are no slots).
    pub(super) fn locate(&mut self, slot: u16, deadline: Moment) -> Result<Primary, Failure> {
        self.do_with(|sentinels| sentinels.locate(deadline), |cluster| cluster.locate(slot, deadline))
    }

    /// Asks whether the primary is still the primary, without waiting for the answers.
    pub(super) fn ask(&mut self, deadline: Moment) {
        match self {
            PrimaryLocator::Sentinels(sentinels) => sentinels.ask(deadline),
            PrimaryLocator::Cluster(cluster) => cluster.ask(deadline),
        }
    }

    /// Reads those answers. Fails unless a majority says that this server was the primary for this slot when asked.
    pub(super) fn confirm(&mut self, slot: u16, primary: &Primary, deadline: Moment) -> Result<(), Failure> {
        let found =
            self.do_with(|sentinels| sentinels.read_primary(deadline), |cluster| cluster.read_primary(slot, deadline));
        match found {
            Ok(found) if found.is_still(primary) => Ok(()),
            Ok(found) => Err(Failure::Demoted(format!("it is {} now", found.server))),
            Err(failure) => Err(failure.of_confirmation()),
        }
    }

    /// Asks these servers about themselves. Fails if none answers.
    pub(super) fn report(&mut self, deadline: Moment) -> Result<WitnessReport, Failure> {
        self.do_with(
            |sentinels| Ok(WitnessReport::Sentinel(sentinels.report(deadline))),
            |cluster| cluster.report(deadline).map(WitnessReport::Cluster),
        )
    }

    /// Returns all primaries.
    pub(super) fn primaries(&mut self, deadline: Moment) -> Result<Vec<ListedPrimary>, Failure> {
        self.do_with(
            |sentinels| Ok(vec![ListedPrimary { primary: sentinels.locate(deadline)?, doubt: None }]),
            |cluster| cluster.primaries(deadline),
        )
    }
}

/// Returns how many of `count` are a majority.
pub(super) fn majority(count: usize) -> usize {
    count / 2 + 1
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use crate::net::scripted;
    use crate::store::{Address, Claim, IfHeld, RequestError, RetryClass};

    const LOCKED_OUT: &[u8] = b"-NOAUTH Authentication required.\r\n";

    /// Returns why the lock is not acquired at this URL of three servers. The first answers that it requires a
    /// password; the others give these `answers` before they close the connection.
    fn failed_at(url: &str, answers: [&[u8]; 2]) -> RequestError {
        let mut store = Address::parse(url).expect("is a URL").open(Duration::from_secs(1)).expect("is opened");
        // Each is asked more than once.
        let round = [LOCKED_OUT, answers[0], answers[1]].map(|answer| answer.repeat(3));
        scripted::with(std::iter::repeat_n(round, 6).flatten(), || {
            store.try_acquire(&Claim::example(), IfHeld::Leave).expect_err("no primary is known")
        })
    }

    // A witness whose failure is permanent does not matter where the others would be enough.
    #[test]
    fn what_may_pass_counts_for_all_witnesses() {
        const HOSTS: &str = "127.0.0.1:1,127.0.0.1:2,127.0.0.1:3";
        for url in [format!("redis+sentinel://{HOSTS}/service"), format!("redis+cluster://{HOSTS}")] {
            let failed = failed_at(&url, [b"", b""]);
            assert_eq!(failed.retry_class, RetryClass::Unavailable, "{url}: {:#}", failed.error);
            for words in ["closed the connection", "requires a password"] {
                assert!(failed.error.to_string().contains(words), "{url}: {:#}", failed.error);
            }
            // One of three is not enough.
            for answers in [[LOCKED_OUT, LOCKED_OUT], [b"", LOCKED_OUT], [LOCKED_OUT, b""]] {
                assert_eq!(failed_at(&url, answers).retry_class, RetryClass::Permanent, "{url}");
            }
        }
    }
}
