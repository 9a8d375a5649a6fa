//! Whether there are enough connections for all waiters, and whether they last.

use super::settings::Settings;
use super::{number, try_ask};
use crate::store::diagnostic::Diagnostic;
use crate::store::postgres::PostgresStore;
use crate::store::postgres::connection::Row;
use crate::store::postgres::failure::Failure;

/// An idle session that the server ends sooner than this, in milliseconds, ends between two requests of a waiter.
const IDLE_AT_LEAST: i64 = 15_000;

/// Checks the connections of all clients. Behind a pooler, they are the pooler's business.
pub(super) fn diagnose(
    store: &mut PostgresStore,
    settings: &Settings,
    is_pooled: bool,
) -> Result<Vec<Diagnostic>, Failure> {
    if is_pooled {
        return Ok(Vec::new());
    }
    let row = try_ask(
        store,
        "SELECT (SELECT sum(numbackends) FROM pg_catalog.pg_stat_database), d.datconnlimit, \
         pg_catalog.pg_stat_get_db_numbackends(d.oid), r.rolconnlimit, \
         (SELECT count(*) FROM pg_catalog.pg_stat_activity WHERE usesysid = r.oid) \
         FROM pg_catalog.pg_database d, pg_catalog.pg_roles r \
         WHERE d.datname = pg_catalog.current_database() AND r.rolname = current_user",
        &[],
    )?;
    let mut diagnostics = vec![judge(settings, &row.unwrap_or_default())];
    diagnostics.extend(judge_idleness(settings));
    Ok(diagnostics)
}

/// Returns whether there are enough. `row` has how many are in use at the server; the limit of the database, negative if there is none, and
/// how many are in use there; and the same for the role.
fn judge(settings: &Settings, row: &Row) -> Diagnostic {
    let reserved = ["superuser_reserved_connections", "reserved_connections"];
    let reserved: i64 = reserved.iter().filter_map(|name| settings.number(name)).sum();
    let max = settings.number("max_connections").map(|max| max.saturating_sub(reserved));
    let limits = [
        ("max_connections", max, number(row, 0)),
        ("the limit of the database", number(row, 1), number(row, 2)),
        ("the limit of the role", number(row, 3), number(row, 4)),
    ];
    let limits =
        limits.into_iter().filter_map(|(name, limit, used)| Some((name, limit.filter(|limit| *limit >= 0)?, used?)));
    let Some((name, limit, used)) = limits.min_by_key(|(_, limit, used)| limit.saturating_sub(*used)) else {
        return Diagnostic::note(
            "the server does not tell how many connections it allows",
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
fn judge_idleness(settings: &Settings) -> Option<Diagnostic> {
    let ends_after = settings.number("idle_session_timeout").filter(|limit| (1..IDLE_AT_LEAST).contains(limit))?;
    Some(Diagnostic::warn(
        format!("a session that is idle for {ends_after} ms is ended (idle_session_timeout)"),
        "a run that waits loses its connection again and again, hears late that it is its turn, and may be overtaken; set \
         idle_session_timeout to 0 for this role, or to 1min",
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::diagnostic::Level;

    #[test]
    fn a_server_that_is_nearly_full_is_found() {
        let settings = || Settings::from([("max_connections", "100"), ("superuser_reserved_connections", "3")]);
        let judge = |values: [&str; 5]| judge(&settings(), &values.map(|value| Some(value.to_owned())).to_vec());
        let found = judge(["20", "-1", "9", "-1", "3"]);
        assert!(found.level == Level::Ok && found.text.starts_with("at most 97 connections"), "{found}");
        assert_eq!(judge(["87", "-1", "9", "-1", "3"]).level, Level::Ok);
        assert_eq!(judge(["88", "-1", "9", "-1", "3"]).level, Level::Warn);
        let found = judge(["20", "50", "9", "10", "8"]);
        assert!(
            found.level == Level::Ok
                && found.text.starts_with("at most 10 connections at once (the limit of the role), 8"),
            "{found}"
        );
        assert_eq!(judge(["20", "50", "9", "10", "9"]).level, Level::Warn);
        let found = judge(["20", "50", "48", "10", "1"]);
        assert!(found.level == Level::Warn && found.text.contains("(the limit of the database)"), "{found}");
        assert_eq!(judge(["20", "0", "9", "-1", "1"]).level, Level::Warn);
        assert_eq!(super::judge(&Settings::default(), &Vec::new()).level, Level::Note);
    }

    #[test]
    fn sessions_that_do_not_last_are_found() {
        let level = |limit| judge_idleness(&Settings::from([("idle_session_timeout", limit)])).map(|found| found.level);
        assert_eq!(level("0"), None);
        assert_eq!(level("60000"), None);
        assert_eq!(level("5000"), Some(Level::Warn));
        assert_eq!(judge_idleness(&Settings::default()), None);
    }
}
