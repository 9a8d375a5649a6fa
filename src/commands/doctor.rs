//! Says what would make locks in a store unsafe or slow.

use std::io::{self, Write as _};

use anyhow::{Context, Result};

use super::open;
use crate::config::settings::Settings;
use crate::report::diagnostic::{Finding, Level};
use crate::run::outcome::Outcome;

/// Lets the store examine itself, and prints what it finds. The worst finding decides the outcome. Fails if nothing can be
/// printed, or with [`crate::config::settings::Wrong`] if the settings are not right.
pub fn run(settings: &Settings<'_>) -> Result<Outcome> {
    let findings = open(settings, None)?.examine();
    print(&findings).context("cannot print what was found")?;
    Ok(outcome(&findings))
}

/// Writes a line for each finding.
fn print(findings: &[Finding]) -> io::Result<()> {
    let mut out = io::stdout().lock();
    for finding in findings {
        writeln!(out, "{finding}")?;
    }
    out.flush()
}

/// What the findings come to.
fn outcome(findings: &[Finding]) -> Outcome {
    match findings.iter().map(|finding| finding.level).max() {
        Some(Level::Ok | Level::Note) => Outcome::Printed,
        Some(Level::Warn) => Outcome::Weak,
        Some(Level::Fail) => Outcome::Unsafe,
        // A store that has nothing to say of itself has not been examined.
        Some(Level::Unusable) | None => Outcome::StoreFailed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_worst_finding_decides() {
        let (ok, warn) = (Finding::ok("a"), Finding::warn("b", ""));
        let (fail, unusable) = (Finding::fail("c", ""), Finding::unusable("d", ""));
        assert_eq!(outcome(&[ok.clone(), Finding::note("e", "")]), Outcome::Printed);
        assert_eq!(outcome(&[warn.clone(), ok.clone()]), Outcome::Weak);
        assert_eq!(outcome(&[fail.clone(), warn]), Outcome::Unsafe);
        assert_eq!(outcome(&[unusable, fail, ok]), Outcome::StoreFailed);
        assert_eq!(outcome(&[]), Outcome::StoreFailed);
    }
}
