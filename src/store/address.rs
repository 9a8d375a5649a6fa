//! The URL of a store, parsed and checked. No I/O: whether there is a store at the address shows only when it is used.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::url::{decoded, port_number, shown_name};
use super::{Backend, KINDS, Kind, Location};

/// The address of a store.
#[derive(Clone)]
pub struct Address {
    kind: &'static Kind,
    location: Arc<dyn Location>,
    /// See [`Address::shown`].
    shown: String,
}

impl Address {
    /// Parses a URL. The error says what is wrong with it, without its password.
    pub fn parse(text: &str) -> Result<Self, String> {
        if text.is_empty() {
            return Err("the store is empty (an unset variable?); write file: for files on this machine".to_owned());
        }
        let meant = || meant_by(text).unwrap_or_else(|| format!("stores are {}", all_schemes()));
        let Some((scheme, _)) = text.split_once(':') else {
            let shown = hide_password(text);
            return Err(format!("the store {shown:?} is not a URL; {}", meant()));
        };
        let wrong = |why: String| format!("the store {:?} {why}{}", hide_password(text), advice_on_password(text));
        let Some(kind) = kind_of(scheme) else {
            return Err(wrong(format!("has a scheme that is not known; {}", meant())));
        };
        let location = (kind.parse)(text).map_err(wrong)?;
        Ok(Address { kind, location: location.into(), shown: hide_password(text) })
    }

    /// Opens the store without connecting to it. `timeout` limits every single request. The error says what is wrong with the
    /// files that the address names.
    pub fn open(&self, timeout: Duration) -> Result<Box<dyn Backend>, String> {
        self.location.open(timeout)
    }

    /// Returns the SQL with which the owner of a database creates the store's tables and grants their use to the user in the
    /// URL; `None` if the store has no tables. Connects to nothing.
    pub fn schema(&self) -> Option<String> {
        self.location.schema()
    }

    /// Returns the URL without its password, for messages. It may contain control characters.
    pub fn shown(&self) -> &str {
        &self.shown
    }

    /// Returns whether locks of this store are leases, which expire unless they are renewed.
    pub fn has_leases(&self) -> bool {
        self.kind.has_leases
    }
}

impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Address").field(&self.kind.schemes).finish()
    }
}

/// Returns what to do if a user or a password in the URL seems to contain a character that ends it.
fn advice_on_password(text: &str) -> &'static str {
    let authority = text.split_once("://").map(|(_, rest)| rest);
    match authority.and_then(|rest| rest.rsplit_once('@')) {
        Some((before, _)) if before.contains(['/', '?', '#']) => {
            "; in a user or a password, / is written %2F, ? is %3F, # is %23 and @ is %40"
        }
        _ => "",
    }
}

/// Returns what a text that begins with none of our schemes most likely means, if that can be guessed.
fn meant_by(text: &str) -> Option<String> {
    if text.starts_with(['"', '\'']) {
        return Some("the quotation marks are part of it; leave them out".to_owned());
    }
    if text.starts_with('$') {
        return Some(
            "a variable is expanded by a shell alone, not by cron or systemd; write the URL itself".to_owned(),
        );
    }
    if text.starts_with('/') {
        let shown = hide_password(text);
        let is_socket = shown.split('?').next().is_some_and(|path| path.strip_suffix(".sock").is_some());
        let file = format!("a directory is written file:{shown}");
        return Some(if is_socket { format!("a Redis's socket is written redis+unix://{shown}") } else { file });
    }
    let (scheme, rest) = text.split_once(':').unwrap_or((text, ""));
    if let Some(known) = schemes().find(|known| known.trim_end_matches(['/', ':']) == scheme.to_ascii_lowercase()) {
        return Some(format!("it is written in small letters: {known}"));
    }
    if let Some((_, ours)) = OTHER_PROGRAMS_SCHEMES.iter().find(|(theirs, _)| theirs.contains(&scheme)) {
        return Some(format!("write {ours}"));
    }
    let port = rest.split(['/', '?']).next().unwrap_or_default();
    let is_port = rest.is_empty() || port.bytes().all(|byte| byte.is_ascii_digit());
    let is_host = scheme == "localhost" || scheme.contains('.') || !port.is_empty();
    (is_port && is_host && !rest.starts_with("//")).then(|| match port {
        "6379" | "6380" => "a Redis is written redis://HOST or redis://HOST:PORT".to_owned(),
        "5432" => "a PostgreSQL is written postgres://HOST/DATABASE".to_owned(),
        "2379" => "an etcd is written etcd://HOST,HOST,HOST".to_owned(),
        _ => "a server is written redis://HOST, postgres://HOST/DATABASE or etcd://HOST,HOST,HOST".to_owned(),
    })
}

/// Other programs' schemes for such stores, and ours.
const OTHER_PROGRAMS_SCHEMES: [(&[&str], &str); 7] = [
    (&["http"], "etcd://HOST for an etcd"),
    (&["https"], "etcds://HOST for an etcd"),
    (&["valkey", "tcp", "redis+tcp"], "redis://HOST for a Redis or Valkey"),
    (&["valkeys", "redis+tls", "redis+ssl", "redis-tls", "tls"], "rediss://HOST for a Redis or Valkey with TLS"),
    (&["unix", "redis-socket", "redis+socket", "redis-unix"], "redis+unix:///PATH for a Redis's socket"),
    (&["sentinel", "redis-sentinel"], "redis+sentinel://HOST,HOST/SERVICE"),
    (&["pg", "pgsql", "postgre"], "postgres://HOST/DATABASE"),
];

/// Returns the kind of store whose URLs have this scheme.
fn kind_of(scheme: &str) -> Option<&'static Kind> {
    let has_it = |kind: &&Kind| kind.schemes.iter().any(|known| known.trim_end_matches(['/', ':']) == scheme);
    KINDS.iter().find(has_it)
}

/// Returns the beginnings of all stores' URLs.
pub fn schemes() -> impl Iterator<Item = &'static str> {
    KINDS.iter().flat_map(|kind| kind.schemes).copied()
}

/// Lists the beginnings of all stores' URLs, as in `file:, redis:// and rediss://`.
fn all_schemes() -> String {
    let all: Vec<&str> = schemes().collect();
    match all.split_last() {
        Some((last, others)) if !others.is_empty() => format!("{} and {last}", others.join(", ")),
        _ => all.concat(),
    }
}

/// Returns the URL without what could be a password, whatever else may be wrong with it: without everything before the last @,
/// everything from an invalid port on, and the values of unknown parameters.
fn hide_password(text: &str) -> String {
    // A %40 may be meant as the @ that ends the user part.
    let ats = [text.rsplit_once('@'), text.rsplit_once("%40")];
    let Some((before, rest)) = ats.into_iter().flatten().max_by_key(|(before, _)| before.len()) else {
        let (scheme, rest) = text.split_at(end_of_scheme(text));
        return scheme.to_owned() + &if scheme == "file:" { hide_values(rest) } else { hide_bad_port(rest) };
    };
    let scheme = before.split_once(':').map(|(scheme, _)| scheme).filter(|scheme| kind_of(scheme).is_some());
    let scheme = scheme.map_or_else(String::new, |scheme| format!("{scheme}://"));
    // After a ? the @ may be in the middle of a secret.
    if before.contains('?') { scheme + "***" } else { format!("{scheme}***@{}", hide_bad_port(rest)) }
}

/// Returns the end of what precedes the hosts in a URL: the scheme and the slashes after it, as far as they are there.
fn end_of_scheme(text: &str) -> usize {
    let Some((scheme, rest)) = text.split_once(':') else { return 0 };
    let is_path = !rest.starts_with("//") && scheme == "file";
    let is_word = scheme.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'-' | b'.'));
    let is_scheme = is_word && rest.starts_with("//") || kind_of(scheme).is_some();
    let slashes = if is_path { 0 } else { rest.len() - rest.trim_start_matches('/').len() };
    if is_scheme { scheme.len() + 1 + slashes } else { 0 }
}

/// Returns the part of a URL after the user, up to a port that is not a number: without an @, that may be a password. If all
/// ports are numbers, see [`hide_values`].
fn hide_bad_port(rest: &str) -> String {
    let authority = &rest[..rest.find(['/', '?']).unwrap_or(rest.len())];
    let mut at = 0;
    for host in authority.split(',') {
        let name = host.rfind(']').unwrap_or(0);
        let port = host[name..].find(':').map(|colon| name + colon + 1);
        if let Some(port) = port.filter(|port| port_number(&host[*port..]).is_err()) {
            return format!("{}***", &rest[..at + port]);
        }
        at += host.len() + 1;
    }
    hide_values(rest)
}

/// Returns the text without the values of unknown parameters, and of those that may contain a password or other parameters.
fn hide_values(rest: &str) -> String {
    let Some((place, query)) = rest.split_once('?') else { return rest.to_owned() };
    let parameters = query.split('&').map(|parameter| match parameter.split_once('=') {
        Some((name, value)) if !is_harmless(name, value) => format!("{}=***", shown_name(name)),
        Some(_) => parameter.to_owned(),
        None => shown_name(parameter).to_owned(),
    });
    format!("{place}?{}", parameters.collect::<Vec<_>>().join("&"))
}

/// Returns whether the value of a parameter may be shown.
fn is_harmless(name: &str, value: &str) -> bool {
    let is_known = KINDS.iter().any(|kind| kind.parameters.contains(&name));
    let is_of_its_kind = match name {
        "user" | "sentinel_user" => decoded(value).is_ok_and(|value| !value.contains(':')),
        "port" | "db" => value.split(',').all(|part| part == "0" || port_number(part).is_ok()),
        _ => true,
    };
    is_known && is_of_its_kind && !value.contains(['=', '?'])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_schemes_are_named() {
        let refused = Address::parse("nonsense").expect_err("is no URL");
        assert!(
            refused.ends_with(
                "is not a URL; stores are file:, redis://, rediss://, redis+unix://, redis+sentinel://, rediss+sentinel://, \
                 redis+cluster://, rediss+cluster://, postgres://, postgresql://, etcd:// and etcds://"
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
            "redis://host?password=se@cret",
            "redis://u:secret",
            "redis://host?prefix={}?password=secret",
            "redis+sentinel://",
            "redis+sentinel://u:secret@a,b",
            "redis+sentinel://u:secret@a,b/",
            "redis+sentinel://u:secret@a,,b/s",
            "redis+sentinel://u:secret@a:x,b/s",
            "redis+sentinel://u:secret@a,b/s/x",
            "redis+sentinel://a,b/s?ca=/x",
            "redis+sentinel://a,b/s?sentinel_password=secret&nonsense=1",
            "redis+sentinel://u:se/secret@a,b/s",
            "redis+cluster://u:secret@",
            "redis+cluster://u:secret@a,b/1",
            "redis+cluster://u:secret@a b",
            "redis+cluster://a?sentinel_password=secret",
            "redis+cluster://a:1,:secret@b",
            "redis+sentinel://a:1,u:secret@b/s",
            "redis://u:secret@a,b",
            "postgres:",
            "postgres://",
            "postgres:u:secret@h/db",
            "postgres:/u:secret@h/db",
            "postgres://u:secret@h",
            "postgres://u:secret@h:0/db",
            "postgres://u:secret@h:x/db",
            "postgres://u:secret@a:1,b:99999/db",
            "postgres://u:secret@a,,b/db",
            "postgres://u:secret@[::1/db",
            "postgres://u:secret@[::1]x/db",
            "postgres://u:secret@a b/db",
            "postgres://u:se/secret@a,b/db",
            "postgres://u:se?secret@a,b/db",
            "postgres://u:se@secret@a,b/db",
            "postgres://u:se#secret@a,b/db",
            "postgres://u:secret@h/db#x",
            "postgres://u:%ffsecret@h/db",
            "postgres://u:secret%00@h/db",
            "postgres://u:secret",
            "postgres://u:secret/db",
            "postgres://u:secret%40a,b/db",
            "postgres://a:1,u:secret/db",
            "postgres://[::1]:secret/db",
            "postgres://h/db?password=secret",
            "postgres://h/db?user=u&password=secret",
            "postgres://h/db?user=u&password=se@secret",
            "postgres://h/db?password=sec%72et&password=secret",
            "postgres://h/db?sslpassword=secret",
            "postgres://h/db?user=u;password=secret",
            "postgres://h/db?sslmode=require?password=secret",
            "postgres://u:secret@h/db?nonsense=secret",
            "postgres://u:secret@h/db?sslmode=nonsense",
            "postgres://u:secret@h/db?schema=a&schema=b",
            "postgres://u:secret@h/db?target_session_attrs=standby",
            "postgres://u:secret@h/db?host=x",
            "postgresql://u:secret@h/db?ca=/x&sslrootcert=/y",
            "postgresql:u:secret@h",
        ] {
            let refused = Address::parse(text).expect_err(text);
            assert!(!refused.contains("secret"), "{refused}");
        }
    }

    // A URL, or its part after the scheme, in the place of something else.
    #[test]
    fn a_password_in_another_place_is_not_said_again() {
        for text in [
            "file:/x?redis://u:secret@h",
            "file:/x?redis://u:secret@h&redis://u:secret@h",
            "file:/x?redis://u:secret%40h",
            "file:/x?group=g&u:secret@h",
            "file:/x?password:secret",
            "file:x?group=a?password:secret",
            "x?y://h&password:secret",
            "redis+unix:///s?redis://u:secret@h",
            "redis+unix:///s?db=redis://u:secret@h",
            "redis+unix:///s?db=secret",
            "redis+unix:///s?prefix={redis://u:secret@h",
            "redis://h?prefix={redis://u:secret%40h",
            "redis://h?redis://u:secret%40h",
            "redis://h?password:secret",
            "redis://h/redis:u:secret%40h",
            "redis:u:secret",
            "redis:/u:secret",
            "u:secret",
            "rediss:u:secret/0",
            "redis+sentinel:u:secret",
            "redis+sentinel://a/s?sentinel_user=u:secret&nonsense=1",
            "etcd:u:secret",
            "etcd://h?prefix=redis://u:secret%40h/",
            "etcd://h?u:secret",
            "postgres:u:secret",
            "postgres:u:secret/db",
            "postgres://h?user=u:secret",
            "postgres://h/db?port=secret",
            "postgres://h/db?port=1,secret",
            "postgres://h/db?sslmode=postgres://u:secret%40h",
            "postgres://h/db?schema=pg_u:secret%40h",
            "postgres://h/db?channel_binding=u:secret%40h",
            "postgres://h/db?target_session_attrs=u:secret%40h",
        ] {
            let refused = Address::parse(text).expect_err(text);
            assert!(!refused.contains("secret"), "{text}: {refused}");
        }
        // An invalid port may be a password of digits.
        for text in ["redis://u:123456", "postgres://u:123456/db", "etcd://u:123456", "redis://h,u:0123456"] {
            let refused = Address::parse(text).expect_err(text);
            assert!(!refused.contains("123456"), "{text}: {refused}");
        }
        // Errors of opening the store.
        for text in ["file:/x?group=redis://u:secret@h", "rediss://h?ca=redis://u:secret%40h"] {
            let address = Address::parse(text).expect(text);
            let refused = address.open(Duration::ZERO).err().expect(text);
            assert!(!refused.contains("secret"), "{text}: {refused}");
        }
    }

    #[test]
    fn what_is_no_secret_is_shown() {
        for (text, shown) in [
            ("nonsense", "nonsense"),
            ("file:/a:b?c=d", "file:/a:b?c=***"),
            ("redis://u:secret@host:1/x?prefix=p&y=z", "redis://***@host:1/x?prefix=p&y=***"),
            ("http://u:secret@host", "***@host"),
            ("postgres://u:secret@a:1,[::1]:2,b/db?sslmode=x", "postgres://***@a:1,[::1]:2,b/db?sslmode=x"),
            ("postgres://a:1,[::1]:2/db:x?schema=s", "postgres://a:1,[::1]:2/db:x?schema=s"),
            ("postgres://a,u:secret/db?schema=s", "postgres://a,u:***"),
            ("postgres://h/db?schema=a@b", "postgres://***"),
        ] {
            assert_eq!(hide_password(text), shown);
        }
    }
}
