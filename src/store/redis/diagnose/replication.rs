//! What a failover to a replica may lose.

use super::report::Report;
use crate::store::diagnostic::Diagnostic;

/// Judges the replicas of a primary; `to_write` is its parameter min-replicas-to-write, if we may know it. `is_followed`:
/// lockrun follows failovers, and sits out what they lose.
pub(super) fn diagnose(report: &Report, to_write: Option<&str>, is_followed: bool) -> Option<Diagnostic> {
    let replicas = report.number("connected_slaves")?;
    if report.text("role") != Some("master") {
        return None;
    }
    if is_followed {
        return Some(match to_write {
            Some("0") => Diagnostic::note(
                format!("it takes writes without its replicas ({replicas} connected)"),
                "no lock is held twice for that; with min-replicas-to-write 1 a primary that is cut off stops granting locks that \
                 would be lost again",
            ),
            _ => Diagnostic::ok(format!("it has replicas ({replicas} connected), and a failover to them is followed")),
        });
    }
    if replicas == 0 {
        return Some(Diagnostic::ok("it has no replicas, so no failover can lose a lock"));
    }
    let lost = "a failover may lose what was written last: a lock that was just granted is free on the new primary, \
                and another run gets it while the first command runs; let the fence guard what matters";
    Some(match to_write {
        Some("0") => Diagnostic::warn(
            format!(
                "it has replicas ({replicas} connected), which get each write later, and it takes writes without them"
            ),
            format!(
                "{lost}, and set min-replicas-to-write 1, so that a primary that was cut off from its replicas stops \
                 granting locks after min-replicas-max-lag"
            ),
        ),
        _ => Diagnostic::warn(
            format!(
                "it has replicas ({replicas} connected), which get each write later (min-replicas-to-write {})",
                to_write.unwrap_or("could not be looked at")
            ),
            lost,
        ),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::diagnostic::Level;

    #[test]
    fn replicas_are_a_risk() {
        let diagnose = |replicas: u8, to_write| {
            let report = Report::new(format!("role:master\r\nconnected_slaves:{replicas}\r\n"));
            diagnose(&report, to_write, false).expect("is a primary")
        };
        assert_eq!(diagnose(0, Some("0")).level, Level::Ok);
        let alone = diagnose(2, Some("0"));
        assert!(alone.level == Level::Warn && alone.advice.contains("min-replicas-to-write 1"), "{alone}");
        let bound = diagnose(2, Some("1"));
        assert!(bound.level == Level::Warn && !bound.advice.contains("set min-replicas"), "{bound}");
        assert_eq!(diagnose(1, None).level, Level::Warn);
    }
}
