//! What would make locks in this database unsafe or slow.

use std::time::Duration;

use super::MysqlStore;
use super::connection::{Batch, Row};
use super::failure::Failure;
use super::schema::bytes;
use super::transaction::{check_engines, engines_of};
use super::url::Server;
use crate::lock::key::Key;
use crate::store::diagnostic::{Diagnostic, FORGOTTEN, LOST_BY_FAILOVER, latency, trial};
use crate::store::encryption::judge;
use crate::store::engine::Records as _;
use crate::sys::blocked_signals::with_signals_blocked;
use crate::sys::clock::Moment;

/// Checks the server of `store`, and tries a lock there under a key that no one else uses.
pub(super) fn diagnose(store: &mut MysqlStore) -> Vec<Diagnostic> {
    let mut diagnostics = Vec::new();
    if let Err(failure) = look(store, &mut diagnostics) {
        diagnostics.push(Diagnostic::unusable(store.explain(&failure).to_string(), ""));
    }
    diagnostics
}

/// Adds what is found to `diagnostics`. Fails if the server stops answering.
fn look(store: &mut MysqlStore, diagnostics: &mut Vec<Diagnostic>) -> Result<(), Failure> {
    let row = ask(store, "SELECT VERSION(), @@GLOBAL.read_only, @@GLOBAL.innodb_flush_log_at_trx_commit")?;
    let words = text(&row, 0);
    diagnostics.push(judge_version(&format!("{} answers: {words}", store.server), words));
    if !["0", "OFF"].contains(&text(&row, 1)) {
        let advice = "name the primary in the store's URL";
        diagnostics.push(Diagnostic::unusable(
            "it is a replica, or was made read-only (read_only): it takes no writes",
            advice,
        ));
        return Ok(());
    }
    let is_encrypted =
        ask(store, "SHOW SESSION STATUS LIKE 'Ssl_cipher'")?.get(1).is_some_and(|it| it.as_deref() != Some(""));
    let Server { hosts, encryption, .. } = &store.server;
    diagnostics.extend(judge(hosts, is_encrypted, encryption.verifies(), "tls=verify-identity", store.timeout));

    let tables = store.tables.clone();
    let engines = ask(store, &format!("SELECT {}", engines_of(&[&tables.locks, &tables.waiters])))?;
    check_engines(Some(text(&engines, 0)))?;
    // What the trial creates must be removed.
    diagnostics.push(with_signals_blocked(|| try_a_lock(store, &trial::key())));
    diagnostics.extend(latency::diagnose(store.timeout, || time(store))?);

    if text(&row, 2) != "1" {
        diagnostics.push(Diagnostic::fail(
            format!(
                "innodb_flush_log_at_trx_commit is {}: a crash of the server's machine makes it forget",
                text(&row, 2)
            ),
            format!("what was committed last is lost then, a lock with it, {FORGOTTEN}; set it to 1"),
        ));
    }
    diagnostics.extend(judge_copies(store)?);
    Ok(())
}

/// Judges what kind of server this is.
fn judge_version(answers: &str, words: &str) -> Diagnostic {
    let (major, minor) = words.split_once('.').unwrap_or((words, ""));
    let minor = minor.split('.').next().unwrap_or_default();
    let oldest = if words.contains("MariaDB") { (10, 3) } else { (8, 0) };
    match (major.parse::<u32>(), minor.parse::<u32>()) {
        (Ok(major), Ok(minor)) if (major, minor) < oldest => Diagnostic::fail(
            answers,
            "lockrun does not support MySQL before 8.0 and MariaDB before 10.3; use a newer one",
        ),
        (Ok(_), Ok(_)) => Diagnostic::ok(answers),
        _ => Diagnostic::note(answers, "see by hand that it is MySQL 8.0 or MariaDB 10.3, or newer"),
    }
}

/// Judges what becomes of a lock if another server takes this one's place.
fn judge_copies(store: &mut MysqlStore) -> Result<Vec<Diagnostic>, Failure> {
    let names = "'wsrep_on', 'log_bin', 'sync_binlog', 'binlog_format', 'rpl_semi_sync_master_enabled', \
                 'rpl_semi_sync_source_enabled', 'group_replication_group_name'";
    let variables = rows(store, &format!("SHOW GLOBAL VARIABLES WHERE Variable_name IN ({names})"))?;
    let value = |name: &str| {
        let is_it = |row: &&Row| row.first().is_some_and(|it| it.as_deref() == Some(name));
        variables.iter().find(is_it).and_then(|row| row.get(1)?.as_deref()).unwrap_or_default()
    };
    let is_on = |name: &str| ["ON", "1"].contains(&value(name));
    let mut found = Vec::new();
    if is_on("wsrep_on") || !value("group_replication_group_name").is_empty() {
        let kind = if is_on("wsrep_on") { "Galera" } else { "group replication" };
        found.push(Diagnostic::warn(
            format!("it is a node of a cluster ({kind})"),
            "name one node in the store's URL, or an address that leads to one of them at a time: the row of a lock is \
             locked on its own node alone, and of two commits on different nodes one fails; a node that was cut off may \
             lack what was committed last",
        ));
    } else if is_on("rpl_semi_sync_master_enabled") || is_on("rpl_semi_sync_source_enabled") {
        found.push(Diagnostic::note(
            "a commit waits for a replica (semi-synchronous)",
            format!("when no replica answers in time it goes on without: {LOST_BY_FAILOVER}"),
        ));
    } else if is_on("log_bin") {
        found.push(Diagnostic::note("it can have replicas, which lag behind", LOST_BY_FAILOVER));
    }
    if is_on("log_bin") && value("sync_binlog") != "1" {
        found.push(Diagnostic::warn(
            format!(
                "sync_binlog is {}: after a crash of its machine the replicas may lack what it has committed",
                value("sync_binlog")
            ),
            format!("if one of them takes its place, it has forgotten a lock, {FORGOTTEN}; set it to 1"),
        ));
    }
    if value("binlog_format") == "STATEMENT" && is_on("log_bin") {
        found.push(Diagnostic::fail(
            "binlog_format is STATEMENT, with which it rejects lockrun's transactions",
            "set it to ROW or MIXED",
        ));
    }
    Ok(found)
}

/// Tries a lock that only we use, and removes what it leaves.
fn try_a_lock(store: &mut MysqlStore, key: &Key) -> Diagnostic {
    let tried = trial::diagnose(store, key);
    for table in [store.tables.waiters.clone(), store.tables.locks.clone()] {
        let _ = rows(store, &format!("DELETE FROM {table} WHERE k = {}", bytes(key.as_str())));
    }
    tried
}

/// Returns the time since 1970 by the server's clock; `None` if the answer cannot be read.
fn time(store: &mut MysqlStore) -> Result<Option<Duration>, Failure> {
    let row = ask(store, "SELECT TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))")?;
    Ok(text(&row, 0).parse().ok().map(Duration::from_micros))
}

/// Sends a statement, and returns its rows.
fn rows(store: &mut MysqlStore, statement: &str) -> Result<Vec<Row>, Failure> {
    let deadline = Moment::now() + store.timeout;
    let connection = store.connected_in_time(deadline)?;
    connection.roll_back(deadline)?;
    let mut answers = connection.run(&Batch::outside(statement), deadline)?;
    Ok(answers.pop().map(|answer| answer.rows).unwrap_or_default())
}

/// Sends a statement that has one row. Returns an empty row if there is none.
fn ask(store: &mut MysqlStore, statement: &str) -> Result<Row, Failure> {
    Ok(rows(store, statement)?.into_iter().next().unwrap_or_default())
}

/// Returns the value of a column; nothing if it is null or missing.
fn text(row: &Row, at: usize) -> &str {
    row.get(at).and_then(Option::as_deref).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::diagnostic::Level;

    #[test]
    fn old_servers_are_found() {
        let level = |words: &str| judge_version("", words).level;
        for words in ["8.0.36", "9.1.0-commercial", "10.11.6-MariaDB-0+deb12u1", "11.4.2-MariaDB"] {
            assert_eq!(level(words), Level::Ok, "{words}");
        }
        for words in ["5.7.44", "10.1.48-MariaDB", "5.5.68-MariaDB"] {
            assert_eq!(level(words), Level::Fail, "{words}");
        }
        assert_eq!(level("8"), Level::Note);
    }
}
