//! What the server still knows after a restart.

use std::time::Duration;

use super::report::Report;
use crate::store::diagnostic::Diagnostic;
use crate::text::duration;

/// What it means to lose a lock.
const FORGOTTEN: &str = "and another run gets one while its first command runs";

/// Judges what the server writes to its disk; `fsync` and `save` are those parameters, where they may be known. `grace_ms`: for how
/// long nothing is granted after its start.
pub(super) fn diagnose(report: &Report, fsync: Option<&str>, save: Option<&str>, grace_ms: u64) -> Vec<Diagnostic> {
    let mut diagnostics = vec![judge(report.text("aof_enabled"), fsync, save, grace_ms)];
    for (name, what) in [("aof_last_write_status", "append-only file"), ("rdb_last_bgsave_status", "last snapshot")] {
        if report.text(name).is_some_and(|status| status != "ok") {
            diagnostics.push(Diagnostic::fail(
                format!("the server could not write its {what} ({name})"),
                "a restart forgets locks, and meanwhile the server may refuse new ones (status 69); see its log and its disk",
            ));
        }
    }
    diagnostics
}

fn judge(aof: Option<&str>, fsync: Option<&str>, save: Option<&str>, grace_ms: u64) -> Diagnostic {
    match (aof, fsync, save) {
        (Some("1"), Some("no"), _) => Diagnostic::warn(
            "every write is kept in an append-only file, but the kernel decides when it reaches the disk (appendfsync no)",
            format!("a power failure forgets the last half minute, {FORGOTTEN}; set appendfsync everysec, or always"),
        ),
        (Some("1"), Some("always"), _) => {
            Diagnostic::ok("a restart forgets nothing (appendonly yes, appendfsync always)")
        }
        (Some("1"), Some(fsync), _) => Diagnostic::ok(format!(
            "a restart forgets nothing, a power failure of the server at most the last second or two (appendonly yes, appendfsync {fsync})"
        )),
        (Some("1"), None, _) => {
            Diagnostic::ok("a restart forgets nothing (appendonly yes; appendfsync could not be looked at)")
        }
        (Some("0"), _, Some("")) if grace_ms > 0 => Diagnostic::note(
            format!(
                "nothing is kept on disk (appendonly no, save \"\"), and nothing is granted for {} after a restart",
                duration::say(Duration::from_millis(grace_ms))
            ),
            "that must be as long as the longest --ttl; a restart forgets locks by hand and those with --ttl none all the same",
        ),
        (Some("0"), _, Some("")) => Diagnostic::warn(
            "nothing is kept on disk (appendonly no, save \"\")",
            format!(
                "a restart forgets all locks, {FORGOTTEN}; set appendonly yes, or add ?grace=DURATION to the URL, as long as the longest --ttl"
            ),
        ),
        (Some("0"), _, Some(save)) => Diagnostic::warn(
            format!("only snapshots are kept on disk (appendonly no, save \"{save}\")"),
            format!(
                "a restart forgets the locks of the last seconds or minutes, and holds old ones, {FORGOTTEN}; set appendonly yes"
            ),
        ),
        (Some("0"), _, None) => Diagnostic::warn(
            "no append-only file is kept (appendonly no; whether there are snapshots could not be looked at)",
            format!("a restart forgets the locks since the last snapshot, or all, {FORGOTTEN}; set appendonly yes"),
        ),
        _ => Diagnostic::note(
            "the server does not tell what it keeps on disk",
            "see by hand that CONFIG GET appendonly is yes",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::diagnostic::Level;

    #[test]
    fn what_a_restart_forgets_is_found() {
        assert_eq!(judge(Some("1"), Some("always"), Some(""), 0).level, Level::Ok);
        assert_eq!(judge(Some("1"), Some("everysec"), None, 0).level, Level::Ok);
        assert_eq!(judge(Some("1"), None, None, 0).level, Level::Ok);
        assert_eq!(judge(Some("1"), Some("no"), None, 0).level, Level::Warn);
        let none = judge(Some("0"), Some("everysec"), Some(""), 0);
        assert!(none.level == Level::Warn && none.advice.contains("?grace="), "{none}");
        assert_eq!(judge(Some("0"), None, Some(""), 30_000).level, Level::Note);
        let snapshots = judge(Some("0"), Some("everysec"), Some("3600 1"), 0);
        assert!(snapshots.level == Level::Warn && snapshots.advice.contains("minutes"), "{snapshots}");
        assert_eq!(judge(Some("0"), None, None, 0).level, Level::Warn);
        assert_eq!(judge(None, None, None, 0).level, Level::Note);
    }

    #[test]
    fn a_disk_that_fails_is_found() {
        let report = |text: &str| Report::new(format!("aof_enabled:1\r\n{text}\r\n"));
        let levels =
            |text| -> Vec<Level> { diagnose(&report(text), None, None, 0).iter().map(|one| one.level).collect() };
        assert_eq!(levels("aof_last_write_status:ok\r\nrdb_last_bgsave_status:ok"), [Level::Ok]);
        assert_eq!(levels("aof_last_write_status:err"), [Level::Ok, Level::Fail]);
        assert_eq!(levels("rdb_last_bgsave_status:err"), [Level::Ok, Level::Fail]);
    }
}
