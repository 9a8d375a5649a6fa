//! `lockrun doctor`: reports what would make locks in a store unsafe or slow, or prints the SQL of its tables.

use std::io::{self, Write as _};

use anyhow::{Context, Result};

use super::open;
use crate::cli::name;
use crate::config::settings::{Settings, UsageError};
use crate::run::outcome::Outcome;
use crate::store::diagnostic::{Diagnostic, Level};

/// Diagnoses the store, and prints a line for each diagnostic; the worst one decides the outcome. With `--schema` prints the SQL of its
/// tables instead. Fails if nothing can be printed, or with [`UsageError`] if a setting is wrong.
pub fn run(settings: &Settings<'_>) -> Result<Outcome> {
    if settings.typed_switch(name::SCHEMA) {
        return print_schema(settings);
    }
    let diagnostics = open(settings, None)?.diagnose();
    print(&diagnostics).context("cannot print the diagnostics")?;
    Ok(outcome(&diagnostics))
}

/// Prints the SQL of the store's tables. Connects to nothing.
fn print_schema(settings: &Settings<'_>) -> Result<Outcome> {
    // It bounds nothing here, but a wrong one is an error everywhere.
    settings.store_timeout()?;
    let no_tables = || {
        UsageError::from(
            "--schema: only a store in PostgreSQL has tables; name it with --store postgres://HOST/DATABASE",
        )
    };
    let schema = settings.store()?.schema().ok_or_else(no_tables)?;
    io::stdout().write_all(schema.as_bytes()).context("cannot print the schema")?;
    Ok(Outcome::Printed)
}

/// Writes a line for each diagnostic.
fn print(diagnostics: &[Diagnostic]) -> io::Result<()> {
    let mut out = io::stdout().lock();
    for diagnostic in diagnostics {
        writeln!(out, "{diagnostic}")?;
    }
    out.flush()
}

/// Returns the outcome that the worst diagnostic stands for.
fn outcome(diagnostics: &[Diagnostic]) -> Outcome {
    match diagnostics.iter().map(|diagnostic| diagnostic.level).max() {
        Some(Level::Ok | Level::Note) => Outcome::Printed,
        Some(Level::Warn) => Outcome::Weak,
        Some(Level::Fail) => Outcome::Unsafe,
        // A store without any diagnostic was not diagnosed.
        Some(Level::Unusable) | None => Outcome::StoreFailed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_worst_finding_decides() {
        let (ok, warn) = (Diagnostic::ok("a"), Diagnostic::warn("b", ""));
        let (fail, unusable) = (Diagnostic::fail("c", ""), Diagnostic::unusable("d", ""));
        assert_eq!(outcome(&[ok.clone(), Diagnostic::note("e", "")]), Outcome::Printed);
        assert_eq!(outcome(&[warn.clone(), ok.clone()]), Outcome::Weak);
        assert_eq!(outcome(&[fail.clone(), warn]), Outcome::Unsafe);
        assert_eq!(outcome(&[unusable, fail, ok]), Outcome::StoreFailed);
        assert_eq!(outcome(&[]), Outcome::StoreFailed);
    }
}
