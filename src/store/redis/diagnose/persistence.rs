//! What the server still knows after a restart.

use super::report::Report;
use crate::store::diagnostic::Diagnostic;

/// What it means to lose a lock.
const FORGOTTEN: &str = "and another run gets one while its first command runs";

/// Judges what the server writes to its disk; `fsync` and `save` are those parameters, where they may be known.
pub(super) fn diagnose(report: &Report, fsync: Option<&str>, save: Option<&str>) -> Vec<Diagnostic> {
    let mut diagnostics = vec![judge(report.text("aof_enabled"), fsync, save)];
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

fn judge(aof: Option<&str>, fsync: Option<&str>, save: Option<&str>) -> Diagnostic {
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
        (Some("0"), _, Some("")) => Diagnostic::warn(
            "nothing is kept on disk (appendonly no, save \"\")",
            format!("a restart forgets all locks, {FORGOTTEN}; set appendonly yes"),
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
        assert_eq!(judge(Some("1"), Some("always"), Some("")).level, Level::Ok);
        assert_eq!(judge(Some("1"), Some("everysec"), None).level, Level::Ok);
        assert_eq!(judge(Some("1"), None, None).level, Level::Ok);
        assert_eq!(judge(Some("1"), Some("no"), None).level, Level::Warn);
        let none = judge(Some("0"), Some("everysec"), Some(""));
        assert!(none.level == Level::Warn && none.advice.contains("all locks"), "{none}");
        let snapshots = judge(Some("0"), Some("everysec"), Some("3600 1"));
        assert!(snapshots.level == Level::Warn && snapshots.advice.contains("minutes"), "{snapshots}");
        assert_eq!(judge(Some("0"), None, None).level, Level::Warn);
        assert_eq!(judge(None, None, None).level, Level::Note);
    }

    #[test]
    fn a_disk_that_fails_is_found() {
        let report = |text: &str| Report::new(format!("aof_enabled:1\r\n{text}\r\n"));
        let levels = |text| -> Vec<Level> { diagnose(&report(text), None, None).iter().map(|one| one.level).collect() };
        assert_eq!(levels("aof_last_write_status:ok\r\nrdb_last_bgsave_status:ok"), [Level::Ok]);
        assert_eq!(levels("aof_last_write_status:err"), [Level::Ok, Level::Fail]);
        assert_eq!(levels("rdb_last_bgsave_status:err"), [Level::Ok, Level::Fail]);
    }
}
