//! The stores on which each contract is tested.

use std::path::PathBuf;

use tempfile::TempDir;

use super::etcd::Etcd;
use super::failover::{Service, SingleNode};
use super::lease_server::LeaseServer;
use super::mariadb::Mariadb;
use super::postgres::{Pooled, Postgres};
use super::proxy::Proxy;
use super::redis::Redis;

/// A store of the test's own, empty when the test begins.
pub(crate) enum Store {
    File(TempDir),
    Redis(Redis),
    /// A primary that Sentinels monitor.
    Sentinel(Service),
    /// A cluster, of one node.
    Cluster(SingleNode),
    Postgres(Postgres),
    /// A PostgreSQL behind a connection pooler in transaction mode.
    Pooled(Pooled),
    Mariadb(Mariadb),
    Etcd(Etcd),
}

impl Store {
    pub(crate) fn file() -> Self {
        Self::File(TempDir::new().expect("a temporary directory"))
    }

    /// Starts a Redis that keeps its data even when its server is killed.
    pub(crate) fn redis() -> Self {
        Self::Redis(Redis::durable())
    }

    pub(crate) fn sentinel() -> Self {
        Self::Sentinel(Service::alone())
    }

    pub(crate) fn cluster() -> Self {
        Self::Cluster(SingleNode::start())
    }

    pub(crate) fn postgres() -> Self {
        Self::Postgres(Postgres::start())
    }

    pub(crate) fn pooled() -> Self {
        Self::Pooled(Pooled::start())
    }

    pub(crate) fn mariadb() -> Self {
        Self::Mariadb(Mariadb::start())
    }

    pub(crate) fn etcd() -> Self {
        Self::Etcd(Etcd::start())
    }

    /// Starts another, empty store of the same kind.
    pub(crate) fn another(&self) -> Self {
        match self {
            Self::File(_) => Self::file(),
            Self::Redis(_) => Self::redis(),
            Self::Sentinel(_) => Self::sentinel(),
            Self::Cluster(_) => Self::cluster(),
            Self::Postgres(_) => Self::postgres(),
            Self::Pooled(_) => Self::pooled(),
            Self::Mariadb(_) => Self::mariadb(),
            Self::Etcd(_) => Self::etcd(),
        }
    }

    pub(crate) fn url(&self) -> String {
        match self {
            Self::File(_) => format!("file:{}", self.locks().display()),
            _ => self.server().url_at(self.server().port()),
        }
    }

    /// Returns the URL as messages show it: without a user.
    pub(crate) fn name_of_url(&self) -> String {
        self.url().replace("//postgres@", "//***@").replace("//root@", "//***@")
    }

    /// Returns the URL of a lease store with a user and this password.
    pub(crate) fn url_with_password(&self, password: &str) -> String {
        let url = self.url();
        let (scheme, place) = url.split_once("://").expect("the URL of a server");
        let host = place.rsplit_once('@').map_or(place, |(_, host)| host);
        format!("{scheme}://u:{password}@{host}")
    }

    /// Returns its name, for anything that a test names after it.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::File(_) => "file",
            Self::Redis(_) => "redis",
            Self::Sentinel(_) => "sentinel",
            Self::Cluster(_) => "cluster",
            Self::Postgres(_) => "postgres",
            Self::Pooled(_) => "pooled",
            Self::Mariadb(_) => "mariadb",
            Self::Etcd(_) => "etcd",
        }
    }

    /// Returns whether locks are leases, which outlive a dead holder until they expire.
    pub(crate) fn has_leases(&self) -> bool {
        self.lease_server().is_some()
    }

    /// Returns the server of a lease store.
    pub(crate) fn server(&self) -> &dyn LeaseServer {
        self.lease_server().expect("a lease store has a server")
    }

    /// Returns the server, or `None` if this is no lease store.
    pub(crate) fn lease_server(&self) -> Option<&dyn LeaseServer> {
        match self {
            Self::File(_) => None,
            Self::Redis(redis) => Some(redis),
            Self::Sentinel(service) => Some(service),
            Self::Cluster(node) => Some(node),
            Self::Postgres(postgres) => Some(postgres),
            Self::Pooled(pooled) => Some(pooled),
            Self::Mariadb(mariadb) => Some(mariadb),
            Self::Etcd(etcd) => Some(etcd),
        }
    }

    /// Starts a proxy in front of the server of a lease store.
    pub(crate) fn proxy(&self) -> Proxy {
        Proxy::before(self.server())
    }

    /// Returns the directory of the file store: the only one that it may create.
    pub(crate) fn locks(&self) -> PathBuf {
        let Self::File(directory) = self else {
            panic!("only the file store has a directory");
        };
        directory.path().join("locks")
    }

    pub(crate) fn as_redis(&self) -> Option<&Redis> {
        match self {
            Self::Redis(redis) => Some(redis),
            Self::Sentinel(service) => Some(service.first()),
            Self::Cluster(node) => Some(node.server()),
            _ => None,
        }
    }

    /// Returns whether a waiter is not woken, but looks every now and then whether it is its turn.
    pub(crate) fn is_polled(&self) -> bool {
        matches!(self, Self::Pooled(_) | Self::Mariadb(_))
    }

    /// Returns how many waiters to use where so `many` are right on other stores: a fifth of them if they are not woken,
    /// and half of them on etcd, which takes the most time for each.
    pub(crate) fn crowd(&self, many: usize) -> usize {
        match self {
            Self::Etcd(_) => many / 2,
            _ if self.is_polled() => many / 5,
            _ => many,
        }
    }

    pub(crate) fn as_pooled(&self) -> Option<&Pooled> {
        match self {
            Self::Pooled(pooled) => Some(pooled),
            _ => None,
        }
    }

    pub(crate) fn as_mariadb(&self) -> Option<&Mariadb> {
        match self {
            Self::Mariadb(mariadb) => Some(mariadb),
            _ => None,
        }
    }

    pub(crate) fn as_etcd(&self) -> Option<&Etcd> {
        match self {
            Self::Etcd(etcd) => Some(etcd),
            _ => None,
        }
    }

    /// Returns the PostgreSQL server, even behind a pooler.
    pub(crate) fn as_postgres(&self) -> Option<&Postgres> {
        match self {
            Self::Postgres(postgres) => Some(postgres),
            Self::Pooled(pooled) => Some(pooled.postgres()),
            _ => None,
        }
    }
}

/// Makes a test of a contract for each lease store. A new store needs one test here.
macro_rules! tests_of_lease_stores {
    ($contract:ident) => {
        #[test]
        fn redis() {
            $crate::support::calm::judge(|| $contract(&$crate::support::Store::redis()));
        }

        #[test]
        fn sentinel() {
            $crate::support::calm::judge(|| $contract(&$crate::support::Store::sentinel()));
        }

        #[test]
        fn cluster() {
            $crate::support::calm::judge(|| $contract(&$crate::support::Store::cluster()));
        }

        #[test]
        fn postgres() {
            $crate::support::calm::judge(|| $contract(&$crate::support::Store::postgres()));
        }

        #[test]
        fn pooled() {
            $crate::support::calm::judge(|| $contract(&$crate::support::Store::pooled()));
        }

        #[test]
        fn mariadb() {
            $crate::support::calm::judge(|| $contract(&$crate::support::Store::mariadb()));
        }

        #[test]
        fn etcd() {
            $crate::support::calm::judge(|| $contract(&$crate::support::Store::etcd()));
        }
    };
}
pub(crate) use tests_of_lease_stores;

/// Defines a contract and makes a test of it for each lease store.
macro_rules! on_every_lease_store {
    ($name:ident, |$store:ident| $contract:expr) => {
        mod $name {
            #[allow(unused_imports)]
            use super::*;

            fn contract($store: &$crate::support::Store) {
                $contract
            }

            $crate::support::store::tests_of_lease_stores!(contract);
        }
    };
}
pub(crate) use on_every_lease_store;

/// Defines a contract and makes a test of it for each store.
macro_rules! on_every_store {
    ($name:ident, |$store:ident| $contract:expr) => {
        mod $name {
            #[allow(unused_imports)]
            use super::*;

            fn contract($store: &$crate::support::Store) {
                $contract
            }

            #[test]
            fn file() {
                $crate::support::calm::judge(|| contract(&$crate::support::Store::file()));
            }

            $crate::support::store::tests_of_lease_stores!(contract);
        }
    };
}
pub(crate) use on_every_store;

/// Defines a contract about the processes of a run, in which no server has a part, and makes a test of it with the file
/// store, where lockrun itself is COMMAND's parent, and one with Redis, where its guardian is.
macro_rules! on_files_and_redis {
    ($name:ident, |$store:ident| $contract:expr) => {
        mod $name {
            #[allow(unused_imports)]
            use super::*;

            fn contract($store: &$crate::support::Store) {
                $contract
            }

            #[test]
            fn file() {
                $crate::support::calm::judge(|| contract(&$crate::support::Store::file()));
            }

            #[test]
            fn redis() {
                $crate::support::calm::judge(|| contract(&$crate::support::Store::redis()));
            }
        }
    };
}
pub(crate) use on_files_and_redis;

/// Makes a test for Redis alone.
macro_rules! on_redis {
    ($name:ident, |$store:ident, $redis:ident| $contract:expr) => {
        #[test]
        fn $name() {
            #[allow(unused_variables)]
            fn contract($store: &$crate::support::Store, $redis: &$crate::support::Redis) {
                $contract
            }
            $crate::support::calm::judge(|| {
                let store = $crate::support::Store::redis();
                contract(&store, store.as_redis().expect("a Redis"));
            });
        }
    };
}
pub(crate) use on_redis;

/// Makes a test for PostgreSQL alone.
macro_rules! on_postgres {
    ($name:ident, |$store:ident, $postgres:ident| $contract:expr) => {
        #[test]
        fn $name() {
            #[allow(unused_variables)]
            fn contract($store: &$crate::support::Store, $postgres: &$crate::support::Postgres) {
                $contract
            }
            $crate::support::calm::judge(|| {
                let store = $crate::support::Store::postgres();
                contract(&store, store.as_postgres().expect("a PostgreSQL server"));
            });
        }
    };
}
pub(crate) use on_postgres;

/// Makes a test for PostgreSQL behind a connection pooler alone.
macro_rules! on_pooled {
    ($name:ident, |$store:ident, $pooled:ident| $contract:expr) => {
        #[test]
        fn $name() {
            fn contract($store: &$crate::support::Store, $pooled: &$crate::support::Pooled) {
                $contract
            }
            $crate::support::calm::judge(|| {
                let store = $crate::support::Store::pooled();
                contract(&store, store.as_pooled().expect("one with a pooler"));
            });
        }
    };
}
pub(crate) use on_pooled;
