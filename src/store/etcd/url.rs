//! The URL of an etcd cluster.

use std::fmt;
use std::time::Duration;

use super::EtcdStore;
use crate::net::endpoint::{self, Endpoint};
use crate::store::url::{Url, refuse_if};
use crate::store::{Backend, Kind, Location};

pub(in crate::store) const KIND: Kind = Kind {
    schemes: &["etcd://", "etcds://"],
    parameters: &["prefix", "ca", "cert", "key"],
    has_leases: true,
    parse: |url| Ok(Box::new(parse(url)?)),
};

/// The default port of etcd's clients.
const PORT: u16 = 2379;

/// A cluster, and how we log in to it.
#[derive(Clone, PartialEq, Eq)]
pub(in crate::store) struct Cluster {
    /// How each member is reached; at least one.
    pub(super) members: Vec<Endpoint>,
    /// The user and the password, which is never shown.
    pub(super) login: Option<(String, String)>,
    /// The prefix of every key, followed by a slash.
    pub(super) prefix: String,
}

impl Cluster {
    /// Returns whether its members are reached over TLS.
    pub(super) fn is_encrypted(&self) -> bool {
        self.members.iter().all(|member| matches!(member, Endpoint::Tcp { tls: Some(_), .. }))
    }
}

impl Location for Cluster {
    fn open(&self, timeout: Duration) -> Result<Box<dyn Backend>, String> {
        Ok(Box::new(EtcdStore::new(self.clone(), timeout)?))
    }
}

/// Reads a URL that begins with one of the schemes.
pub(super) fn parse(text: &str) -> Result<Cluster, String> {
    let mut url = Url::read(text)?;
    refuse_if(!url.path.is_empty(), "has a path, which etcd does not have; name the keys' prefix with ?prefix=NAME")?;
    url.check_one_login()?;
    let login = match url.login()? {
        None => None,
        Some((user, password)) if user.is_empty() && password.as_ref().is_none_or(String::is_empty) => None,
        Some((_, None)) => return Err("has a user without a password; write USER:PASSWORD@".into()),
        Some((user, Some(password))) if user.is_empty() || password.is_empty() => {
            return Err("has an empty user or password".into());
        }
        Some((user, Some(password))) => Some((user, password)),
    };
    let tls = if url.scheme == "etcds" { Some(url.parameters.take_tls()?) } else { None };
    let prefix = url.parameters.take_or("prefix", "lockrun");
    refuse_if(
        prefix.is_empty() || prefix.ends_with('/') || prefix.chars().any(char::is_control),
        "has a prefix that is empty, ends with a / or has control characters in it",
    )?;
    refuse_if(
        lies_inside_another(&prefix),
        "has a prefix that lies among the keys of another one; choose one without a part that is named \
         state, lease or queue",
    )?;
    url.parameters.none_left(Some("etcds://"))?;
    Ok(Cluster { members: url.servers(PORT, tls.as_ref())?, login, prefix })
}

/// Returns whether a `prefix` lies among the keys of a shorter one: its keys could be taken for those of a lock there.
fn lies_inside_another(prefix: &str) -> bool {
    prefix.split('/').skip(1).any(|part| ["state", "lease", "queue"].contains(&part))
}

/// Formats where the cluster is, for messages: never with a password.
impl fmt::Display for Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "etcd at {}", endpoint::list(&self.members))
    }
}

impl fmt::Debug for Cluster {
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
        let cluster = |url: &str| parse(url).expect(url);
        let plain = cluster("etcd://web");
        assert_eq!(plain.members, [Endpoint::Tcp { host: "web".into(), port: 2379, tls: None }]);
        assert_eq!((plain.prefix.as_str(), plain.login), ("lockrun", None));
        for url in ["etcd://@web", "etcd://:@web"] {
            assert_eq!(cluster(url).login, None, "{url}");
        }
        let full = cluster("etcds://u%40x:p%3Aw@a:1,[::1]:2,b/?prefix=x/y&ca=/ca&cert=/c&key=/k");
        let tls = TlsFiles { ca: Some("/ca".into()), identity: Some(("/c".into(), "/k".into())) };
        let member = |host: &str, port| Endpoint::Tcp { host: host.into(), port, tls: Some(tls.clone()) };
        assert_eq!(full.members, [member("a", 1), member("::1", 2), member("b", 2379)]);
        assert_eq!(full.login, Some(("u@x".into(), "p:w".into())));
        assert_eq!((full.prefix.as_str(), full.to_string().as_str()), ("x/y", "etcd at a:1, [::1]:2, b:2379"));
    }

    #[test]
    fn bad_urls_are_refused() {
        for url in [
            "etcd:",
            "etcd:h",
            "etcd://",
            "etcd://h/x",
            "etcd://a,,b",
            "etcd://h:0",
            "etcd://h:x",
            "etcd://u@h",
            "etcd://:p@h",
            "etcd://a:1,u:p@h",
            "etcd://u@x:p@h",
            "etcd://h#x",
            "etcd://h?ca=/x",
            "etcds://h?cert=/x",
            "etcd://h?prefix=",
            "etcd://h?prefix=a/",
            "etcd://h?prefix=a/state",
            "etcd://h?prefix=a/lease/k",
            "etcd://h?prefix=a/b/queue/k/x",
            "etcd://h?nonsense=1",
            "etcd://a b",
        ] {
            assert!(parse(url).is_err(), "{url}");
        }
    }
}
