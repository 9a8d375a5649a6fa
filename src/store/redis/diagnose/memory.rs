//! Whether the server may evict a lock, or has no room for one.

use super::report::Report;
use crate::store::diagnostic::Diagnostic;

/// The share of its memory, in percent, from which on a server counts as nearly full.
const NEARLY_FULL: u64 = 90;

/// Judges the limit of the server's memory, and what the server does when it is reached.
pub(super) fn diagnose(report: &Report) -> Vec<Diagnostic> {
    let (Some(policy), Some(limit)) = (report.text("maxmemory_policy"), report.number("maxmemory")) else {
        return vec![Diagnostic::note(
            "the server does not tell what it does when its memory is full",
            "see by hand that CONFIG GET maxmemory-policy is noeviction",
        )];
    };
    let evicted = report.number("evicted_keys").unwrap_or(0);
    let used = report.number("used_memory").unwrap_or(0);
    let mut diagnostics = vec![match (policy, limit) {
        ("noeviction", _) => Diagnostic::ok("nothing is evicted (maxmemory-policy noeviction)"),
        (_, 0) => Diagnostic::ok(format!(
            "nothing is evicted, because memory has no limit (with a maxmemory, maxmemory-policy {policy} would)"
        )),
        _ => Diagnostic::fail(
            format!("keys are evicted when memory is full (maxmemory-policy {policy}; {evicted} so far)"),
            "a lock that is evicted is lost while its command runs, and another run gets it; set maxmemory-policy noeviction",
        ),
    }];
    if limit > 0 && used.saturating_mul(100) >= limit.saturating_mul(NEARLY_FULL) {
        diagnostics.push(Diagnostic::warn(
            format!("memory is nearly full: {} of {} KiB", used >> 10, limit >> 10),
            "a server that is full refuses new locks (status 69); raise maxmemory, or make room",
        ));
    }
    diagnostics
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::diagnostic::Level;

    #[test]
    fn eviction_and_fullness_are_found() {
        let levels = |policy: &str, limit: u64, used: u64| -> Vec<Level> {
            let text = format!("used_memory:{used}\r\nmaxmemory:{limit}\r\nmaxmemory_policy:{policy}\r\n");
            diagnose(&Report::new(text)).into_iter().map(|diagnostic| diagnostic.level).collect()
        };
        assert_eq!(levels("noeviction", 0, 5), [Level::Ok]);
        assert_eq!(levels("noeviction", 1000, 5), [Level::Ok]);
        assert_eq!(levels("noeviction", 1000, 900), [Level::Ok, Level::Warn]);
        assert_eq!(levels("allkeys-lru", 0, 5), [Level::Ok]);
        assert_eq!(levels("allkeys-lru", 1000, 5), [Level::Fail]);
        // Most keys of a lock expire.
        assert_eq!(levels("volatile-ttl", 1000, 5), [Level::Fail]);
        assert_eq!(diagnose(&Report::new(String::new()))[0].level, Level::Note);
    }
}
