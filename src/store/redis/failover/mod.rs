//! Which server is the primary, where a replica can take its place.
//!
//! It is the one that a majority says, and a majority is asked again with every request, after the request was sent or before: a
//! lease counts from before both. So when a majority has come to know another primary, each holder on the old one has counted its
//! lease from an earlier moment, and is dead after the longest lease. `failover.lua` lets the new primary grant nothing until then.

mod cluster;
mod panel;
mod sentinel;

pub(super) use cluster::{ClusterReport, slot_of};
pub(super) use sentinel::SentinelReport;

use super::connection::Failure;
use super::url::{self, Server};
use crate::net::endpoint::Endpoint;
use crate::net::tls::{Tls, Verification};
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
    /// Its term, by a name: the same server has another one when it becomes the primary again.
    pub(super) term: String,
    /// For how many milliseconds it has been the primary, at least, as the scripts take it: see `failover.lua`.
    pub(super) standing: i64,
    /// What it is the primary of, where one server may be that of several services; otherwise nothing.
    pub(super) scope: String,
}

impl Primary {
    /// Returns whether this is the same server, and has not been replaced in between.
    pub(super) fn is_still(&self, other: &Primary) -> bool {
        self.server == other.server && self.term == other.term
    }
}

/// A primary that is to be listed.
pub(super) struct Listed {
    pub(super) primary: Primary,
    /// Why no majority says that it is one, if that is so.
    pub(super) doubt: Option<Failure>,
}

/// What those that know the primary say of themselves.
pub(super) enum WitnessReport {
    Sentinel(SentinelReport),
    Cluster(ClusterReport),
}

/// Those that know the primary.
pub(super) enum Witnesses {
    Sentinels(Sentinels),
    Cluster(Cluster),
}

impl Witnesses {
    /// Takes those of `failover`. `server` is what a primary is like.
    pub(super) fn new(failover: url::Failover, server: &Server) -> Self {
        match failover {
            url::Failover::Sentinel { service, sentinels } => {
                Witnesses::Sentinels(Sentinels::new(service, &sentinels, server.clone()))
            }
            url::Failover::Cluster(nodes) => Witnesses::Cluster(Cluster::new(nodes)),
        }
    }

    /// Does something with them that leaves no child process behind.
    fn do_with<T>(
        &mut self,
        with_sentinels: impl FnOnce(&mut Sentinels) -> T,
        with_cluster: impl FnOnce(&mut Cluster) -> T,
    ) -> T {
        match self {
            Witnesses::Sentinels(sentinels) => {
                let done = with_sentinels(sentinels);
                sentinels.panel.end_look_ups();
                done
            }
            Witnesses::Cluster(cluster) => {
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

    /// Sends the question whether the primary still is the primary.
    pub(super) fn ask(&mut self, deadline: Moment) {
        match self {
            Witnesses::Sentinels(sentinels) => sentinels.ask(deadline),
            Witnesses::Cluster(cluster) => cluster.ask(deadline),
        }
    }

    /// Reads the answers to that. Fails if a majority does not say that this server was the primary for this slot when it was asked.
    pub(super) fn confirm(&mut self, slot: u16, primary: &Primary, deadline: Moment) -> Result<(), Failure> {
        let found = self.do_with(|sentinels| sentinels.hear(deadline), |cluster| cluster.hear(slot, deadline));
        match found {
            Ok(found) if found.is_still(primary) => Ok(()),
            Ok(found) => Err(Failure::Unconfirmed(format!("it is {} now", found.server))),
            Err(failure) => Err(failure.of_confirmation()),
        }
    }

    /// Asks them of themselves. Fails if they do not know a primary.
    pub(super) fn report(&mut self, deadline: Moment) -> Result<WitnessReport, Failure> {
        self.do_with(
            |sentinels| sentinels.report(deadline).map(WitnessReport::Sentinel),
            |cluster| cluster.report(deadline).map(WitnessReport::Cluster),
        )
    }

    /// Returns all primaries.
    pub(super) fn primaries(&mut self, deadline: Moment) -> Result<Vec<Listed>, Failure> {
        self.do_with(
            |sentinels| Ok(vec![Listed { primary: sentinels.locate(deadline)?, doubt: None }]),
            |cluster| cluster.primaries(deadline),
        )
    }
}

/// Prepares TLS for the server, if it uses it. On failure says what is wrong with its files.
pub(super) fn tls_for(server: &Server) -> Result<Option<Tls>, String> {
    match &server.endpoint {
        Endpoint::Tcp { host, tls: Some(files), .. } => Tls::new(host, files, Verification::Full).map(Some),
        _ => Ok(None),
    }
}

/// What a majority of `count` is.
fn majority(count: usize) -> usize {
    count / 2 + 1
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use crate::net::scripted;
    use crate::store::{Address, Claim, IfHeld, RequestError, Trouble};

    const LOCKED_OUT: &[u8] = b"-NOAUTH Authentication required.\r\n";

    /// Returns why the lock is not acquired at this URL of three servers. The first answers that it requires a password, and the others
    /// give these `answers` before they close the connection.
    fn failed_at(url: &str, answers: [&[u8]; 2]) -> RequestError {
        let mut store = Address::parse(url).expect("is a URL").open(Duration::from_secs(1)).expect("is opened");
        // They are asked more than once.
        let round = [LOCKED_OUT, answers[0], answers[1]].map(|answer| answer.repeat(3));
        scripted::with(std::iter::repeat_n(round, 6).flatten(), || {
            store.try_acquire(&Claim::example(), IfHeld::Leave).expect_err("no primary is known")
        })
    }

    // One witness that is wrong for good does not matter where the others would be enough.
    #[test]
    fn what_may_pass_counts_for_all_witnesses() {
        const HOSTS: &str = "127.0.0.1:1,127.0.0.1:2,127.0.0.1:3";
        for url in [format!("redis+sentinel://{HOSTS}/service"), format!("redis+cluster://{HOSTS}")] {
            let failed = failed_at(&url, [b"", b""]);
            assert_eq!(failed.trouble, Trouble::Away, "{url}: {:#}", failed.error);
            for words in ["closed the connection", "requires a password"] {
                assert!(failed.error.to_string().contains(words), "{url}: {:#}", failed.error);
            }
            // Of three, one is not enough.
            for answers in [[LOCKED_OUT, LOCKED_OUT], [b"", LOCKED_OUT], [LOCKED_OUT, b""]] {
                assert_eq!(failed_at(&url, answers).trouble, Trouble::Lasting, "{url}");
            }
        }
    }
}
