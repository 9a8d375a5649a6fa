//! Whether the rows that each operation leaves behind are removed.

use super::settings::Settings;
use super::tables::Table;
use crate::store::diagnostic::Diagnostic;
use crate::store::postgres::schema::Tables;

/// If this many rows are dead, something keeps them from being removed: autovacuum runs after 50 and a fifth of the others.
const MANY: u64 = 20_000;

/// Checks autovacuum, and what it has left.
pub(super) fn judge(settings: &Settings, found: &[Table], tables: &Tables) -> Vec<Diagnostic> {
    let slow = "the tables grow with every lock, and locks become slow";
    let mut diagnostics = Vec::new();
    // Autovacuum needs track_counts to find its work.
    let off = ["autovacuum", "track_counts"].into_iter().find(|name| settings.text(name) == Some("off"));
    if let Some(name) = off {
        diagnostics.push(Diagnostic::warn(
            format!("rows that are out of date are not removed ({name} off)"),
            format!("{slow}; set {name} on"),
        ));
    }
    for table in found {
        let (name, dead) = (table.in_schema(tables), table.dead);
        if table.is_never_vacuumed {
            diagnostics.push(Diagnostic::warn(
                format!("rows of {name} that are out of date are not removed (autovacuum_enabled off for this table)"),
                format!("{slow}; ALTER TABLE {name} RESET (autovacuum_enabled)"),
            ));
        }
        if dead >= MANY {
            diagnostics.push(Diagnostic::warn(
                format!("{dead} rows of {name} are out of date, and were not removed"),
                "locks become slow; see pg_stat_activity for a transaction that is open for long, pg_replication_slots for a slot that nobody \
                 reads, and whether autovacuum comes to this table",
            ));
        }
    }
    if diagnostics.is_empty() && settings.text("autovacuum").is_some() {
        diagnostics.push(Diagnostic::ok("rows that are out of date are removed (autovacuum)"));
    }
    diagnostics
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::diagnostic::Level;

    #[test]
    fn what_is_never_removed_is_found() {
        let levels = |autovacuum, is_never_vacuumed, dead| -> Vec<Level> {
            let settings = Settings::from([("autovacuum", autovacuum), ("track_counts", "on")]);
            let table = Table { is_never_vacuumed, dead, ..Table::named("locks") };
            judge(&settings, &[table], &Tables::in_schema("x")).iter().map(|found| found.level).collect()
        };
        assert_eq!(levels("on", false, 60), [Level::Ok]);
        assert_eq!(levels("off", false, 0), [Level::Warn]);
        assert_eq!(levels("on", true, 0), [Level::Warn]);
        assert_eq!(levels("on", false, 50_000), [Level::Warn]);
        assert_eq!(levels("off", true, 50_000), [Level::Warn; 3]);
        let uncounted = Settings::from([("autovacuum", "on"), ("track_counts", "off")]);
        assert_eq!(judge(&uncounted, &[], &Tables::in_schema("x"))[0].level, Level::Warn);
        assert!(judge(&Settings::default(), &[], &Tables::in_schema("x")).is_empty());
    }
}
