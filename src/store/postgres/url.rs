//! The URL of a PostgreSQL database, as libpq reads it where that makes sense for locks.
//!
//! The URL alone decides where locks live: it must name the database, and of libpq's variables only those count that
//! say who we are, `PGUSER` here and those for the password. Unknown parameters are errors, even those that libpq
//! knows: to ignore them silently would be worse.

mod encryption;
mod hosts;

use std::env;
use std::fmt;
use std::time::Duration;

use nix::unistd::geteuid;

use super::PostgresStore;
use super::schema::Tables;
use crate::net::endpoint::{self, Endpoint, TlsFiles};
use crate::store::encryption::Encryption;
use crate::store::url::{AFTER_NAMES, Url, check_separators, decoded_as, refuse_if};
use crate::store::{Backend, Kind, Location};
use crate::sys::accounts;
use encryption::{binding, encryption};
use hosts::endpoints;

pub(super) use encryption::Binding;

pub(in crate::store) const KIND: Kind = Kind {
    schemes: &["postgres://", "postgresql://"],
    parameters: &[
        "schema",
        "sslmode",
        "ssl",
        "channel_binding",
        "target_session_attrs",
        "application_name",
        "connect_timeout",
        "host",
        "port",
        "user",
        "ca",
        "cert",
        "key",
        "sslrootcert",
        "sslcert",
        "sslkey",
    ],
    has_leases: true,
    parse: |url| Ok(Box::new(parse(url)?)),
};

/// The longest name of a schema, in bytes: PostgreSQL truncates longer ones.
const SCHEMA_MAX: usize = 63;

/// Schemas that every database has, and that hold tables of other programs, which may have the names of lockrun's.
/// Names that begin with `pg_` are PostgreSQL's own, too.
const OTHERS_SCHEMAS: [&str; 2] = ["public", "information_schema"];

/// A database, and how we log in to it.
#[derive(Clone, PartialEq, Eq)]
pub(in crate::store) struct Server {
    /// The servers, of which the first that takes writes is used. At least one. Their files for TLS are in `tls`.
    pub(super) hosts: Vec<Endpoint>,
    /// The role.
    pub(super) user: String,
    /// The password that the URL names. Never shown.
    pub(super) password: Option<String>,
    /// The database.
    pub(super) database: String,
    /// The schema of the tables.
    pub(super) schema: String,
    /// Whether connections over TCP use TLS. Those through a socket never do.
    pub(super) encryption: Encryption,
    /// The files for TLS.
    pub(super) tls: TlsFiles,
    /// Whether a proof of the password is bound to the TLS connection.
    pub(super) binding: Binding,
    /// The name under which the server lists us.
    pub(super) application_name: String,
}

impl Location for Server {
    fn open(&self, timeout: Duration) -> Result<Box<dyn Backend>, String> {
        Ok(Box::new(PostgresStore::new(self.clone(), timeout)?))
    }

    fn schema(&self) -> Option<String> {
        Some(Tables::in_schema(&self.schema).script(&self.schema, &self.database, &self.user))
    }
}

/// Reads a URL that begins with one of the schemes. The user is that of the URL, else of `PGUSER`, else the one we run
/// as.
pub(super) fn parse(text: &str) -> Result<Server, String> {
    let our_name = || match env::var_os("PGUSER").filter(|name| !name.is_empty()) {
        Some(name) => name.into_string().ok(),
        None => accounts::user_name(geteuid()),
    };
    parse_for(text, our_name)
}

/// The same, with `our_name` as the user if the URL has none.
fn parse_for(text: &str, our_name: impl FnOnce() -> Option<String>) -> Result<Server, String> {
    let mut url = Url::read(text)?;
    let (user, password) = url.login()?.unwrap_or_default();
    let parameters = &mut url.parameters;
    let hosts = endpoints(url.hosts, parameters)?;
    let user = match (Some(user).filter(|user| !user.is_empty()), parameters.take("user")) {
        (Some(_), Some(_)) => return Err("names its user twice".into()),
        (user, None) | (None, user) => user.or_else(our_name),
    };
    let user =
        user.ok_or("names no user, and neither does PGUSER or /etc/passwd; write postgres://USER@HOST/DATABASE")?;
    let password = password.filter(|password| !password.is_empty());
    check_separators(url.path, "database", AFTER_NAMES)?;
    let database = decoded_as("database", url.path)?;
    refuse_if(database.is_empty(), "names no database; write postgres://HOST/DATABASE")?;
    check_writable(parameters.take("target_session_attrs").as_deref())?;
    let schema = parameters.take_or("schema", "lockrun");
    if schema.is_empty() || schema.len() > SCHEMA_MAX || schema.chars().any(char::is_control) {
        return Err(format!(
            "has a schema that is empty, longer than {SCHEMA_MAX} bytes or has control characters in it"
        ));
    }
    refuse_if(
        schema.starts_with("pg_") || OTHERS_SCHEMAS.contains(&schema.as_str()),
        "has a schema that is PostgreSQL's, or shared with other programs; lockrun needs one of its own, for \
         instance schema=lockrun",
    )?;
    let application_name = parameters.take_or("application_name", "lockrun");
    let over_tcp = hosts.iter().any(|host| matches!(host, Endpoint::Tcp { .. }));
    let (encryption, tls) = encryption(parameters, over_tcp)?;
    let binding = binding(parameters.take("channel_binding").as_deref(), encryption)?;
    refuse_if(
        parameters.has("connect_timeout"),
        "has the parameter \"connect_timeout\"; use --store-timeout, which also bounds connecting",
    )?;
    refuse_if(
        parameters.has("password"),
        "has its password in a parameter; write postgres://USER:PASSWORD@HOST/DATABASE",
    )?;
    parameters.none_left(None)?;
    for value in [&user, &database, &application_name].into_iter().chain(&password) {
        refuse_if(value.contains('\0'), "has a NUL character in it")?;
    }
    Ok(Server { hosts, user, password, database, schema, encryption, tls, binding, application_name })
}

/// Fails if the parameter asks for a server that takes no writes. The other values change nothing: a lock needs a
/// server that takes writes.
fn check_writable(target: Option<&str>) -> Result<(), String> {
    match target {
        None | Some("any" | "read-write" | "primary") => Ok(()),
        Some(_) => Err(
            "has a target_session_attrs that asks for no server that can be written to; a lock needs one: read-write, primary or any".into(),
        ),
    }
}

/// Writes the servers' addresses, for messages: never a password.
impl fmt::Display for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PostgreSQL at {}", endpoint::list(&self.hosts))
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
    use crate::net::tls::Verification;

    fn read(url: &str) -> Result<Server, String> {
        parse_for(url, || Some("us".into()))
    }

    pub(super) fn server(url: &str) -> Server {
        read(url).expect(url)
    }

    fn tcp(host: &str, port: u16) -> Endpoint {
        Endpoint::Tcp { host: host.into(), port, tls: None }
    }

    #[test]
    fn urls_are_read() {
        let plain = server("postgres://web/db");
        assert_eq!(plain.hosts, [tcp("web", 5432)]);
        assert_eq!((plain.user.as_str(), plain.password, plain.database.as_str()), ("us", None, "db"));
        assert_eq!((plain.schema.as_str(), plain.application_name.as_str()), ("lockrun", "lockrun"));
        assert_eq!((plain.encryption, plain.binding), (Encryption::IfOffered, Binding::IfOffered));
        let full = server(
            "postgresql://u%40x:p%3Aw+%2F@[::1]:7000/a%20db/c?schema=my%20%22locks%22&ca=/ca+.pem&cert=/c&key=/k\
             &application_name=nightly&channel_binding=require&target_session_attrs=read-write",
        );
        assert_eq!(full.hosts, [tcp("::1", 7000)]);
        assert_eq!((full.user.as_str(), full.password.as_deref()), ("u@x", Some("p:w+/")));
        assert_eq!((full.database.as_str(), full.schema.as_str()), ("a db/c", "my \"locks\""));
        let files = TlsFiles { ca: Some("/ca+.pem".into()), identity: Some(("/c".into(), "/k".into())) };
        assert_eq!((full.encryption, full.tls), (Encryption::Required(Verification::Full), files));
        assert_eq!((full.binding, full.application_name.as_str()), (Binding::Required, "nightly"));
    }

    #[test]
    fn users_and_passwords_are_optional() {
        for (url, user, password) in [
            ("postgres://u@h/db", "u", None),
            ("postgres://u:@h/db", "u", None),
            ("postgres://:p@h/db", "us", Some("p")),
            ("postgres://h/db?user=u", "u", None),
            ("postgres://u:a:b@h/db", "u", Some("a:b")),
        ] {
            let server = server(url);
            assert_eq!((server.user.as_str(), server.password.as_deref()), (user, password), "{url}");
        }
        let nobody = parse_for("postgres://h/db", || None).expect_err("has no user");
        assert!(nobody.contains("names no user"), "{nobody}");
    }

    #[test]
    fn what_cannot_be_meant_is_refused() {
        for (url, wanted) in [
            ("postgres://h", "names no database"),
            ("postgres://h/", "names no database"),
            ("postgres://h?schema=x", "names no database"),
            ("postgres://h/db?host=x", "host twice"),
            ("postgres://h:1/db?port=1", "port twice"),
            ("postgres://a,b,c/db?port=1,2", "2 ports for 3 hosts"),
            ("postgres://a,,b/db", "empty host"),
            ("postgres://a,/db", "empty host"),
            ("postgres://[::1/db", "without its ]"),
            ("postgres://[::1]1/db", "behind a ]"),
            ("postgres://::1/db", "without brackets"),
            ("postgres://h:+1/db", "port that is not"),
            ("postgres://h:0/db", "port that is not"),
            ("postgres://h:65536/db", "port that is not"),
            ("postgres://a%20b/db", "neither a name"),
            ("postgres://u@h/db?user=v", "user twice"),
            ("postgres://h/db?schema=", "has a schema that is empty"),
            ("postgres://h/db?schema=a%00b", "control characters"),
            ("postgres://h/db?schema=public", "needs one of its own"),
            ("postgres://h/db?schema=information_schema", "needs one of its own"),
            ("postgres://h/db?schema=pg_catalog", "needs one of its own"),
            ("postgres://h/db?schema=pg%5Ftemp", "needs one of its own"),
            ("postgres://h/d%00b", "NUL"),
            ("postgres://u:p%00@h/db", "NUL"),
            ("postgres:///db?host=/a%00b", "NUL"),
            ("postgres://%ff@h/db", "has a user that is not UTF-8"),
            ("postgres://h/db?target_session_attrs=read-only", "read-write, primary or any"),
            ("postgres://h/db?target_session_attrs=prefer-standby", "read-write, primary or any"),
            ("postgres://h/db?sslmode=on", "none of disable"),
            ("postgres://h/db?ssl=1", "use sslmode"),
            ("postgres://h/db?ssl=true&sslmode=disable", "both ssl and sslmode"),
            ("postgres://h/db?sslmode=verify-ca", "without ca"),
            ("postgres://h/db?sslmode=prefer&ca=/a", "use verify-full"),
            ("postgres://h/db?sslmode=disable&ca=/a", "use verify-full"),
            ("postgres://h/db?sslmode=disable&cert=/c&key=/k", "does not use"),
            ("postgres:///db?ca=/a", "does not use"),
            ("postgres://h/db?cert=/c", "go together"),
            ("postgres://h/db?sslcert=/c&key=/k&cert=/c", "both cert and sslcert"),
            ("postgres://h/db?ca=/a&sslrootcert=system", "beside ca"),
            ("postgres://h/db?sslrootcert=system&sslmode=require", "use verify-full"),
            ("postgres://h/db?channel_binding=on", "none of disable"),
            ("postgres:///db?channel_binding=require", "needs TLS"),
            ("postgres://h/db?connect_timeout=5", "--store-timeout"),
            ("postgres://h/db?options=-cx", "a parameter that is not known"),
            ("postgres://h/db?user=u;password=secret", "two ="),
            ("postgres://u:secret@@h/db", "write %40"),
            ("postgres://u:se/cret@h/db", "write %40"),
            ("postgres://u:se?cret@h/db", "write %40"),
        ] {
            let why = read(url).expect_err(url);
            assert!(why.contains(wanted) && !why.contains("cret"), "{url}: {why}");
        }
        assert!(read(&format!("postgres://h/db?schema={}", "x".repeat(63))).is_ok());
        assert!(read(&format!("postgres://h/db?schema={}", "x".repeat(64))).is_err());
    }

    #[test]
    fn servers_are_named_without_their_password() {
        for (url, shown) in [
            ("postgres://u:secret@h/db", "PostgreSQL at h:5432"),
            ("postgres://u:secret@a:1,[::1]/db", "PostgreSQL at a:1, [::1]:5432"),
            ("postgres://u:secret@/db?host=/tmp/%1bx", "PostgreSQL at /tmp/\\u{1b}x/.s.PGSQL.5432"),
        ] {
            let server = server(url);
            assert_eq!((server.to_string().as_str(), format!("{server:?}").as_str()), (shown, shown));
        }
    }
}
