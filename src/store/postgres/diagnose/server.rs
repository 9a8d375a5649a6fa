//! What kind of server it is, and how we reach it.

use std::net::IpAddr;
use std::time::Duration;

use super::settings::Settings;
use super::{ask_one, number, text, truth};
use crate::store::diagnostic::Diagnostic;
use crate::store::diagnostic::encryption::EAVESDROPPERS;
use crate::store::encryption;
use crate::store::postgres::PostgresStore;
use crate::store::postgres::failure::Failure;
use crate::store::postgres::url::{Binding, Server};

/// The oldest PostgreSQL that is supported, as server_version_num begins.
const OLDEST: i64 = 12;

/// What the server says about itself and us.
#[derive(Debug, Default)]
pub(super) struct Introduction {
    /// Product, version and more, in words.
    words: String,
    /// The version as a number, such as 150013.
    version: Option<i64>,
    /// Whether it copies another server, and takes no writes.
    pub(super) is_standby: bool,
    /// Whether the process that serves us is not the one named at login: then a pooler is in between.
    pub(super) is_pooled: bool,
    /// Our role there.
    pub(super) role: String,
    /// Whether the server's own connection, to us or to the pooler, comes from another machine and is not encrypted.
    is_exposed: bool,
}

impl Introduction {
    /// Asks for it, before anything else.
    pub(super) fn ask(store: &mut PostgresStore) -> Result<Self, Failure> {
        let row = ask_one(
            store,
            "SELECT pg_catalog.version(), pg_catalog.current_setting('server_version_num'), \
             pg_catalog.pg_is_in_recovery(), pg_catalog.pg_backend_pid(), current_user, \
             (SELECT ssl FROM pg_catalog.pg_stat_ssl WHERE pid = pg_catalog.pg_backend_pid()), \
             pg_catalog.host(pg_catalog.inet_client_addr()), pg_catalog.host(pg_catalog.inet_server_addr())",
            &[],
        )?;
        let introduced = store.connection.as_ref().map(|connection| i64::from(connection.process));
        Ok(Introduction {
            // What follows " on " is the machine for which it was built.
            words: text(&row, 0).and_then(|words| words.split(" on ").next()).unwrap_or_default().to_owned(),
            version: number(&row, 1),
            is_standby: truth(&row, 2) == Some(true),
            is_pooled: number(&row, 3) != introduced,
            role: text(&row, 4).unwrap_or_default().to_owned(),
            is_exposed: truth(&row, 5) == Some(false) && !is_local(text(&row, 6), text(&row, 7)),
        })
    }
}

/// Returns whether a connection from `client` to `server` stays on one machine. Without an address it is over a socket.
fn is_local(client: Option<&str>, server: Option<&str>) -> bool {
    let is_loopback = |client: &str| client.parse().is_ok_and(|address: IpAddr| address.is_loopback());
    client.is_none_or(|client| is_loopback(client) || Some(client) == server)
}

/// Returns what kind of server this is.
pub(super) fn judge(server: &Server, introduction: &Introduction, settings: &Settings) -> Vec<Diagnostic> {
    let Introduction { words, version, is_standby, is_pooled, is_exposed, .. } = introduction;
    let answers = format!("{server} answers: {words}");
    let mut diagnostics = vec![match version {
        _ if !words.starts_with("PostgreSQL ") => {
            Diagnostic::note(answers, "lockrun is made for PostgreSQL; see whether what follows is as it should be")
        }
        None => Diagnostic::note(answers, format!("see by hand that it is PostgreSQL {OLDEST} or newer")),
        Some(version) if version / 10000 < OLDEST => {
            Diagnostic::fail(answers, format!("lockrun does not support PostgreSQL before {OLDEST}; use a newer one"))
        }
        Some(_) => Diagnostic::ok(answers),
    }];
    if *is_standby {
        let advice = "name the primary in the store's URL";
        diagnostics.push(Diagnostic::unusable("it is a standby, which takes no writes", advice));
        return diagnostics;
    }
    diagnostics.push(Diagnostic::ok(if *is_pooled {
        "a connection pooler is in between: a run that waits is not woken, but looks every 0.1 to 1 s whether it is its \
         turn"
    } else {
        "it is connected directly, without a pooler: a run that waits is woken (LISTEN)"
    }));
    if *is_pooled && *is_exposed {
        diagnostics.push(Diagnostic::warn(
            "the connection pooler speaks to the server over the network in clear",
            format!("{EAVESDROPPERS}; let the pooler use TLS (pgbouncer: server_tls_sslmode = verify-full)"),
        ));
    }
    if let Some(encoding) = settings.text("server_encoding").filter(|name| !matches!(*name, "UTF8" | "SQL_ASCII")) {
        diagnostics.push(Diagnostic::warn(
            format!("the database's encoding is {encoding}"),
            format!(
                "a lock whose key has characters that {encoding} lacks is rejected (status 69); use a database with UTF8"
            ),
        ));
    }
    diagnostics
}

/// Judges whether others on the network could listen to the connection to `server`, or pose as it. Looks up its name
/// within `timeout`.
pub(super) fn judge_encryption(server: &Server, is_encrypted: bool, timeout: Duration) -> Option<Diagnostic> {
    // A proof that is bound to one certificate is useless to a server with another.
    let is_proved = server.encryption.verifies() || server.binding == Binding::Required;
    encryption::judge(&server.hosts, is_encrypted, is_proved, "sslmode=verify-full", timeout)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::diagnostic::Level;
    use crate::store::postgres::url;

    fn worst(words: &str, version: i64, is_standby: bool, encoding: &str) -> Option<Level> {
        let server = url::parse("postgres://u@127.0.0.1/db").expect("is a URL");
        let (words, version) = (words.to_owned(), Some(version));
        let introduction = Introduction { words, version, is_standby, ..Introduction::default() };
        let settings = Settings::from([("server_encoding", encoding)]);
        judge(&server, &introduction, &settings).into_iter().map(|diagnostic| diagnostic.level).max()
    }

    #[test]
    fn what_a_pooler_sends_in_clear_is_found() {
        assert!(
            is_local(None, None) && is_local(Some("::1"), Some("::1")) && is_local(Some("10.0.0.1"), Some("10.0.0.1"))
        );
        assert!(!is_local(Some("10.0.0.2"), Some("10.0.0.1")));
        let server = url::parse("postgres://u@127.0.0.1/db").expect("is a URL");
        let worst = |is_pooled, is_exposed| {
            let (words, version) = ("PostgreSQL 15.13".to_owned(), Some(150_013));
            let introduction = Introduction { words, version, is_pooled, is_exposed, ..Introduction::default() };
            judge(&server, &introduction, &Settings::default()).into_iter().map(|diagnostic| diagnostic.level).max()
        };
        assert_eq!(worst(true, true), Some(Level::Warn));
        assert_eq!(worst(true, false), Some(Level::Ok));
        // Without a pooler, our own end of the connection is judged instead.
        assert_eq!(worst(false, true), Some(Level::Ok));
    }

    #[test]
    fn who_can_listen_or_pose_is_found() {
        let level = |host: &str, parameters: &str, is_encrypted| {
            let server = url::parse(&format!("postgres://u@{host}/db{parameters}")).expect("is a URL");
            judge_encryption(&server, is_encrypted, Duration::from_secs(1)).map(|found| found.level)
        };
        assert_eq!(level("192.0.2.1", "", false), Some(Level::Warn));
        assert_eq!(level("192.0.2.1", "", true), Some(Level::Warn));
        assert_eq!(level("192.0.2.1", "?sslmode=require", true), Some(Level::Warn));
        assert_eq!(level("192.0.2.1", "?sslmode=verify-full", true), Some(Level::Ok));
        assert_eq!(level("192.0.2.1", "?sslmode=require&channel_binding=require", true), Some(Level::Ok));
        assert_eq!(level("127.0.0.1", "", false), Some(Level::Ok));
        assert_eq!(level("%2Frun%2Fpostgresql", "", false), None);
    }

    #[test]
    fn kinds_of_servers_are_told_apart() {
        assert_eq!(worst("PostgreSQL 15.13 (Debian 15.13-0+deb12u1)", 150_013, false, "UTF8"), Some(Level::Ok));
        assert_eq!(worst("PostgreSQL 12.0", 120_000, false, "SQL_ASCII"), Some(Level::Ok));
        assert_eq!(worst("PostgreSQL 11.22", 110_022, false, "UTF8"), Some(Level::Fail));
        assert_eq!(worst("PostgreSQL 9.6.24", 90_624, false, "UTF8"), Some(Level::Fail));
        assert_eq!(worst("CockroachDB CCL v23.1.0", 130_000, false, "UTF8"), Some(Level::Note));
        assert_eq!(worst("PostgreSQL 15.13", 150_013, true, "UTF8"), Some(Level::Unusable));
        assert_eq!(worst("PostgreSQL 15.13", 150_013, false, "LATIN1"), Some(Level::Warn));
    }
}
