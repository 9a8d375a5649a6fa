//! What the server still knows after a crash.

use super::settings::Settings;
use crate::store::diagnostic::{Diagnostic, FORGOTTEN};

/// Checks what reaches the server's disk before the server answers.
pub(super) fn judge(settings: &Settings) -> Vec<Diagnostic> {
    let names = ["fsync", "full_page_writes", "synchronous_commit"];
    let [Some(fsync), Some(pages), Some(commit)] = names.map(|name| settings.text(name)) else {
        return vec![Diagnostic::note(
            "the server does not tell what it keeps on its disk",
            "see by hand that SHOW fsync is on, and SHOW full_page_writes is on",
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
    if diagnostics.is_empty() {
        diagnostics.push(Diagnostic::ok(format!(
            "a crash forgets nothing (fsync on, full_page_writes on, synchronous_commit {})",
            if commit == "off" { "off, but not for lockrun's transactions" } else { commit }
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
            judge(&Settings::from(pairs)).iter().map(|diagnostic| diagnostic.level).collect()
        };
        for commit in ["on", "off", "local", "remote_write", "remote_apply"] {
            assert_eq!(levels("on", "on", commit), [Level::Ok]);
        }
        assert_eq!(levels("off", "on", "on"), [Level::Fail]);
        assert_eq!(levels("on", "off", "on"), [Level::Warn]);
        assert_eq!(levels("off", "off", "off"), [Level::Fail, Level::Warn]);
        assert_eq!(judge(&Settings::default())[0].level, Level::Note);
    }
}
