//! Whether there are connections enough for all that wait, and whether they last.

use super::settings::Settings;
use super::{number, try_ask};
use crate::store::diagnostic::Diagnostic;
use crate::store::postgres::PostgresStore;
use crate::store::postgres::connection::Row;
use crate::store::postgres::failure::Failure;

/// A session that is ended sooner than this while it is idle is ended between two looks of a waiting run, in milliseconds.
const IDLE_AT_LEAST: i64 = 15_000;

/// Looks at the connections of all clients. Those through a pooler are the pooler's business.
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
        "SELECT (SELECT sum(numbackends) FROM pg_catalog.pg_stat_database), \
         (SELECT datconnlimit FROM pg_catalog.pg_database WHERE datname = pg_catalog.current_database()), \
         (SELECT rolconnlimit FROM pg_catalog.pg_roles WHERE rolname = current_user)",
        &[],
    )?;
    let mut diagnostics = vec![judge(settings, &row.unwrap_or_default())];
    diagnostics.extend(judge_idleness(settings));
    Ok(diagnostics)
}

/// Whether there are enough; `row` has the number of those in use, and the limits of the database and of the role, negative if there is
/// none.
fn judge(settings: &Settings, row: &Row) -> Diagnostic {
    let (Some(max), Some(used)) = (settings.number("max_connections"), number(row, 0)) else {
        return Diagnostic::note(
            "the server does not tell how many connections it allows",
            "see by hand that SHOW max_connections is more than all runs that wait or hold a lock at once",
        );
    };
    let reserved =
        ["superuser_reserved_connections", "reserved_connections"].map(|name| settings.number(name).unwrap_or(0));
    let mut allowed = max.saturating_sub(reserved.iter().sum());
    let is_nearly_full = allowed.saturating_sub(used) < (allowed / 10).max(3);
    let mut by = "max_connections";
    for (limit, name) in [(number(row, 1), "the database's limit"), (number(row, 2), "the role's limit")] {
        if let Some(limit) = limit.filter(|limit| (0..allowed).contains(limit)) {
            (allowed, by) = (limit, name);
        }
    }
    let text = format!(
        "at most {allowed} connections at once ({by}), {used} in use on the server; each run that waits or holds a lock needs one"
    );
    if is_nearly_full {
        Diagnostic::warn(
            text,
            "a run that gets none is rejected (status 69), and a lease that cannot be renewed ends its command; \
             raise max_connections, or put a connection pooler in between",
        )
    } else {
        Diagnostic::ok(text)
    }
}

/// Whether the session of a waiting run lasts until it looks again.
fn judge_idleness(settings: &Settings) -> Option<Diagnostic> {
    let ends_after = settings.number("idle_session_timeout").filter(|limit| (1..IDLE_AT_LEAST).contains(limit))?;
    Some(Diagnostic::warn(
        format!("a session that is idle for {ends_after} ms is ended (idle_session_timeout)"),
        "a run that waits loses its connection again and again, and hears late that it is its turn; set idle_session_timeout to 0 \
         for this role, or to 1min",
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::diagnostic::Level;

    #[test]
    fn a_server_that_is_nearly_full_is_found() {
        let settings = || Settings::from([("max_connections", "100"), ("superuser_reserved_connections", "3")]);
        let judge = |values: [&str; 3]| judge(&settings(), &values.map(|value| Some(value.to_owned())).to_vec());
        let found = judge(["20", "-1", "-1"]);
        assert!(found.level == Level::Ok && found.text.starts_with("at most 97 connections"), "{found}");
        assert_eq!(judge(["92", "-1", "-1"]).level, Level::Warn);
        let found = judge(["20", "50", "10"]);
        assert!(found.text.starts_with("at most 10 connections at once (the role's limit)"), "{found}");
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
