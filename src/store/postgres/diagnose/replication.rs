//! What a failover to a standby may lose.

use postgres_protocol::escape::escape_identifier;

use super::settings::Settings;
use super::{number, try_ask};
use crate::store::diagnostic::{Diagnostic, LOST_BY_FAILOVER};
use crate::store::postgres::PostgresStore;
use crate::store::postgres::failure::Failure;

/// Checks the standbys of this primary.
pub(super) fn diagnose(store: &mut PostgresStore, settings: &Settings, role: &str) -> Result<Diagnostic, Failure> {
    // Every role sees the rows, but not every role their contents. Neither a backup nor a subscriber is a standby.
    let row = try_ask(
        store,
        "SELECT count(*) FROM pg_catalog.pg_stat_replication r WHERE coalesce(r.state, '') <> 'backup' AND NOT EXISTS \
         (SELECT FROM pg_catalog.pg_replication_slots s WHERE s.active_pid = r.pid AND s.slot_type = 'logical')",
        &[],
    )?;
    let standbys = row.and_then(|row| number(&row, 0));
    Ok(judge(standbys, settings, role))
}

fn judge(standbys: Option<i64>, settings: &Settings, role: &str) -> Diagnostic {
    let commit = settings.text("synchronous_commit").unwrap_or("on");
    let wait = format!("ALTER ROLE {} SET synchronous_commit = on", escape_identifier(role));
    match (settings.text("synchronous_standby_names"), standbys) {
        // The WAL then has too little for a standby or an archive.
        (Some(""), _) if settings.text("wal_level") == Some("minimal") => {
            Diagnostic::ok("it can have no standby (wal_level minimal), so no failover can lose a lock")
        }
        (Some(""), Some(0)) => Diagnostic::note(
            "no standby is connected at this moment",
            "one that is being restarted, or that reads the WAL from an archive, cannot be seen from here; if there is one, a failover to it \
             may lose a lock that was just granted, unless synchronous_standby_names names it",
        ),
        (Some(""), Some(standbys)) => Diagnostic::warn(
            format!(
                "it has standbys ({standbys} connected), which get each commit later (synchronous_standby_names is empty)"
            ),
            format!("{LOST_BY_FAILOVER}, and name the standbys in synchronous_standby_names"),
        ),
        (Some(names), _) if !names.is_empty() && matches!(commit, "off" | "local") => Diagnostic::warn(
            format!(
                "a commit does not wait for the synchronous standbys (synchronous_commit {commit} for role \"{role}\")"
            ),
            format!("{LOST_BY_FAILOVER}, and {wait}"),
        ),
        (Some(names), _) if !names.is_empty() && commit == "remote_write" => Diagnostic::warn(
            format!(
                "a commit waits until a synchronous standby has received it, but not for its disk \
                 (synchronous_standby_names {names}, synchronous_commit {commit} for role \"{role}\")"
            ),
            format!(
                "if that one's machine crashes, too, a failover to it may lose a lock that was just granted; {wait}"
            ),
        ),
        (Some(names), _) if !names.is_empty() => Diagnostic::ok(format!(
            "a commit waits until it is on the disk of a synchronous standby (synchronous_standby_names {names}, \
             synchronous_commit {commit}): a failover to that one keeps each lock until its lease ends by that one's clock, \
             so keep both clocks in step"
        )),
        _ => Diagnostic::note(
            "the server does not tell of its standbys",
            "see by hand whether SELECT * FROM pg_stat_replication names any; a failover to one of them may lose a lock that was just granted",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::diagnostic::Level;

    #[test]
    fn standbys_are_a_risk_unless_they_are_waited_for() {
        let judged = |standbys, names, commit, wal_level| {
            let names = ("synchronous_standby_names", names);
            let settings = Settings::from([names, ("synchronous_commit", commit), ("wal_level", wal_level)]);
            judge(standbys, &settings, "app")
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
        assert_eq!(judge(Some(0), &Settings::default(), "app").level, Level::Note);
    }
}
