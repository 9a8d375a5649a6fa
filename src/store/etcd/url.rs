//! The URL of an etcd cluster.

use std::fmt;
use std::time::Duration;

use super::EtcdStore;
use crate::net::endpoint::Endpoint;
use crate::store::url::{Parameters, decoded, is_host, split_port};
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
    let scheme = text.split(':').next().unwrap_or_default();
    let rest = text.split_once("://").filter(|(before, _)| *before == scheme);
    let (_, rest) = rest.ok_or_else(|| format!("lacks the // after {scheme}:"))?;
    if rest.contains('#') {
        return Err("has a # in it; write %23".into());
    }
    let (place, query) = rest.split_once('?').map_or((rest, None), |(place, query)| (place, Some(query)));
    let place = place.strip_suffix('/').unwrap_or(place);
    if place.contains('/') {
        return Err("has a path, which etcd does not have; name the keys' prefix with ?prefix=NAME".into());
    }
    let (user, hosts) = place.rsplit_once('@').map_or((None, place), |(user, hosts)| (Some(user), hosts));
    if user.is_some_and(|user| user.contains('@')) || query.is_some_and(|query| query.contains('@')) {
        return Err("has an @ that belongs to a user, password or value; write %40".into());
    }
    // The text before the comma may be a host, and the text after it a password that was repeated for each host.
    if user.is_some_and(|user| user.contains(',')) {
        return Err(
            "has a comma before the @; write the user and the password once, before the first host, and %2C for a comma in them"
                .into(),
        );
    }
    let login = user.map(read_login).transpose()?;
    let mut parameters = Parameters::read(query)?;
    let tls = if scheme == "etcds" { Some(parameters.take_tls()?) } else { None };
    let prefix = parameters.take("prefix").unwrap_or_else(|| "lockrun".into());
    if prefix.is_empty() || prefix.ends_with('/') || prefix.chars().any(char::is_control) {
        return Err("has a prefix that is empty, ends with a / or has control characters in it".into());
    }
    if lies_inside_another(&prefix) {
        return Err(
            "has a prefix that lies among the keys of another one; choose one without a part that is named state, life or queue".into()
        );
    }
    parameters.none_left(Some("etcds://"))?;
    let mut members = Vec::new();
    for listed in hosts.split(',') {
        let (host, port) = split_port(listed)?;
        let host = decoded(host)?;
        if host.is_empty() {
            return Err("names no host, or has a comma too many".into());
        }
        if !is_host(&host) {
            return Err("has a host that is neither a name nor an address".into());
        }
        members.push(Endpoint::Tcp { host, port: port.unwrap_or(PORT), tls: tls.clone() });
    }
    Ok(Cluster { members, login, prefix })
}

/// Returns whether a `prefix` lies among the keys of a shorter one: its keys could be taken for those of a lock there.
fn lies_inside_another(prefix: &str) -> bool {
    prefix.split('/').skip(1).any(|part| ["state", "life", "queue"].contains(&part))
}

/// Reads the text before the `@`.
fn read_login(text: &str) -> Result<(String, String), String> {
    let (user, password) = text.split_once(':').ok_or("has a user without a password; write USER:PASSWORD@")?;
    let (user, password) = (decoded(user)?, decoded(password)?);
    if user.is_empty() || password.is_empty() {
        return Err("has an empty user or password".into());
    }
    Ok((user, password))
}

/// Formats where a member is, for messages.
pub(super) fn shown(member: &Endpoint) -> String {
    match member {
        Endpoint::Tcp { host, port, .. } if host.contains(':') => format!("[{host}]:{port}"),
        Endpoint::Tcp { host, port, .. } => format!("{host}:{port}"),
        Endpoint::Unix(path) => path.display().to_string(),
    }
}

/// Formats where the cluster is, for messages: never with a password.
impl fmt::Display for Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let members: Vec<String> = self.members.iter().map(shown).collect();
        write!(f, "etcd at {}", members.join(", "))
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
            "etcd://h?prefix=a/life/k",
            "etcd://h?prefix=a/b/queue/k/x",
            "etcd://h?nonsense=1",
            "etcd://a b",
        ] {
            assert!(parse(url).is_err(), "{url}");
        }
    }
}
