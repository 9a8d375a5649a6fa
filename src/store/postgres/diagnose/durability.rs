//! What the server still knows after a crash.

use postgres_protocol::escape::escape_identifier;

use super::settings::Settings;
use crate::store::diagnostic::Diagnostic;

/// What a forgotten lock means.
const FORGOTTEN: &str = "and another run gets one while its first command runs";

/// Looks at what reaches the server's disk before it answers, for our `role`.
pub(super) fn judge(settings: &Settings, role: &str) -> Vec<Diagnostic> {
    let names = ["fsync", "full_page_writes", "synchronous_commit"];
    let [Some(fsync), Some(pages), Some(commit)] = names.map(|name| settings.text(name)) else {
        return vec![Diagnostic::note(
            "the server does not tell what it keeps on its disk",
            "see by hand that SHOW fsync is on, and SHOW synchronous_commit is not off",
        )];
    };
    let mut diagnostics = Vec::new();
    if fsync == "off" {
        diagnostics.push(Diagnostic::fail(
            "the server does not wait until its writes reach the disk (fsync off)",
            format!(
                "a power failure forgets locks, {FORGOTTEN}, and may leave a database that cannot be read; set fsync on"
            ),
        ));
    }
    if pages == "off" {
        diagnostics.push(Diagnostic::warn(
            "pages that a power failure has cut off cannot be repaired (full_page_writes off)",
            "the tables may be damaged then; set full_page_writes on, unless the file system writes each page as a whole, as ZFS does",
        ));
    }
    if commit == "off" {
        // "The maximum delay is three times wal_writer_delay."
        let delay = settings.number("wal_writer_delay").unwrap_or(200).saturating_mul(3);
        diagnostics.push(Diagnostic::fail(
            format!("the server answers before it keeps what it was told (synchronous_commit off for role \"{role}\")"),
            format!(
                "a crash forgets the locks of the last {delay} ms, {FORGOTTEN}; ALTER ROLE {} SET synchronous_commit = on",
                escape_identifier(role)
            ),
        ));
    }
    if diagnostics.is_empty() {
        diagnostics.push(Diagnostic::ok(format!(
            "a crash forgets nothing (fsync on, full_page_writes on, synchronous_commit {commit})"
        )));
    }
    diagnostics
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::diagnostic::Level;

    #[test]
    fn what_a_crash_forgets_is_found() {
        let levels = |fsync, pages, commit| -> Vec<Level> {
            let pairs = [("fsync", fsync), ("full_page_writes", pages), ("synchronous_commit", commit)];
            judge(&Settings::from(pairs), "app").iter().map(|diagnostic| diagnostic.level).collect()
        };
        for commit in ["on", "local", "remote_write", "remote_apply"] {
            assert_eq!(levels("on", "on", commit), [Level::Ok]);
        }
        assert_eq!(levels("off", "on", "on"), [Level::Fail]);
        assert_eq!(levels("on", "off", "on"), [Level::Warn]);
        assert_eq!(levels("on", "on", "off"), [Level::Fail]);
        assert_eq!(levels("off", "off", "off"), [Level::Fail, Level::Warn, Level::Fail]);
        assert_eq!(judge(&Settings::default(), "app")[0].level, Level::Note);
    }

    #[test]
    fn how_much_is_forgotten_is_told() {
        let pairs =
            [("fsync", "on"), ("full_page_writes", "on"), ("synchronous_commit", "off"), ("wal_writer_delay", "500")];
        let found = judge(&Settings::from(pairs), "a\"b");
        assert!(found[0].advice.contains("1500 ms") && found[0].advice.contains("ROLE \"a\"\"b\" SET"), "{found:?}");
    }
}
