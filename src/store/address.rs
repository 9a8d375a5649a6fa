//! The URL of a store, parsed and checked. No I/O: whether there is a store at the address shows only when it is used.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::url::{decoded, port_number, refuse_if};
use super::{Backend, KINDS, Kind, Location};
use crate::text::nearest::alike;

/// The address of a store.
#[derive(Clone)]
pub struct Address {
    kind: &'static Kind,
    location: Arc<dyn Location>,
    /// See [`Address::shown`].
    shown: String,
}

impl Address {
    /// Parses a URL. The error says what is wrong with it and repeats nothing of it but a known scheme: any other part
    /// of a URL that could not be parsed may be a password.
    pub fn parse(text: &str) -> Result<Self, String> {
        if text.is_empty() {
            return Err("the store is empty (an unset variable?); write file: for files on this machine".to_owned());
        }
        let scheme = text.split_once(':').map(|(scheme, _)| scheme);
        let Some((scheme, kind)) = scheme.and_then(|scheme| Some((scheme, kind_of(scheme)?))) else {
            let meant = meant_by(text).unwrap_or_else(|| format!("stores are {}", all_schemes()));
            return Err(format!(
                "the value is not a store's URL, and is not shown, because it may contain a password; {meant}"
            ));
        };
        let wrong = |why: String| format!("the {scheme} URL {why}{}", advice_on_password(text));
        check_characters(text).and_then(|()| (kind.parse)(text)).map_err(wrong).map(|location| Address {
            kind,
            location: location.into(),
            shown: hide_password(text),
        })
    }

    /// Opens the store without connecting to it. `timeout` limits every single request. The error says what is wrong
    /// with the files that the address names.
    pub fn open(&self, timeout: Duration) -> Result<Box<dyn Backend>, String> {
        self.location.open(timeout)
    }

    /// Returns the SQL with which the owner of a database creates the store's tables and grants their use to the user
    /// in the URL; `None` if the store has no tables. Connects to nothing.
    pub fn schema(&self) -> Option<String> {
        self.location.schema()
    }

    /// Returns the URL without its password, for messages; for the default store, that of its directory. It may contain
    /// control characters.
    pub fn shown(&self) -> Cow<'_, str> {
        self.location.name().map_or(Cow::Borrowed(&self.shown), Cow::Owned)
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

/// Fails if a URL has a character that none can have. A second line, or words behind the URL, would become part of its
/// last component.
fn check_characters(url: &str) -> Result<(), String> {
    refuse_if(url.lines().nth(1).is_some(), "is followed by another line; the URL must be the only line")?;
    refuse_if(url.contains(char::is_control), "has a control character in it; write % and its two hexadecimal digits")?;
    refuse_if(
        url.contains(char::is_whitespace) && !url.starts_with("file:"),
        "has a blank in it; write %20, and nothing behind the URL",
    )?;
    Ok(())
}

/// Returns what a text that begins with none of our schemes most likely means, if that can be guessed. Repeats nothing
/// of the text.
fn meant_by(text: &str) -> Option<String> {
    if text.starts_with(['"', '\'']) {
        return Some("the quotation marks are part of it; leave them out".to_owned());
    }
    if text.starts_with('$') {
        return Some(
            "a variable is expanded by a shell alone, not by cron or systemd; write the URL itself".to_owned(),
        );
    }
    if text.lines().nth(1).is_some() {
        return Some("it has more than one line; the URL must be the only one".to_owned());
    }
    if text.starts_with('/') && !text.contains(['@', ':']) {
        let is_socket = text.split('?').next().is_some_and(|path| path.strip_suffix(".sock").is_some());
        return Some(
            if is_socket {
                "a Redis's socket is written redis+unix:///PATH"
            } else {
                "a directory is written file:/DIR"
            }
            .to_owned(),
        );
    }
    if let Some((_, ours)) =
        OTHER_PROGRAMS_FORMS.iter().find(|(theirs, _)| theirs.iter().any(|word| text.contains(word)))
    {
        return Some(format!("write {ours}"));
    }
    let (scheme, rest) = text.split_once(':').unwrap_or((text, ""));
    let known = || schemes().map(|known| (known.trim_end_matches(['/', ':']), known));
    if let Some((_, known)) = known().find(|(name, _)| *name == scheme.to_ascii_lowercase()) {
        return Some(format!("it is written in small letters: {known}"));
    }
    let others = OTHER_PROGRAMS_SCHEMES
        .iter()
        .find_map(|(theirs, ours)| Some((theirs.iter().find(|name| **name == scheme)?, ours)));
    if let Some((theirs, ours)) = others {
        return Some(format!("{theirs}: is not a scheme of lockrun's; write {ours}"));
    }
    let port = rest.split(['/', '?']).next().unwrap_or_default();
    let is_port = rest.is_empty() || port.bytes().all(|byte| byte.is_ascii_digit());
    let is_host = scheme == "localhost" || scheme.contains('.') || !port.is_empty();
    if is_port && is_host && !rest.starts_with("//") {
        return Some(match port {
            "6379" | "6380" => "a Redis is written redis://HOST or redis://HOST:PORT".to_owned(),
            "5432" => "a PostgreSQL is written postgres://HOST/DATABASE".to_owned(),
            "3306" => "a MySQL or MariaDB is written mysql://HOST/DATABASE".to_owned(),
            "2379" => "an etcd is written etcd://HOST,HOST,HOST".to_owned(),
            _ => "a server is written redis://HOST, postgres://HOST/DATABASE, mysql://HOST/DATABASE or etcd://HOST,HOST,HOST".to_owned(),
        });
    }
    let alike = alike(scheme, known().map(|(name, _)| name)).filter(|_| !rest.is_empty());
    alike.map(|alike| format!("did you mean {alike}:?"))
}

/// What other programs' ways of naming such a store contain, and ours.
const OTHER_PROGRAMS_FORMS: [(&[&str], &str); 5] = [
    (&["mysql -", "mariadb -", "tcp("], "mysql://USER:PASSWORD@HOST/DATABASE"),
    (&["redis-cli", "valkey-cli"], "redis://USER:PASSWORD@HOST:PORT, or rediss:// for TLS"),
    (&["etcdctl"], "etcd://USER:PASSWORD@HOST,HOST,HOST"),
    (&["psql", "host=", "hostaddr=", "dbname=", "user=", "Host=", "Server="], "postgres://USER:PASSWORD@HOST/DATABASE"),
    (&[",password=", ",ssl=", ",abortConnect="], "redis://:PASSWORD@HOST:PORT, or rediss:// for TLS"),
];

/// Other programs' schemes for such stores, and ours.
const OTHER_PROGRAMS_SCHEMES: [(&[&str], &str); 8] = [
    (&["http"], "etcd://HOST for an etcd"),
    (&["https"], "etcds://HOST for an etcd"),
    (&["valkey", "tcp", "redis+tcp"], "redis://HOST for a Redis or Valkey"),
    (&["valkeys", "redis+tls", "redis+ssl", "redis-tls", "tls"], "rediss://HOST for a Redis or Valkey with TLS"),
    (&["unix", "redis-socket", "redis+socket", "redis-unix"], "redis+unix:///PATH for a Redis's socket"),
    (&["sentinel", "redis-sentinel"], "redis+sentinel://HOST,HOST/SERVICE"),
    (&["pg", "pgsql", "postgre"], "postgres://HOST/DATABASE"),
    (&["mysql2", "mysqlx", "mysql+pymysql", "mysql+srv"], "mysql://HOST/DATABASE"),
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

/// Returns a URL that has been parsed without what could be a password: without everything before the last @, and the
/// values of parameters that are no known ones.
fn hide_password(text: &str) -> String {
    // A %40 may be meant as the @ that ends the user part.
    let ats = [text.rsplit_once('@'), text.rsplit_once("%40")];
    let Some((before, rest)) = ats.into_iter().flatten().max_by_key(|(before, _)| before.len()) else {
        return hide_values(text);
    };
    let scheme = before.split(':').next().unwrap_or_default();
    // After a ? the @ may be in the middle of a secret.
    if before.contains('?') { format!("{scheme}://***") } else { format!("{scheme}://***@{}", hide_values(rest)) }
}

/// Returns the text without the values of unknown parameters, and of those that may contain a password or other
/// parameters.
fn hide_values(rest: &str) -> String {
    let Some((place, query)) = rest.split_once('?') else { return rest.to_owned() };
    let parameters = query.split('&').map(|parameter| match parameter.split_once('=') {
        Some((name, value)) if !is_harmless(name, value) => format!("{name}=***"),
        _ => parameter.to_owned(),
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
                "it may contain a password; stores are file:, redis://, rediss://, redis+unix://, redis+sentinel://, rediss+sentinel://, \
                 redis+cluster://, rediss+cluster://, postgres://, postgresql://, mysql://, mariadb://, etcd:// and etcds://"
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
            ("file:/a:b", "file:/a:b"),
            ("file:/a@b", "file://***@b"),
            ("redis://u:secret@host:1/2?prefix=p", "redis://***@host:1/2?prefix=p"),
            ("redis+sentinel://h/s?sentinel_password=secret&db=1", "redis+sentinel://h/s?sentinel_password=***&db=1"),
            ("postgres://u:secret@a:1,[::1]:2,b/db?sslmode=x", "postgres://***@a:1,[::1]:2,b/db?sslmode=x"),
            ("postgres://a:1,[::1]:2/db:x?schema=s", "postgres://a:1,[::1]:2/db:x?schema=s"),
            ("postgres://h/db?schema=a@b", "postgres://***"),
        ] {
            assert_eq!(hide_password(text), shown);
        }
    }
}
