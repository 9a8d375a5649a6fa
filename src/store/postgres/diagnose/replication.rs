//! What a failover to a standby may lose.

use postgres_protocol::escape::escape_identifier;

use super::settings::Settings;
use super::{number, try_ask};
use crate::store::diagnostic::Diagnostic;
use crate::store::postgres::PostgresStore;
use crate::store::postgres::failure::Failure;

/// Looks at the standbys of this primary.
pub(super) fn diagnose(store: &mut PostgresStore, settings: &Settings, role: &str) -> Result<Diagnostic, Failure> {
    // Every role sees the rows, but not every role what is in them. Neither a backup nor a subscriber is a standby.
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
    let lost = "a failover may lose what was committed last: a lock that was just granted is free on the new primary, \
                and another run gets it while the first command runs; let the fence guard what matters";
    let commit = settings.text("synchronous_commit").unwrap_or("on");
    match (settings.text("synchronous_standby_names"), standbys) {
        (Some(""), Some(0)) => Diagnostic::ok("no standby is connected, so no failover can lose a lock"),
        (Some(""), Some(standbys)) => Diagnostic::warn(
            format!(
                "it has standbys ({standbys} connected), which get each commit later (synchronous_standby_names is empty)"
            ),
            format!("{lost}, and name the standbys in synchronous_standby_names"),
        ),
        (Some(names), _) if !names.is_empty() && matches!(commit, "off" | "local") => Diagnostic::warn(
            format!(
                "a commit does not wait for the synchronous standbys (synchronous_commit {commit} for role \"{role}\")"
            ),
            format!("{lost}, and ALTER ROLE {} SET synchronous_commit = on", escape_identifier(role)),
        ),
        (Some(names), _) if !names.is_empty() => Diagnostic::ok(format!(
            "a commit waits for a synchronous standby (synchronous_standby_names {names}, synchronous_commit {commit}), \
             so a failover to that one loses no lock"
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
        let level = |standbys, names, commit| {
            let settings = Settings::from([("synchronous_standby_names", names), ("synchronous_commit", commit)]);
            judge(standbys, &settings, "app").level
        };
        assert_eq!(level(Some(0), "", "on"), Level::Ok);
        assert_eq!(level(Some(2), "", "on"), Level::Warn);
        assert_eq!(level(Some(2), "ANY 1 (a, b)", "on"), Level::Ok);
        assert_eq!(level(None, "*", "remote_apply"), Level::Ok);
        assert_eq!(level(Some(2), "*", "local"), Level::Warn);
        assert_eq!(level(Some(0), "*", "off"), Level::Warn);
        assert_eq!(level(None, "", "on"), Level::Note);
        assert_eq!(judge(Some(0), &Settings::default(), "app").level, Level::Note);
    }
}
