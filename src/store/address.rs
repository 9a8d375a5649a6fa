//! The URL of a store, read and checked. No I/O: whether there is anything at the address shows when it is used.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::{Backend, KINDS, Kind, Location};

/// Where a store is.
#[derive(Clone)]
pub struct Address {
    kind: &'static Kind,
    location: Arc<dyn Location>,
}

impl Address {
    /// Reads a URL. On failure says what is wrong with it, without its password.
    pub fn parse(text: &str) -> Result<Self, String> {
        let Some((scheme, _)) = text.split_once(':') else {
            return Err(format!("the store {:?} is not a URL; stores are {}", hide_password(text), all_schemes()));
        };
        let wrong = |why: String| format!("the store {:?} {why}", hide_password(text));
        let Some(kind) = kind_of(scheme) else {
            return Err(wrong(format!("has a scheme that is not known; stores are {}", all_schemes())));
        };
        let location = (kind.parse)(text).map_err(wrong)?;
        Ok(Address { kind, location: location.into() })
    }

    /// Opens the store. Connects to nothing yet. `timeout` bounds every single request. On failure says what is wrong with the
    /// files that the address names.
    pub fn open(&self, timeout: Duration) -> Result<Box<dyn Backend>, String> {
        self.location.open(timeout)
    }

    /// Whether locks there are leases, which run out if they are not renewed.
    pub fn has_leases(&self) -> bool {
        self.kind.has_leases
    }
}

impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Address").field(&self.kind.schemes).finish()
    }
}

/// The kind of store whose URLs have this scheme.
fn kind_of(scheme: &str) -> Option<&'static Kind> {
    let has_it = |kind: &&Kind| kind.schemes.iter().any(|known| known.trim_end_matches(['/', ':']) == scheme);
    KINDS.iter().find(has_it)
}

/// What the URLs of stores begin with, as in `file:, redis:// and rediss://`.
fn all_schemes() -> String {
    let all: Vec<&str> = KINDS.iter().flat_map(|kind| kind.schemes).copied().collect();
    match all.split_last() {
        Some((last, others)) if !others.is_empty() => format!("{} and {last}", others.join(", ")),
        _ => all.concat(),
    }
}

/// The URL without what could be a password, whatever else may be wrong with it: all that stands before the last @, and the
/// values of parameters that we do not know.
fn hide_password(text: &str) -> String {
    let is_harmless = |name: &str| KINDS.iter().any(|kind| kind.parameters.contains(&name));
    let shown = match text.rsplit_once('@') {
        Some((before, after)) => match before.split_once(':') {
            Some((scheme, _)) if kind_of(scheme).is_some() => format!("{scheme}://***@{after}"),
            _ => format!("***@{after}"),
        },
        None => text.to_owned(),
    };
    let Some((place, query)) = shown.split_once('?') else { return shown };
    let parameters = query.split('&').map(|parameter| match parameter.split_once('=') {
        Some((name, _)) if !is_harmless(name) => format!("{name}=***"),
        _ => parameter.to_owned(),
    });
    format!("{place}?{}", parameters.collect::<Vec<_>>().join("&"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_schemes_are_named() {
        let refused = Address::parse("nonsense").expect_err("is no URL");
        assert!(
            refused.ends_with(
                "is not a URL; stores are file:, redis://, rediss://, redis+unix://, postgres:// and postgresql://"
            ),
            "{refused}"
        );
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
