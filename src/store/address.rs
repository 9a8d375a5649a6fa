//! The URL of a store, read and checked. No I/O: whether there is anything at the address shows when it is used.

use std::ffi::OsString;
use std::fmt;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

use percent_encoding::percent_decode_str;
use url::Url;

use crate::net::endpoint::{Endpoint, TlsFiles};
use crate::text::escape::escaped_path;

/// Where a store is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// Files of this machine: in this directory, or in the default one.
    File(Option<PathBuf>),
    /// One Redis or Valkey.
    Redis(Box<Server>),
}

/// One Redis or Valkey, and what we are to it.
#[derive(Clone, PartialEq, Eq)]
pub struct Server {
    /// How it is reached.
    pub endpoint: Endpoint,
    /// The ACL user; without one the password is the default user's.
    pub user: Option<String>,
    /// The password. Never shown.
    pub password: Option<String>,
    /// The number of the database.
    pub database: u32,
    /// What every key begins with.
    pub prefix: String,
}

const SCHEMES: &str = "file:, redis://, rediss:// and redis+unix://";
const SCHEME_NAMES: [&str; 4] = ["file", "redis", "rediss", "redis+unix"];

impl Address {
    /// Reads a URL. On failure says what is wrong with it, without its password.
    pub fn parse(text: &str) -> Result<Self, String> {
        let Some((scheme, rest)) = text.split_once(':') else {
            return Err(format!("the store {:?} is not a URL; stores are {SCHEMES}", hide_password(text)));
        };
        let wrong = |why: String| format!("the store {:?} {why}", hide_password(text));
        match scheme {
            "file" => file(rest).map_err(wrong),
            "redis" | "rediss" | "redis+unix" => redis(scheme, text).map_err(wrong),
            _ => Err(wrong(format!("has a scheme that is not known; stores are {SCHEMES}"))),
        }
    }

    /// Whether locks there are leases, which run out if they are not renewed.
    pub fn has_leases(&self) -> bool {
        !matches!(self, Address::File(_))
    }
}

/// Reads what follows `file:`.
fn file(rest: &str) -> Result<Address, String> {
    let path = rest.strip_prefix("//").unwrap_or(rest);
    if path.is_empty() && !rest.starts_with("//") {
        return Ok(Address::File(None));
    }
    if path.contains(['?', '#']) {
        return Err("has parameters; file: takes none (write %3F for a ? in the path)".into());
    }
    let path = PathBuf::from(OsString::from_vec(percent_decode_str(path).collect()));
    if !path.is_absolute() {
        return Err("is not an absolute path; write file:/DIR, or file: for the default directory".into());
    }
    Ok(Address::File(Some(path)))
}

/// Reads a URL of a Redis.
fn redis(scheme: &str, text: &str) -> Result<Address, String> {
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
    let mut parameters = Parameters::read(&url)?;
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
    parameters.none_left()?;
    let user = Some(decoded(url.username())?).filter(|user| !user.is_empty());
    let password = url.password().map(decoded).transpose()?.or_else(|| user.is_some().then(String::new));
    Ok(Address::Redis(Box::new(Server { endpoint, user, password, database, prefix })))
}

/// The parameters of a URL that nobody has asked for yet.
struct Parameters(Vec<(String, String)>);

impl Parameters {
    fn read(url: &Url) -> Result<Self, String> {
        let pairs: Vec<(String, String)> = url.query_pairs().into_owned().collect();
        for (at, (name, _)) in pairs.iter().enumerate() {
            if pairs[..at].iter().any(|(earlier, _)| earlier == name) {
                return Err(format!("has the parameter {name:?} twice"));
            }
        }
        Ok(Parameters(pairs))
    }

    fn take(&mut self, name: &str) -> Option<String> {
        let at = self.0.iter().position(|(known, _)| known == name)?;
        Some(self.0.swap_remove(at).1)
    }

    fn take_tls(&mut self) -> Result<TlsFiles, String> {
        let ca = self.take("ca").map(PathBuf::from);
        let identity = match (self.take("cert"), self.take("key")) {
            (Some(cert), Some(key)) => Some((cert.into(), key.into())),
            (None, None) => None,
            _ => return Err("has one of the parameters cert and key; they go together".into()),
        };
        Ok(TlsFiles { ca, identity })
    }

    fn none_left(&self) -> Result<(), String> {
        match self.0.first() {
            None => Ok(()),
            Some((name, _)) if matches!(name.as_str(), "ca" | "cert" | "key") => {
                Err(format!("has the parameter {name:?}, which needs TLS: rediss://"))
            }
            Some((name, _)) => Err(format!("has the parameter {name:?}, which is not known")),
        }
    }
}

fn decoded(part: &str) -> Result<String, String> {
    let text = percent_decode_str(part).decode_utf8().map_err(|_| "is not UTF-8 when its % are decoded")?;
    Ok(text.into_owned())
}

fn decoded_path(part: &str) -> PathBuf {
    PathBuf::from(OsString::from_vec(percent_decode_str(part).collect()))
}

/// The URL without what could be a password, whatever else may be wrong with it: all that stands before the last @, and the
/// values of parameters that we do not know.
fn hide_password(text: &str) -> String {
    const HARMLESS: [&str; 5] = ["prefix", "ca", "cert", "key", "db"];
    let shown = match text.rsplit_once('@') {
        Some((before, after)) => match before.split_once(':') {
            Some((scheme, _)) if SCHEME_NAMES.contains(&scheme) => format!("{scheme}://***@{after}"),
            _ => format!("***@{after}"),
        },
        None => text.to_owned(),
    };
    let Some((place, query)) = shown.split_once('?') else { return shown };
    let parameters = query.split('&').map(|parameter| match parameter.split_once('=') {
        Some((name, _)) if !HARMLESS.contains(&name) => format!("{name}=***"),
        _ => parameter.to_owned(),
    });
    format!("{place}?{}", parameters.collect::<Vec<_>>().join("&"))
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

    fn server(text: &str) -> Server {
        match Address::parse(text) {
            Ok(Address::Redis(server)) => *server,
            other => panic!("{text}: {other:?}"),
        }
    }

    #[test]
    fn urls_are_read() {
        assert_eq!(Address::parse("file:"), Ok(Address::File(None)));
        assert_eq!(Address::parse("file:/a%20b"), Ok(Address::File(Some("/a b".into()))));
        assert_eq!(Address::parse("file:///a"), Ok(Address::File(Some("/a".into()))));
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

    #[test]
    fn bad_urls_are_refused_without_their_password() {
        for text in [
            "",
            "nonsense",
            "http://x",
            "file:relative",
            "file://host/dir",
            "file:/a?b=c",
            "redis:",
            "redis:host",
            "redis://",
            "redis:///0",
            "redis://u:secret@:1",
            "redis://u:secret@host:99999",
            "redis://u:secret@host:0",
            "redis://u:secret@host/x",
            "redis://u:secret@host/-1",
            "redis://u:secret@host?prefix=",
            "redis://u:secret@host?prefix={a}",
            "redis://u:secret@host?nonsense=1",
            "redis://u:secret@host?ca=/x",
            "redis://u:secret@host?prefix=a&prefix=b",
            "rediss://u:secret@host?cert=/x",
            "redis+unix://u:secret@/",
            "redis+unix://",
            "redis://u:secret@host#x",
            "redis://u:sec/secret@host",
            "redis:u:secret@host",
            "redis:/u:secret@host",
            "u:secret@host:6379",
            ":secret@host",
            "http://u:secret@host",
            "redis://host?password=secret",
            "redis://host/x?a=secret&b=secret",
        ] {
            let refused = Address::parse(text).expect_err(text);
            assert!(!refused.contains("secret"), "{refused}");
        }
    }
}
