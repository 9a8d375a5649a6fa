//! A primary, its replicas and its Sentinels.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::fmt::Write;

use super::replication::{Replicated, follows, has_role, is_up_to_date};
use crate::support::deadline::{LONG, eventually};
use crate::support::lease_server::LeaseServer;
use crate::support::redis::Redis;
use crate::support::resp::Reply;
use crate::support::tls::Certificates;

/// The name of the service.
pub(crate) const SERVICE: &str = "locks";

/// How many Sentinels there are.
const SENTINELS: usize = 3;

/// How many of them must say that a primary is down.
const QUORUM: &str = "2";

/// A service: a primary, replicas and Sentinels.
pub(crate) struct Service {
    sentinels: Vec<Redis>,
    /// The first primary, then its replicas.
    servers: Vec<Redis>,
    /// The ports of the proxies in front of the primary that the Sentinels monitor, each as a service of its own.
    proxies: RefCell<BTreeSet<u16>>,
}

impl Service {
    /// Starts a service without replicas that keeps its data.
    pub(crate) fn alone() -> Self {
        Self::of(vec![Redis::durable()], SENTINELS, plain)
    }

    /// Starts a service without replicas that speaks only TLS.
    pub(crate) fn with_certificates(certificates: &Certificates) -> Self {
        let primary = Redis::with_certificates(certificates, &[]);
        Self::of(vec![primary], SENTINELS, |lines| Redis::sentinel_with_certificates(lines, certificates))
    }

    /// Starts a service without replicas, with so many Sentinels that know each other.
    pub(crate) fn watched_by(sentinels: usize) -> Self {
        let service = Self::of(vec![Redis::durable()], sentinels, plain);
        eventually(LONG, "the Sentinels know each other", || {
            service
                .sentinels
                .iter()
                .all(|sentinel| known(sentinel, SERVICE, "num-other-sentinels") == (sentinels - 1).to_string())
        });
        service
    }

    /// Starts a service without replicas whose Sentinels require a password.
    pub(crate) fn with_secret_sentinels(password: &str) -> Self {
        Self::of(vec![Redis::start()], SENTINELS, |lines| {
            Redis::sentinel(&format!("{lines}requirepass {password}\n"), Some(password))
        })
    }

    /// Starts a service with two up-to-date replicas. A server that is killed keeps its data and its role. The
    /// Sentinels know the servers, and each other.
    pub(crate) fn replicated() -> Self {
        let server = || {
            Redis::with_options(&["--appendonly", "yes", "--appendfsync", "always", "--repl-diskless-sync-delay", "0"])
        };
        let servers = vec![server(), server(), server()];
        let port = servers[0].port().to_string();
        for replica in &servers[1..] {
            replica.ask(&["REPLICAOF", "127.0.0.1", &port]);
            replica.ask(&["CONFIG", "REWRITE"]);
        }
        let service = Self::of(servers, SENTINELS, plain);
        let replicas = service.servers.len() - 1;
        eventually(LONG, "the replicas have the data", || service.servers[1..].iter().all(is_up_to_date));
        eventually(LONG, "the Sentinels know everything", || {
            service.sentinels.iter().all(|sentinel| {
                known(sentinel, SERVICE, "num-slaves") == replicas.to_string()
                    && known(sentinel, SERVICE, "num-other-sentinels") == (SENTINELS - 1).to_string()
            })
        });
        service
    }

    /// Starts a service of these servers with so many Sentinels, each started by `sentinel` with its configuration.
    fn of(servers: Vec<Redis>, sentinels: usize, sentinel: impl Fn(&str) -> Redis) -> Self {
        let mut lines = Self::monitoring(&servers[0]);
        // Long enough for a busy machine: a second failover would withhold all grants anew.
        writeln!(lines, "sentinel down-after-milliseconds {SERVICE} 3000").expect("there is memory");
        writeln!(lines, "sentinel failover-timeout {SERVICE} 4000").expect("there is memory");
        let sentinels = (0..sentinels).map(|_| sentinel(&lines)).collect();
        Self { sentinels, servers, proxies: RefCell::default() }
    }

    /// Returns the line of a configuration with which a Sentinel monitors this primary.
    pub(crate) fn monitoring(primary: &Redis) -> String {
        format!("sentinel monitor {SERVICE} 127.0.0.1 {} {QUORUM}\n", primary.port())
    }

    pub(crate) fn sentinels(&self) -> &[Redis] {
        &self.sentinels
    }

    /// Returns the first primary, then its replicas.
    pub(crate) fn servers(&self) -> &[Redis] {
        &self.servers
    }

    /// Returns the first primary.
    pub(crate) fn first(&self) -> &Redis {
        &self.servers[0]
    }

    pub(crate) fn url(&self) -> String {
        self.url_of(SERVICE)
    }

    /// Returns the URL that names the Sentinels at these ports.
    pub(crate) fn url_naming(ports: &[u16]) -> String {
        let hosts: Vec<String> = ports.iter().map(|port| format!("127.0.0.1:{port}")).collect();
        format!("redis+sentinel://{}/{SERVICE}", hosts.join(","))
    }

    /// Returns the URL with another name of the service.
    pub(crate) fn url_of(&self, service: &str) -> String {
        let hosts: Vec<String> =
            self.sentinels.iter().map(|sentinel| format!("127.0.0.1:{}", sentinel.port())).collect();
        format!("redis+sentinel://{}/{service}", hosts.join(","))
    }

    /// Makes the Sentinels watch another server, as an administrator does who sets them up anew.
    #[track_caller]
    pub(crate) fn watch_instead(&self, other: &Redis) {
        self.watch_instead_as(SERVICE, other);
    }

    /// Makes the Sentinels watch another server instead of the proxy at this port.
    #[track_caller]
    pub(crate) fn watch_instead_of(&self, proxy: u16, other: &Redis) {
        self.watch_instead_as(&Self::name_behind(proxy), other);
    }

    #[track_caller]
    fn watch_instead_as(&self, service: &str, other: &Redis) {
        for sentinel in &self.sentinels {
            sentinel.ask(&["SENTINEL", "REMOVE", service]);
            sentinel.ask(&["SENTINEL", "MONITOR", service, "127.0.0.1", &other.port().to_string(), QUORUM]);
        }
    }

    /// Returns the name of the service whose primary is a proxy at this port.
    fn name_behind(proxy: u16) -> String {
        format!("{SERVICE}-{proxy}")
    }

    /// Makes the Sentinels replace a primary that is silent for a second.
    pub(crate) fn hurry(&self) {
        for sentinel in &self.sentinels {
            sentinel.ask(&["SENTINEL", "SET", SERVICE, "down-after-milliseconds", "1000", "failover-timeout", "2000"]);
        }
    }

    /// Waits until all Sentinels name the same primary. Returns it.
    pub(crate) fn primary(&self) -> &Redis {
        let mut port = 0;
        eventually(LONG, "the Sentinels name one primary", || {
            let named: BTreeSet<u16> = self.sentinels.iter().map(primary_of).collect();
            port = *named.first().expect("there are Sentinels");
            named.len() == 1
        });
        self.servers.iter().find(|server| server.port() == port).expect("one of ours")
    }

    /// Waits until all Sentinels name the same primary, other than the first one. Returns it.
    pub(crate) fn next_primary(&self) -> &Redis {
        let mut port = 0;
        eventually(LONG, "the Sentinels name another primary", || {
            let named: BTreeSet<u16> = self.sentinels.iter().map(primary_of).collect();
            port = *named.first().expect("there are Sentinels");
            named.len() == 1 && port != self.first().port()
        });
        self.servers.iter().find(|server| server.port() == port).expect("one of ours")
    }
}

fn plain(configuration: &str) -> Redis {
    Redis::sentinel(configuration, None)
}

/// Returns a field of what a Sentinel knows about the primary of a service.
fn known(sentinel: &Redis, service: &str, what: &str) -> String {
    let words = sentinel.ask(&["SENTINEL", "MASTER", service]).words();
    let at = words.iter().position(|word| word == what).expect("it knows that");
    words[at + 1].clone()
}

/// Returns the port at which a Sentinel says that the primary is.
fn primary_of(sentinel: &Redis) -> u16 {
    sentinel.ask(&["SENTINEL", "GET-MASTER-ADDR-BY-NAME", SERVICE]).words()[1].parse().expect("a port")
}

impl Replicated for Service {
    fn servers(&self) -> &[Redis] {
        &self.servers
    }

    fn primaries(&self) -> Vec<usize> {
        let named: BTreeSet<u16> = self.sentinels.iter().map(primary_of).collect();
        let is_it = |server: &Redis| named.len() == 1 && named.contains(&server.port()) && has_role(server, "master");
        (0..self.servers.len()).filter(|at| is_it(&self.servers[*at])).collect()
    }

    /// Whether there is one that could be replaced at once.
    fn is_whole(&self) -> bool {
        let primaries = self.primaries();
        let [primary] = primaries[..] else { return false };
        self.servers.iter().any(|server| follows(server, &self.servers[primary]))
    }

    fn fail_over(&self, _primary: usize, random: &mut fastrand::Rng) -> bool {
        let sentinel = &self.sentinels[random.usize(0..self.sentinels.len())];
        sentinel.try_ask(&["SENTINEL", "FAILOVER", SERVICE]).is_ok_and(|reply| !matches!(reply, Reply::Error(_)))
    }

    fn left(&self, key: &str) -> Vec<String> {
        let primary = self.primaries().first().map(|at| &self.servers[*at]);
        let mut left =
            primary.map_or_else(|| vec![format!("no primary for {key}")], |primary| primary.left(key, false));
        left.retain(|key| !is_of_all_locks(key));
        left
    }
}

/// Whether this is what is kept of failovers.
fn is_of_all_locks(key: &str) -> bool {
    key == "lockrun:failover"
}

impl LeaseServer for Service {
    fn port(&self) -> u16 {
        self.first().port()
    }

    fn url_at(&self, port: u16) -> String {
        if port == self.port() {
            return self.url();
        }
        let service = Self::name_behind(port);
        if self.proxies.borrow_mut().insert(port) {
            for sentinel in &self.sentinels {
                sentinel.ask(&["SENTINEL", "MONITOR", &service, "127.0.0.1", &port.to_string(), QUORUM]);
            }
            // So that all later connections are clients'.
            let knows = |sentinel| !known(sentinel, &service, "runid").is_empty();
            eventually(LONG, "the Sentinels have connected", || self.sentinels.iter().all(knows));
        }
        self.url_of(&service)
    }

    fn pause(&self) {
        self.first().pause();
    }

    fn resume(&self) {
        self.first().resume();
    }

    fn kill(&self) {
        self.first().kill();
    }

    fn start_again(&self) {
        self.first().start_again();
    }

    fn hang_up(&self) {
        self.first().hang_up();
        self.sentinels.iter().for_each(LeaseServer::hang_up);
    }

    fn forget_everything(&self) {
        self.first().forget_everything();
    }

    fn forget_holders(&self, key: &str) {
        self.first().forget_holders(key);
    }

    fn word(&self) -> &'static str {
        self.first().word()
    }

    fn requests(&self) -> u64 {
        self.first().requests()
    }

    fn round_trips(&self, requests: u64) -> u64 {
        self.first().round_trips(requests)
    }

    fn is_monitored(&self) -> bool {
        true
    }

    fn waiting(&self, key: &str) -> Vec<String> {
        self.first().waiting(key)
    }

    fn asleep(&self) -> usize {
        self.first().asleep()
    }

    fn left(&self, key: &str, counts_what_goes: bool) -> Vec<String> {
        let mut left = self.first().left(key, counts_what_goes);
        left.retain(|key| !is_of_all_locks(key));
        left
    }
}
