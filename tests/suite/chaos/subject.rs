//! What the workers use, and what can happen to it.

use super::disk::Disk;
use super::hosts::Host;
use super::kinds::{Fault, TO_DISKS, TO_NODES, TO_PRIMARIES, TO_SERVERS};
use super::workers::LOCKS;
use crate::support::failover::{Cluster, Replicated, Service, is_replicated};
use crate::support::proxy::Proxy;
use crate::support::{LONG, LeaseServer, Lockrun, Redis, Store, eventually};

/// A store under chaos.
pub(super) enum Subject<'a> {
    /// One whose server is never replaced.
    Plain(&'a Store),
    /// The same on a disk of its own, which is small.
    OnDisk(&'a Store, &'a Disk),
    Sentinel(&'a Service),
    Cluster(&'a Cluster),
}

impl Subject<'_> {
    /// A store where the servers take each other's place must know the locks: the first lock of a key is not covered in
    /// a cluster, nor is a lease that is longer than all before.
    pub(super) fn prepare(&self) {
        let Some(replicated) = self.replicated() else { return };
        if let Subject::Sentinel(service) = self {
            service.hurry();
        }
        for lock in LOCKS {
            Lockrun::at(&self.url()).key(lock).args(["--ttl", &self.ttl()]).command(["true"]).run().exited(0);
        }
        let replicas = replicated.servers().len() / replicated.primaries().len() - 1;
        replicated.primaries().iter().for_each(|at| is_replicated(&replicated.servers()[*at], replicas));
    }

    pub(super) fn name(&self) -> String {
        match self {
            Subject::Plain(store) => store.name().to_owned(),
            Subject::OnDisk(store, _) => format!("{} on a small disk", store.name()),
            Subject::Sentinel(_) => "sentinel with failovers".into(),
            Subject::Cluster(_) => "cluster with failovers".into(),
        }
    }

    /// How long a lease is, in seconds: short, but where it takes some seconds to replace a primary, so long that its
    /// holder still lives then.
    pub(super) fn ttl_secs(&self) -> u32 {
        if matches!(self, Subject::Cluster(_)) { 6 } else { 3 }
    }

    /// The same for an option.
    pub(super) fn ttl(&self) -> String {
        format!("{}s", self.ttl_secs())
    }

    fn store(&self) -> Option<&Store> {
        match self {
            Subject::Plain(store) | Subject::OnDisk(store, _) => Some(store),
            Subject::Sentinel(_) | Subject::Cluster(_) => None,
        }
    }

    pub(super) fn replicated(&self) -> Option<&dyn Replicated> {
        match self {
            Subject::Plain(_) | Subject::OnDisk(..) => None,
            Subject::Sentinel(service) => Some(*service),
            Subject::Cluster(cluster) => Some(*cluster),
        }
    }

    pub(super) fn disk(&self) -> Option<&Disk> {
        match self {
            Subject::OnDisk(_, disk) => Some(disk),
            _ => None,
        }
    }

    pub(super) fn url(&self) -> String {
        match self {
            Subject::Plain(store) | Subject::OnDisk(store, _) => store.url(),
            Subject::Sentinel(service) => service.url(),
            Subject::Cluster(cluster) => cluster.url(),
        }
    }

    /// Whether a lock outlives its holder until its lease has run out.
    pub(super) fn has_leases(&self) -> bool {
        self.store().is_none_or(Store::has_leases)
    }

    /// A host from which it is used. Of Sentinels and the primary it is cut off only from Sentinels, which say where
    /// the primary is. The nodes of a cluster say where each other are, so that nothing can be put between.
    pub(super) fn host(&self) -> Host {
        match self {
            Subject::Plain(store) | Subject::OnDisk(store, _) if store.has_leases() => {
                let proxy = store.proxy();
                let url = proxy.url();
                Host::new(vec![proxy], url)
            }
            Subject::Sentinel(service) => {
                let proxies: Vec<Proxy> = service.sentinels().iter().map(|it| Proxy::before(it)).collect();
                let ports: Vec<u16> = proxies.iter().map(Proxy::port).collect();
                Host::new(proxies, Service::url_naming(&ports))
            }
            _ => Host::new(Vec::new(), self.url()),
        }
    }

    /// What can happen to its servers.
    pub(super) fn faults(&self) -> &'static [Fault] {
        match self {
            Subject::Plain(_) => &TO_SERVERS,
            Subject::OnDisk(..) => &TO_DISKS,
            Subject::Sentinel(_) => &TO_PRIMARIES,
            Subject::Cluster(_) => &TO_NODES,
        }
    }

    /// A server by its number.
    pub(super) fn server(&self, number: usize) -> Option<&dyn LeaseServer> {
        match self.replicated() {
            Some(replicated) => Some(&replicated.servers()[number]),
            None => self.store()?.lease_server(),
        }
    }

    /// The same, if it is a Redis.
    pub(super) fn redis(&self, number: usize) -> Option<&Redis> {
        match self.replicated() {
            Some(replicated) => Some(&replicated.servers()[number]),
            None => self.store()?.as_redis(),
        }
    }

    /// The numbers of the servers that decide on locks now. None may be paused.
    pub(super) fn primaries(&self) -> Vec<usize> {
        self.replicated().map_or_else(|| vec![0], Replicated::primaries)
    }

    /// Whether it has got over what was done to its servers. None may be paused.
    pub(super) fn is_whole(&self) -> bool {
        self.replicated().is_none_or(Replicated::is_whole) && self.redis(0).is_none_or(has_written)
    }

    /// Has a Redis that could not write for a while replace its append-only file. Returns false if that is to be tried
    /// again.
    ///
    /// Redis 7.0 may have left a hole in the file, which it could not load: a file that a rewrite began is not open for
    /// appending, so that after a short write, which Redis truncates, the next write begins where the short one had
    /// ended.
    pub(super) fn rewrite(&self) -> bool {
        let Some(redis) = self.redis(0) else { return true };
        let at_rest = ["aof_rewrite_in_progress:0", "aof_rewrite_scheduled:0"];
        if !has_written(redis) || !reports(redis, &at_rest) || redis.try_ask(&["BGREWRITEAOF"]).is_err() {
            return false;
        }
        eventually(LONG, "the file is replaced", || reports(redis, &at_rest));
        reports(redis, &["aof_last_bgrewrite_status:ok"])
    }

    /// What is left of this lock.
    pub(super) fn left(&self, lock: &str) -> Vec<String> {
        let of_store = || Some(self.store()?.lease_server()?.left(lock, false));
        let mut left = self.replicated().map_or_else(|| of_store().unwrap_or_default(), |it| it.left(lock));
        left.retain(|what| what.contains(lock));
        left
    }
}

/// Whether it has written down all that it has confirmed.
fn has_written(redis: &Redis) -> bool {
    reports(redis, &["aof_last_write_status:ok"])
}

/// Whether it reports all these lines about its files.
fn reports(redis: &Redis, lines: &[&str]) -> bool {
    let report = redis.ask(&["INFO", "persistence"]);
    let report: Vec<&str> = report.text().lines().collect();
    lines.iter().all(|line| report.contains(line))
}
