//! The URL of a Redis or Valkey.

use std::fmt;
use std::time::Duration;

use url::Url;

use super::RedisStore;
use crate::net::endpoint::Endpoint;
use crate::store::url::{Parameters, decoded, decoded_path};
use crate::store::{Backend, Kind, Location};
use crate::text::escape::escaped_path;

pub(in crate::store) const KIND: Kind = Kind {
    schemes: &["redis://", "rediss://", "redis+unix://"],
    parameters: &["prefix", "ca", "cert", "key", "db"],
    has_leases: true,
    parse: |url| Ok(Box::new(parse(url)?)),
};

/// One Redis or Valkey, and what we are to it.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Server {
    /// How it is reached.
    pub(super) endpoint: Endpoint,
    /// The ACL user; without one the password is the default user's.
    pub(super) user: Option<String>,
    /// The password. Never shown.
    pub(super) password: Option<String>,
    /// The number of the database.
    pub(super) database: u32,
    /// What every key begins with.
    pub(super) prefix: String,
}

impl Location for Server {
    fn open(&self, timeout: Duration) -> Result<Box<dyn Backend>, String> {
        Ok(Box::new(RedisStore::new(self.clone(), timeout)?))
    }
}

/// Reads a URL that begins with one of the schemes.
pub(super) fn parse(text: &str) -> Result<Server, String> {
    let scheme = text.split(':').next().unwrap_or_default();
    let unix = scheme == "redis+unix";
    // A socket has no host, but may have a user before its path.
    let patched = match text.split_once("://").filter(|_| unix).and_then(|(_, rest)| rest.split_once('/')) {
        Some((user, path)) if user.ends_with('@') => format!("{scheme}://{user}localhost/{path}"),
        _ => text.to_owned(),
    };
    let url = Url::parse(&patched).map_err(|error| format!("cannot be read: {error}"))?;
    if !text[scheme.len()..].starts_with("://") {
        return Err(format!("lacks the // after {scheme}:"));
    }
    if url.fragment().is_some() {
        return Err("has a # in it; write %23".into());
    }
    let mut parameters = Parameters::read(url.query())?;
    let endpoint = if unix {
        let path = decoded_path(url.path());
        if path.as_os_str().len() < 2 {
            return Err("names no socket; write redis+unix:///PATH".into());
        }
        Endpoint::Unix(path)
    } else {
        let host = url.host_str().filter(|host| !host.is_empty()).ok_or("names no host")?;
        let host = decoded(host.trim_start_matches('[').trim_end_matches(']'))?;
        let tls = if scheme == "rediss" { Some(parameters.take_tls()?) } else { None };
        Endpoint::Tcp { host, port: url.port().unwrap_or(6379), tls }
    };
    if url.port() == Some(0) {
        return Err("has the port 0".into());
    }
    let database = if unix { parameters.take("db") } else { Some(decoded(url.path().trim_start_matches('/'))?) };
    let database = match database.as_deref() {
        None | Some("") => 0,
        Some(number) => number.parse().map_err(|_| format!("has the database {number:?}, which is not a number"))?,
    };
    let prefix = parameters.take("prefix").unwrap_or_else(|| "lockrun".into());
    if prefix.is_empty() || prefix.chars().any(|c| matches!(c, '{' | '}') || c.is_control()) {
        return Err(format!("has the prefix {prefix:?}, which is empty or has braces or control characters in it"));
    }
    parameters.none_left(Some("rediss://"))?;
    let user = Some(decoded(url.username())?).filter(|user| !user.is_empty());
    let password = url.password().map(decoded).transpose()?.or_else(|| user.is_some().then(String::new));
    Ok(Server { endpoint, user, password, database, prefix })
}

/// Says where the server is, for messages: never with a password.
impl fmt::Display for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.endpoint {
            Endpoint::Tcp { host, port, .. } if host.contains(':') => write!(f, "Redis at [{host}]:{port}"),
            Endpoint::Tcp { host, port, .. } => write!(f, "Redis at {host}:{port}"),
            Endpoint::Unix(path) => write!(f, "Redis at {}", escaped_path(path)),
        }
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

    #[test]
    fn urls_are_read() {
        let server = |url: &str| parse(url).expect(url);
        let plain = server("redis://web");
        assert_eq!(plain.endpoint, Endpoint::Tcp { host: "web".into(), port: 6379, tls: None });
        assert_eq!((plain.database, plain.prefix.as_str(), plain.password), (0, "lockrun", None));
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
}
