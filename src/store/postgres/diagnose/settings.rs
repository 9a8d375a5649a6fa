//! The server's parameters, as they are for our role, and what they mean for locks: what a crash or a failover loses,
//! and whether there are enough connections for all waiters.

use std::collections::BTreeMap;

use postgres_protocol::escape::escape_identifier;

use super::{ask, number, try_ask};
use crate::store::diagnostic::{Diagnostic, FORGOTTEN, LOST_BY_FAILOVER};
use crate::store::postgres::PostgresStore;
use crate::store::postgres::connection::Row;
use crate::store::postgres::failure::Failure;

/// The parameters that matter to locks. Times are in milliseconds.
const NAMES: [&str; 10] = [
    "fsync",
    "full_page_writes",
    "idle_session_timeout",
    "max_connections",
    "reserved_connections",
    "server_encoding",
    "superuser_reserved_connections",
    "synchronous_commit",
    "synchronous_standby_names",
    "wal_level",
];

/// An idle session that the server ends sooner than this, in milliseconds, ends between two requests of a waiter.
const IDLE_AT_LEAST: i64 = 15_000;

/// The values of the parameters; a server need not have all of them.
#[derive(Default)]
pub(super) struct Settings(BTreeMap<String, String>);

impl Settings {
    /// Asks for the session's values: lockrun's transactions change some for themselves.
    pub(super) fn ask(store: &mut PostgresStore) -> Result<Self, Failure> {
        let statement = "SELECT name, reset_val FROM pg_catalog.pg_settings WHERE name = ANY ($1::text[])";
        let rows = ask(store, statement, &[Some(&format!("{{{}}}", NAMES.join(",")))])?;
        let pair = |row: Vec<Option<String>>| {
            let mut values = row.into_iter().flatten();
            values.next().zip(values.next())
        };
        Ok(Settings(rows.into_iter().filter_map(pair).collect()))
    }

    /// Returns the value of a parameter.
    pub(super) fn text(&self, name: &str) -> Option<&str> {
        debug_assert!(NAMES.contains(&name), "{name}");
        self.0.get(name).map(String::as_str)
    }

    /// Returns the value of a parameter that is a number.
    fn number(&self, name: &str) -> Option<i64> {
        self.text(name)?.parse().ok()
    }

    /// Judges what reaches the server's disk before the server answers.
    pub(super) fn judge_durability(&self) -> Vec<Diagnostic> {
        let (Some(fsync), Some(pages)) = (self.text("fsync"), self.text("full_page_writes")) else {
            return vec![Diagnostic::note(
                "the server does not say what it keeps on its disk",
                "see by hand that SHOW fsync is on, and SHOW full_page_writes is on",
            )];
        };
        let mut diagnostics = Vec::new();
        if fsync == "off" {
            diagnostics.push(Diagnostic::fail(
                "the server does not wait until its writes reach the disk (fsync off)",
                format!(
                    "a power failure forgets locks, {FORGOTTEN}, and may leave a database that cannot be read; set \
                     fsync on"
                ),
            ));
        }
        if pages == "off" {
            diagnostics.push(Diagnostic::warn(
                "pages that a power failure has cut off cannot be repaired (full_page_writes off)",
                "the tables may be damaged then; set full_page_writes on, unless the file system writes each page as a \
                 whole, as ZFS does",
            ));
        }
        if diagnostics.is_empty() {
            // Whatever synchronous_commit is: lockrun's transactions wait for the disk.
            diagnostics.push(Diagnostic::ok("a crash forgets nothing (fsync on, full_page_writes on)"));
        }
        diagnostics
    }

    /// Judges what a failover from this primary to one of so many connected `standbys` may lose.
    fn judge_standbys(&self, standbys: Option<i64>, role: &str) -> Diagnostic {
        let commit = self.text("synchronous_commit").unwrap_or("on");
        match (self.text("synchronous_standby_names"), standbys) {
            // The WAL then has too little for a standby or an archive.
            (Some(""), _) if self.text("wal_level") == Some("minimal") => {
                Diagnostic::ok("it can have no standby (wal_level minimal), so no failover can lose a lock")
            }
            (Some(""), Some(0)) => Diagnostic::note(
                "no standby is connected at this moment",
                "one that is being restarted, or that reads the WAL from an archive, cannot be seen from here; if there \
                 is one, a failover to it may lose a lock that was just granted, unless synchronous_standby_names names it",
            ),
            (Some(""), Some(standbys)) => Diagnostic::warn(
                format!(
                    "it has standbys ({standbys} connected), which get each commit later (synchronous_standby_names \
                     is empty)"
                ),
                format!("{LOST_BY_FAILOVER}, and name the standbys in synchronous_standby_names"),
            ),
            (None, _) | (Some(""), None) => Diagnostic::note(
                "the server does not name its standbys",
                "see by hand whether SELECT * FROM pg_stat_replication names any; a failover to one of them may lose a \
                 lock that was just granted",
            ),
            (Some(names), _) if matches!(commit, "off" | "local" | "remote_write") => Diagnostic::warn(
                format!(
                    "a commit does not wait for the disk of a synchronous standby (synchronous_standby_names {names}, \
                     synchronous_commit {commit} for role \"{role}\")"
                ),
                format!(
                    "{}{LOST_BY_FAILOVER}, and ALTER ROLE {} SET synchronous_commit = on",
                    if commit == "remote_write" { "if the machine of that one crashes, too, " } else { "" },
                    escape_identifier(role)
                ),
            ),
            (Some(names), _) => Diagnostic::ok(format!(
                "a commit waits until it is on the disk of a synchronous standby (synchronous_standby_names {names}, \
                 synchronous_commit {commit}): a failover to that one keeps each lock until its lease ends by that \
                 one's clock, so keep both clocks in step"
            )),
        }
    }

    /// Judges whether there are enough connections. `row` has how many are in use at the server; the limit of the
    /// database, negative if there is none, and how many are in use there; and the same for the role.
    fn judge_connections(&self, row: &Row) -> Diagnostic {
        let reserved = ["superuser_reserved_connections", "reserved_connections"];
        let reserved: i64 = reserved.iter().filter_map(|name| self.number(name)).sum();
        let max = self.number("max_connections").map(|max| max.saturating_sub(reserved));
        let limits = [
            ("max_connections", max, number(row, 0)),
            ("the limit of the database", number(row, 1), number(row, 2)),
            ("the limit of the role", number(row, 3), number(row, 4)),
        ];
        let known = |(name, limit, used): (_, Option<i64>, Option<i64>)| {
            Some((name, limit.filter(|limit| *limit >= 0)?, used?))
        };
        let limits = limits.into_iter().filter_map(known);
        let Some((name, limit, used)) = limits.min_by_key(|(_, limit, used)| limit.saturating_sub(*used)) else {
            return Diagnostic::note(
                "the server does not say how many connections it allows",
                "see by hand that SHOW max_connections is more than all runs that wait or hold a lock at once",
            );
        };
        let text = format!(
            "at most {limit} connections at once ({name}), {used} in use; each run that waits or holds a lock needs one"
        );
        if limit.saturating_sub(used) <= limit / 10 {
            Diagnostic::warn(
                text,
                "a run that gets none is rejected (status 69), and a lease that cannot be renewed ends its command; \
                 raise the limit, or put a connection pooler in between",
            )
        } else {
            Diagnostic::ok(text)
        }
    }

    /// Returns a warning if the session of a waiter does not last until its next request.
    fn judge_idleness(&self) -> Option<Diagnostic> {
        let ends_after = self.number("idle_session_timeout").filter(|limit| (1..IDLE_AT_LEAST).contains(limit))?;
        Some(Diagnostic::warn(
            format!("a session that is idle for {ends_after} ms is ended (idle_session_timeout)"),
            "a run that waits loses its connection again and again, hears late that it is its turn, and may be \
             overtaken; set idle_session_timeout to 0 for this role, or to 1min",
        ))
    }
}

/// Checks the standbys of this primary.
pub(super) fn diagnose_standbys(
    store: &mut PostgresStore,
    settings: &Settings,
    role: &str,
) -> Result<Diagnostic, Failure> {
    // Every role sees the rows, but not every role their contents. Neither a backup nor a subscriber is a standby.
    let row = try_ask(
        store,
        "SELECT count(*) FROM pg_catalog.pg_stat_replication r WHERE coalesce(r.state, '') <> 'backup' AND NOT EXISTS \
         (SELECT FROM pg_catalog.pg_replication_slots s WHERE s.active_pid = r.pid AND s.slot_type = 'logical')",
        &[],
    )?;
    Ok(settings.judge_standbys(row.and_then(|row| number(&row, 0)), role))
}

/// Checks whether there are enough connections, and whether they last.
pub(super) fn diagnose_connections(store: &mut PostgresStore, settings: &Settings) -> Result<Vec<Diagnostic>, Failure> {
    let row = try_ask(
        store,
        "SELECT (SELECT sum(numbackends) FROM pg_catalog.pg_stat_database), d.datconnlimit, \
         pg_catalog.pg_stat_get_db_numbackends(d.oid), r.rolconnlimit, \
         (SELECT count(*) FROM pg_catalog.pg_stat_activity WHERE usesysid = r.oid) \
         FROM pg_catalog.pg_database d, pg_catalog.pg_roles r \
         WHERE d.datname = pg_catalog.current_database() AND r.rolname = current_user",
        &[],
    )?;
    let mut diagnostics = vec![settings.judge_connections(&row.unwrap_or_default())];
    diagnostics.extend(settings.judge_idleness());
    Ok(diagnostics)
}

#[cfg(test)]
impl<const N: usize> From<[(&str, &str); N]> for Settings {
    fn from(pairs: [(&str, &str); N]) -> Self {
        Settings(pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::diagnostic::Level;

    #[test]
    fn what_a_crash_forgets_is_found() {
        let levels = |fsync, pages| -> Vec<Level> {
            let settings = Settings::from([("fsync", fsync), ("full_page_writes", pages)]);
            settings.judge_durability().iter().map(|diagnostic| diagnostic.level).collect()
        };
        assert_eq!(levels("on", "on"), [Level::Ok]);
        assert_eq!(levels("off", "on"), [Level::Fail]);
        assert_eq!(levels("on", "off"), [Level::Warn]);
        assert_eq!(levels("off", "off"), [Level::Fail, Level::Warn]);
        assert_eq!(Settings::default().judge_durability()[0].level, Level::Note);
    }

    #[test]
    fn standbys_are_a_risk_unless_they_are_waited_for() {
        let judged = |standbys, names, commit, wal_level| {
            let names = ("synchronous_standby_names", names);
            let settings = Settings::from([names, ("synchronous_commit", commit), ("wal_level", wal_level)]);
            settings.judge_standbys(standbys, "app")
        };
        let level = |standbys, names, commit| judged(standbys, names, commit, "replica").level;
        assert_eq!(judged(Some(0), "", "on", "minimal").level, Level::Ok);
        // A standby may be about to connect, or read an archive.
        assert_eq!(level(Some(0), "", "on"), Level::Note);
        assert_eq!(level(Some(2), "", "on"), Level::Warn);
        assert_eq!(level(Some(2), "ANY 1 (a, b)", "on"), Level::Ok);
        assert_eq!(level(None, "*", "remote_apply"), Level::Ok);
        assert!(judged(Some(1), "*", "on", "replica").text.ends_with("so keep both clocks in step"));
        assert_eq!(level(Some(2), "*", "remote_write"), Level::Warn);
        assert_eq!(level(Some(2), "*", "local"), Level::Warn);
        assert_eq!(level(Some(0), "*", "off"), Level::Warn);
        assert_eq!(level(None, "", "on"), Level::Note);
        assert_eq!(Settings::default().judge_standbys(Some(0), "app").level, Level::Note);
    }

    #[test]
    fn a_server_that_is_nearly_full_is_found() {
        let settings = Settings::from([("max_connections", "100"), ("superuser_reserved_connections", "3")]);
        let judge =
            |values: [&str; 5]| settings.judge_connections(&values.map(|value| Some(value.to_owned())).to_vec());
        let found = judge(["20", "-1", "9", "-1", "3"]);
        assert!(found.level == Level::Ok && found.text.starts_with("at most 97 connections"), "{found}");
        assert_eq!(judge(["87", "-1", "9", "-1", "3"]).level, Level::Ok);
        assert_eq!(judge(["88", "-1", "9", "-1", "3"]).level, Level::Warn);
        let found = judge(["20", "50", "9", "10", "8"]);
        let text = "at most 10 connections at once (the limit of the role), 8";
        assert!(found.level == Level::Ok && found.text.starts_with(text), "{found}");
        assert_eq!(judge(["20", "50", "9", "10", "9"]).level, Level::Warn);
        let found = judge(["20", "50", "48", "10", "1"]);
        assert!(found.level == Level::Warn && found.text.contains("(the limit of the database)"), "{found}");
        assert_eq!(judge(["20", "0", "9", "-1", "1"]).level, Level::Warn);
        assert_eq!(Settings::default().judge_connections(&Vec::new()).level, Level::Note);
    }

    #[test]
    fn sessions_that_do_not_last_are_found() {
        let level = |limit| {
            let settings = Settings::from([("idle_session_timeout", limit)]);
            settings.judge_idleness().map(|found| found.level)
        };
        assert_eq!(level("0"), None);
        assert_eq!(level("60000"), None);
        assert_eq!(level("5000"), Some(Level::Warn));
        assert_eq!(Settings::default().judge_idleness(), None);
    }
}
