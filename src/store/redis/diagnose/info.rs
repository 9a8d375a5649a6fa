//! What the server says of its memory, its disk and its replicas.

use std::collections::BTreeMap;
use std::time::Duration;

use super::Session;
use crate::store::diagnostic::{Diagnostic, FORGOTTEN, LOST_BY_FAILOVER};
use crate::store::redis::failure::Failure;
use crate::store::redis::reply;
use crate::text::duration;

/// The parameters of the server that matter to locks, and are not in the answer to INFO.
const PARAMETERS: [&str; 3] = ["appendfsync", "save", "min-replicas-to-write"];

/// The share of its memory, in percent, from which on a server counts as nearly full.
const NEARLY_FULL: u64 = 90;

/// The fields of the answer to INFO, and the [`PARAMETERS`].
pub(super) struct Info(BTreeMap<String, String>);

impl Info {
    /// Asks for the fields; `None` if our user may not run INFO.
    pub(super) fn ask(session: &mut Session) -> Result<Option<Self>, Failure> {
        let answer = session.try_ask(&redis::cmd("INFO"))?;
        Ok(answer.as_ref().and_then(reply::text).map(|text| Info::read(&text)))
    }

    /// Asks for the parameters. Those that our user may not see are missing.
    pub(super) fn ask_parameters(&mut self, session: &mut Session) -> Result<(), Failure> {
        for name in PARAMETERS {
            if let Some(value) = session.parameter(name)? {
                self.0.insert(name.to_owned(), value);
            }
        }
        Ok(())
    }

    /// Reads lines of `NAME:VALUE`.
    fn read(text: &str) -> Self {
        let field = |line: &str| line.split_once(':').map(|(name, value)| (name.to_owned(), value.trim().to_owned()));
        Info(text.lines().filter_map(field).collect())
    }

    /// Returns the value of a field or parameter.
    pub(super) fn text(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }

    /// Returns the value, if it is a number.
    fn number(&self, name: &str) -> Option<u64> {
        self.text(name)?.parse().ok()
    }

    /// Judges whether the server may evict a lock, or has no room for one.
    pub(super) fn judge_memory(&self) -> Vec<Diagnostic> {
        let (Some(policy), Some(limit)) = (self.text("maxmemory_policy"), self.number("maxmemory")) else {
            return vec![Diagnostic::note(
                "the server does not say what it does when its memory is full",
                "see by hand that CONFIG GET maxmemory-policy is noeviction",
            )];
        };
        let evicted = self.number("evicted_keys").unwrap_or(0);
        let used = self.number("used_memory").unwrap_or(0);
        let mut diagnostics = vec![if policy == "noeviction" || limit == 0 {
            Diagnostic::ok(format!("nothing is evicted (maxmemory {limit}, maxmemory-policy {policy})"))
        } else {
            Diagnostic::fail(
                format!("keys are evicted when memory is full (maxmemory-policy {policy}; {evicted} so far)"),
                "a lock that is evicted is lost while its command runs, and another run gets it; set maxmemory-policy \
                 noeviction",
            )
        }];
        if limit > 0 && used.saturating_mul(100) >= limit.saturating_mul(NEARLY_FULL) {
            diagnostics.push(Diagnostic::warn(
                format!("memory is nearly full: {} of {} KiB", used >> 10, limit >> 10),
                "a server that is full refuses new locks (status 69); raise maxmemory, or make room",
            ));
        }
        diagnostics
    }

    /// Judges what the server still knows after a restart. `grace_ms`: for how long nothing is granted then.
    pub(super) fn judge_persistence(&self, grace_ms: u64) -> Vec<Diagnostic> {
        let mut diagnostics = vec![self.judge_durability(grace_ms)];
        for (name, what) in [("aof_last_write_status", "append-only file"), ("rdb_last_bgsave_status", "last snapshot")]
        {
            if self.text(name).is_some_and(|status| status != "ok") {
                diagnostics.push(Diagnostic::fail(
                    format!("the server could not write its {what} ({name})"),
                    "a restart forgets locks, and meanwhile the server may refuse new ones (status 69); see its log and \
                     its disk",
                ));
            }
        }
        diagnostics
    }

    fn judge_durability(&self, grace_ms: u64) -> Diagnostic {
        let unknown = "could not be looked at";
        let (fsync, save) = (self.text("appendfsync").unwrap_or(unknown), self.text("save"));
        match self.text("aof_enabled") {
            Some("1") if fsync == "no" => Diagnostic::warn(
                "the kernel decides when the append-only file reaches the disk (appendfsync no)",
                format!(
                    "a power failure forgets the last half minute, {FORGOTTEN}; set appendfsync everysec, or always"
                ),
            ),
            Some("1") => {
                let at_most = if fsync == "everysec" { ", a power failure at most the last two seconds" } else { "" };
                Diagnostic::ok(format!("a restart forgets nothing{at_most} (appendonly yes, appendfsync {fsync})"))
            }
            Some("0") if save == Some("") && grace_ms > 0 => Diagnostic::note(
                format!(
                    "nothing is kept on disk (appendonly no, save \"\"), and nothing is granted for {} after a restart",
                    duration::say(Duration::from_millis(grace_ms))
                ),
                "that must be as long as the longest --ttl; a restart forgets locks by hand and those with --ttl none \
                 all the same",
            ),
            Some("0") if save == Some("") => Diagnostic::warn(
                "nothing is kept on disk (appendonly no, save \"\")",
                format!(
                    "a restart forgets all locks, {FORGOTTEN}; set appendonly yes, or add ?grace=DURATION to the URL, \
                     as long as the longest --ttl"
                ),
            ),
            Some("0") => Diagnostic::warn(
                format!("no append-only file is kept (appendonly no, save {})", save.unwrap_or(unknown)),
                format!(
                    "a restart forgets all locks since the last snapshot, if there is one, and holds old ones, \
                     {FORGOTTEN}; set appendonly yes"
                ),
            ),
            _ => Diagnostic::note(
                "the server does not say what it keeps on disk",
                "see by hand that CONFIG GET appendonly is yes",
            ),
        }
    }

    /// Judges what a failover from this primary to a replica may lose, where lockrun does not follow failovers.
    pub(super) fn judge_replicas(&self) -> Option<Diagnostic> {
        let replicas = self.number("connected_slaves").filter(|_| self.text("role") == Some("master"))?;
        if replicas == 0 {
            return Some(Diagnostic::ok("it has no replicas, so no failover can lose a lock"));
        }
        let to_write = self.text("min-replicas-to-write").unwrap_or("could not be looked at");
        let more = if to_write == "0" {
            ", and set min-replicas-to-write 1, so that a primary that was cut off from its replicas stops granting \
             locks after min-replicas-max-lag"
        } else {
            ""
        };
        Some(Diagnostic::warn(
            format!(
                "it has replicas ({replicas} connected), which get each write later (min-replicas-to-write {to_write})"
            ),
            format!("{LOST_BY_FAILOVER}{more}"),
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::diagnostic::Level;

    fn levels(diagnostics: &[Diagnostic]) -> Vec<Level> {
        diagnostics.iter().map(|diagnostic| diagnostic.level).collect()
    }

    #[test]
    fn lines_are_found_by_their_whole_name() {
        let info = Info::read("# Memory\r\nmaxmemory_human:0B\r\nmaxmemory:17\r\nempty:\r\n");
        assert_eq!((info.number("maxmemory"), info.text("maxmemory_human")), (Some(17), Some("0B")));
        assert_eq!((info.text("empty"), info.text("max")), (Some(""), None));
    }

    #[test]
    fn eviction_and_fullness_are_found() {
        let found = |policy: &str, limit: u64, used: u64| {
            let text = format!("used_memory:{used}\r\nmaxmemory:{limit}\r\nmaxmemory_policy:{policy}\r\n");
            levels(&Info::read(&text).judge_memory())
        };
        assert_eq!(found("noeviction", 0, 5), [Level::Ok]);
        assert_eq!(found("noeviction", 1000, 5), [Level::Ok]);
        assert_eq!(found("noeviction", 1000, 900), [Level::Ok, Level::Warn]);
        assert_eq!(found("allkeys-lru", 0, 5), [Level::Ok]);
        assert_eq!(found("allkeys-lru", 1000, 5), [Level::Fail]);
        // Most keys of a lock expire.
        assert_eq!(found("volatile-ttl", 1000, 5), [Level::Fail]);
        assert_eq!(levels(&Info::read("").judge_memory()), [Level::Note]);
    }

    #[test]
    fn what_a_restart_forgets_is_found() {
        let found = |text: &str, grace_ms| Info::read(text).judge_durability(grace_ms);
        assert_eq!(found("aof_enabled:1\nappendfsync:always\nsave:", 0).level, Level::Ok);
        assert_eq!(found("aof_enabled:1\nappendfsync:everysec", 0).level, Level::Ok);
        assert_eq!(found("aof_enabled:1", 0).level, Level::Ok);
        assert_eq!(found("aof_enabled:1\nappendfsync:no", 0).level, Level::Warn);
        let none = found("aof_enabled:0\nappendfsync:everysec\nsave:", 0);
        assert!(none.level == Level::Warn && none.advice.contains("?grace="), "{none}");
        assert_eq!(found("aof_enabled:0\nsave:", 30_000).level, Level::Note);
        let snapshots = found("aof_enabled:0\nappendfsync:everysec\nsave:3600 1", 0);
        assert!(snapshots.level == Level::Warn && snapshots.advice.contains("snapshot"), "{snapshots}");
        assert_eq!(found("aof_enabled:0", 0).level, Level::Warn);
        assert_eq!(found("aof_enabled:0", 30_000).level, Level::Warn);
        assert_eq!(found("", 0).level, Level::Note);
    }

    #[test]
    fn a_disk_that_fails_is_found() {
        let found = |text: &str| levels(&Info::read(&format!("aof_enabled:1\r\n{text}\r\n")).judge_persistence(0));
        assert_eq!(found("aof_last_write_status:ok\r\nrdb_last_bgsave_status:ok"), [Level::Ok]);
        assert_eq!(found("aof_last_write_status:err"), [Level::Ok, Level::Fail]);
        assert_eq!(found("rdb_last_bgsave_status:err"), [Level::Ok, Level::Fail]);
    }

    #[test]
    fn replicas_are_a_risk() {
        let found = |replicas: u8, more: &str| {
            let info = Info::read(&format!("role:master\r\nconnected_slaves:{replicas}\r\n{more}"));
            info.judge_replicas().expect("is a primary")
        };
        assert_eq!(found(0, "min-replicas-to-write:0").level, Level::Ok);
        let alone = found(2, "min-replicas-to-write:0");
        assert!(alone.level == Level::Warn && alone.advice.contains("min-replicas-to-write 1"), "{alone}");
        let bound = found(2, "min-replicas-to-write:1");
        assert!(bound.level == Level::Warn && !bound.advice.contains("set min-replicas"), "{bound}");
        assert_eq!(found(1, "").level, Level::Warn);
        assert_eq!(Info::read("role:slave\r\nconnected_slaves:1").judge_replicas(), None);
    }
}
