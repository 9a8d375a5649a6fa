//! The URLs of Redis and Valkey: one server, the primary that Sentinels know, or a cluster.

use std::fmt;
use std::time::Duration;

use super::RedisStore;
use crate::lock::state::millis;
use crate::net::endpoint::Endpoint;
use crate::store::url::{
    AFTER_NAMES, AFTER_PATHS, Parameters, Url, check_separators, decoded, decoded_path, refuse_if,
};
use crate::store::{Backend, Kind, Location};
use crate::text::duration;

pub(in crate::store) const KIND: Kind = Kind {
    schemes: &[
        "redis://",
        "rediss://",
        "redis+unix://",
        "redis+sentinel://",
        "rediss+sentinel://",
        "redis+cluster://",
        "rediss+cluster://",
    ],
    parameters: &["prefix", "ca", "cert", "key", "db", "grace", "sentinel_user"],
    has_leases: true,
    parse: |url| Ok(Box::new(parse(url)?)),
};

/// The default ports.
const PORT: u16 = 6379;
const SENTINEL_PORT: u16 = 26379;

/// One Redis, Valkey or Sentinel, and how we log in to it.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Server {
    pub(super) role: Role,
    /// How it is reached.
    pub(super) endpoint: Endpoint,
    /// The ACL user; if there is none, the password is the default user's.
    pub(super) user: Option<String>,
    /// The password. Never shown.
    pub(super) password: Option<String>,
    /// The number of the database.
    pub(super) database: u32,
    /// The prefix of every key.
    pub(super) prefix: String,
    /// For how many milliseconds after its start nothing is granted there.
    pub(super) grace_ms: u64,
}

/// What a server is to the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// The only server.
    Alone,
    /// A primary that Sentinels know.
    Monitored,
    Sentinel,
    /// A node of a cluster.
    Node,
}

impl Role {
    /// Returns how the URLs of stores with such a server begin, without TLS and over TLS.
    pub(super) fn schemes(self) -> (&'static str, &'static str) {
        match self {
            Role::Alone => ("redis://", "rediss://"),
            Role::Monitored | Role::Sentinel => ("redis+sentinel://", "rediss+sentinel://"),
            Role::Node => ("redis+cluster://", "rediss+cluster://"),
        }
    }
}

impl Server {
    /// Returns the number of the database, and the grace if there is one, as the scripts take them.
    pub(super) fn database_and_grace(&self) -> String {
        if self.grace_ms > 0 { format!("{} {}", self.database, self.grace_ms) } else { self.database.to_string() }
    }

    /// Returns the same server at another host and port.
    pub(super) fn at(&self, host: &str, port: u16) -> Self {
        let tls = self.endpoint.tls_files().cloned();
        Server { endpoint: Endpoint::Tcp { host: host.to_owned(), port, tls }, ..self.clone() }
    }
}

/// Where a store is.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Site {
    /// The server, or the first one to ask if another can take its place.
    pub(super) server: Server,
    /// How the primary is found, if another server can take its place.
    pub(super) failover: Option<Failover>,
}

/// How to find a primary that one of its replicas can replace.
#[derive(Clone, PartialEq, Eq)]
pub(super) enum Failover {
    /// Sentinels know the primary of this service.
    Sentinel {
        /// The name of the service.
        service: String,
        /// The Sentinels.
        sentinels: Vec<Server>,
    },
    /// The primaries of a cluster know each other. These are some of its nodes.
    Cluster(Vec<Server>),
}

impl Failover {
    /// Returns the servers that the URL names.
    pub(super) fn servers(&self) -> &[Server] {
        match self {
            Failover::Sentinel { sentinels: servers, .. } | Failover::Cluster(servers) => servers,
        }
    }
}

impl Location for Site {
    fn open(&self, timeout: Duration) -> Result<Box<dyn Backend>, String> {
        Ok(Box::new(RedisStore::new(self.clone(), timeout)?))
    }
}

/// Reads a URL that begins with one of the schemes.
pub(super) fn parse(text: &str) -> Result<Site, String> {
    let mut url = Url::read(text)?;
    let (base, kind) = url.scheme.split_once('+').unwrap_or((url.scheme, ""));
    let (role, port) = match kind {
        "sentinel" => (Role::Monitored, SENTINEL_PORT),
        "cluster" => (Role::Node, PORT),
        _ => (Role::Alone, PORT),
    };
    let (user, password) = url.login()?.unwrap_or_default();
    let user = Some(user).filter(|user| !user.is_empty());
    // A user without a password has an empty one. Without a user, an empty password is none.
    let password = password.filter(|password| !password.is_empty()).or_else(|| user.is_some().then(String::new));
    let prefix = url.parameters.take_or("prefix", "lockrun");
    refuse_if(
        prefix.is_empty() || prefix.chars().any(|c| matches!(c, '{' | '}') || c.is_control()),
        "has a prefix that is empty or has braces or control characters in it",
    )?;
    let grace_ms = read_grace(url.parameters.take("grace").as_deref(), role)?;
    let server = |endpoint, database| Server {
        role,
        endpoint,
        user: user.clone(),
        password: password.clone(),
        database,
        prefix: prefix.clone(),
        grace_ms,
    };
    if kind == "unix" {
        let socket = read_socket(&url)?;
        let database = read_database(&url.parameters.take_or("db", ""))?;
        url.parameters.none_left(Some("rediss://"))?;
        return Ok(Site { server: server(socket, database), failover: None });
    }
    if role != Role::Alone {
        url.check_one_login()?;
    }
    let tls = if base == "rediss" { Some(url.parameters.take_tls()?) } else { None };
    let (service, database) = match role {
        Role::Monitored => url.path.split_once('/').unwrap_or((url.path, "")),
        _ => ("", url.path),
    };
    let database = read_database(&decoded(database)?)?;
    let endpoints = url.servers(port, tls.as_ref())?;
    let mut servers: Vec<Server> = endpoints.into_iter().map(|endpoint| server(endpoint, database)).collect();
    let failover = match role {
        Role::Monitored => Some(read_sentinels(service, &servers, &mut url.parameters)?),
        Role::Node if database != 0 => return Err("names a database, which a cluster does not have".into()),
        Role::Node => Some(Failover::Cluster(servers.clone())),
        _ if servers.len() > 1 => {
            return Err("names several hosts; for those of one service write redis+sentinel://HOST,HOST/SERVICE or \
                        redis+cluster://HOST,HOST"
                .into());
        }
        _ => None,
    };
    url.parameters.none_left(Some(role.schemes().1))?;
    Ok(Site { server: servers.swap_remove(0), failover })
}

/// Reads the path of a socket.
fn read_socket(url: &Url<'_>) -> Result<Endpoint, String> {
    check_separators(url.path, "path", AFTER_PATHS)?;
    refuse_if(url.path.is_empty() || !url.hosts.is_empty(), "names no socket; write redis+unix:///PATH")?;
    Ok(Endpoint::Unix(decoded_path(&format!("/{}", url.path))))
}

/// Reads the name of a service and how to log in to its Sentinels, which are at the addresses of these servers.
fn read_sentinels(service: &str, servers: &[Server], parameters: &mut Parameters) -> Result<Failover, String> {
    check_separators(service, "service", AFTER_NAMES)?;
    let service = decoded(service)?;
    refuse_if(
        service.is_empty(),
        "names no service; write redis+sentinel://HOST,HOST/SERVICE, with the name that sentinel.conf \
         monitors",
    )?;
    let user = parameters.take("sentinel_user").filter(|user| !user.is_empty());
    let password = parameters.take("sentinel_password").or_else(|| user.is_some().then(String::new));
    let sentinel = |server: &Server| Server {
        role: Role::Sentinel,
        database: 0,
        user: user.clone(),
        password: password.clone(),
        ..server.clone()
    };
    Ok(Failover::Sentinel { service, sentinels: servers.iter().map(sentinel).collect() })
}

/// Reads the number of a database, 0 by default. Does not repeat an invalid one, which may be a password.
fn read_database(number: &str) -> Result<u32, String> {
    match number {
        "" => Ok(0),
        _ => number.parse().map_err(|_| "has a database that is not a number".into()),
    }
}

/// Reads for how long nothing is granted after a start of the server. Does not repeat an invalid text, which may be a
/// password.
fn read_grace(text: Option<&str>, role: Role) -> Result<u64, String> {
    let Some(text) = text else { return Ok(0) };
    refuse_if(
        role != Role::Alone,
        "has a grace, which only one Redis has; after a failover nothing is granted for a while anyway",
    )?;
    duration::parse(text).map(millis).map_err(|_| "has a grace that is not a duration, such as 30s".into())
}

/// Formats where the server is, for messages: never with a password.
impl fmt::Display for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let product = if self.role == Role::Sentinel { "Sentinel" } else { "Redis" };
        write!(f, "{product} at {}", self.endpoint)
    }
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::endpoint::TlsFiles;

    fn server(url: &str) -> Server {
        let site = parse(url).expect(url);
        assert!(site.failover.is_none(), "{url}");
        site.server
    }

    fn tcp(host: &str, port: u16) -> Endpoint {
        Endpoint::Tcp { host: host.into(), port, tls: None }
    }

    #[test]
    fn urls_are_read() {
        let plain = server("redis://web");
        assert_eq!(plain.endpoint, tcp("web", 6379));
        assert_eq!((plain.database, plain.prefix.as_str(), plain.password.as_deref()), (0, "lockrun", None));
        assert_eq!((plain.grace_ms, plain.database_and_grace().as_str()), (0, "0"));
        let forgetful = server("redis://web/3?grace=1m");
        assert_eq!((forgetful.grace_ms, forgetful.database_and_grace().as_str()), (60_000, "3 60000"));
        assert!(parse("redis://web?grace=secret").is_err_and(|why| !why.contains("secret")));
        for url in ["redis+sentinel://a/s?grace=1s", "redis+cluster://a?grace=1s"] {
            assert!(parse(url).is_err_and(|why| why.contains("grace")), "{url}");
        }
        // A password that a shell left out is none: a server without one would reject it.
        for (url, password) in [("redis://:@web", None), ("redis://@web", None), ("redis://u:@web", Some(""))] {
            assert_eq!(server(url).password.as_deref(), password, "{url}");
        }
        let full = server("rediss://u%40x:p%3Aw@[::1]:7000/3?prefix=a:b&ca=/ca.pem&cert=/c&key=/k");
        let tls = TlsFiles { ca: Some("/ca.pem".into()), identity: Some(("/c".into(), "/k".into())) };
        assert_eq!(full.endpoint, Endpoint::Tcp { host: "::1".into(), port: 7000, tls: Some(tls) });
        assert_eq!((full.user.as_deref(), full.password.as_deref()), (Some("u@x"), Some("p:w")));
        assert_eq!((full.database, full.prefix.as_str()), (3, "a:b"));
        let socket = server("redis+unix://:secret@/run/r.sock?db=2");
        assert_eq!(socket.endpoint, Endpoint::Unix("/run/r.sock".into()));
        assert_eq!((socket.user, socket.password.as_deref(), socket.database), (None, Some("secret"), 2));
        assert_eq!(server("redis+unix:///run/a@/r.sock").endpoint, Endpoint::Unix("/run/a@/r.sock".into()));
        assert_eq!(server("redis+unix:///run/r.sock").endpoint, Endpoint::Unix("/run/r.sock".into()));
    }

    #[test]
    fn sentinels_are_read() {
        let url = "redis+sentinel://app:pw@a,b:1,[::1]:2/my%20service/3?sentinel_user=s&sentinel_password=t";
        let site = parse(url).expect("is a URL");
        let Some(Failover::Sentinel { service, sentinels }) = site.failover else { panic!("names Sentinels") };
        let endpoints: Vec<Endpoint> = sentinels.iter().map(|sentinel| sentinel.endpoint.clone()).collect();
        assert_eq!((service.as_str(), endpoints), ("my service", vec![tcp("a", 26379), tcp("b", 1), tcp("::1", 2)]));
        for sentinel in &sentinels {
            assert_eq!((sentinel.user.as_deref(), sentinel.password.as_deref()), (Some("s"), Some("t")));
            assert_eq!((sentinel.database, sentinel.role), (0, Role::Sentinel));
        }
        assert_eq!((site.server.user.as_deref(), site.server.database), (Some("app"), 3));
        let site = parse("redis+sentinel://:pw@a/service").expect("is a URL");
        let Some(Failover::Sentinel { sentinels, .. }) = site.failover else { panic!("names Sentinels") };
        assert_eq!((sentinels[0].user.as_deref(), sentinels[0].password.as_deref()), (None, None));
    }

    #[test]
    fn clusters_are_read() {
        let site = parse("rediss+cluster://:pw@a,b:1?ca=/ca.pem").expect("is a URL");
        let Some(Failover::Cluster(nodes)) = site.failover else { panic!("is a cluster") };
        assert_eq!((nodes.len(), nodes[1].password.as_deref()), (2, Some("pw")));
        assert!(matches!(&nodes[1].endpoint, Endpoint::Tcp { port: 1, tls: Some(_), .. }));
        assert_eq!(site.server.at("c", 7), Server { endpoint: nodes[0].at("c", 7).endpoint, ..site.server.clone() });
    }
}
