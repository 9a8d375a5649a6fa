//! `lockrun doctor`: reports what would make locks in a store unsafe or slow, or prints the SQL of its tables.

use anyhow::{Context, Result};
use serde_json::json;

use super::open;
use crate::cli::name;
use crate::config::settings::{Settings, UsageError};
use crate::run::outcome::Outcome;
use crate::store::diagnostic::{Diagnostic, Level};
use crate::sys::{stdio, terminal};
use crate::text::colour::Colour;
use crate::text::escape::json_for_terminals;

/// Diagnoses the store, and prints a line for each diagnostic, or all as JSON. The worst one decides the outcome. With
/// `--schema`, prints the SQL of the store's tables instead. Fails if nothing can be printed, or with [`UsageError`] if
/// a setting is wrong.
pub fn run(settings: &Settings<'_>) -> Result<Outcome> {
    if settings.typed_switch(name::SCHEMA) {
        if settings.typed_switch(name::JSON) {
            return Err(UsageError::from("--schema and --json exclude each other").into());
        }
        return print_schema(settings);
    }
    let diagnostics = open(settings, None)?.diagnose();
    let text = if settings.typed_switch(name::JSON) { json(&diagnostics) } else { lines(&diagnostics) };
    stdio::print(&text).context("cannot print the diagnostics")?;
    Ok(outcome(&diagnostics))
}

/// Prints the SQL of the store's tables. Connects to nothing.
fn print_schema(settings: &Settings<'_>) -> Result<Outcome> {
    // It limits nothing here, but a wrong value is an error everywhere.
    settings.store_timeout()?;
    let no_tables = || {
        UsageError::from(
            "--schema: only a store in PostgreSQL or MySQL has tables; name it with --store postgres://HOST/DATABASE or mysql://HOST/DATABASE",
        )
    };
    let schema = settings.store()?.schema().ok_or_else(no_tables)?;
    stdio::print(&schema).context("cannot print the schema")?;
    Ok(Outcome::Printed)
}

/// Returns a line for each diagnostic, with its first word in colour on a terminal.
fn lines(diagnostics: &[Diagnostic]) -> String {
    let colours = terminal::stdout_has_colours();
    let line = |diagnostic: &Diagnostic| {
        let line = diagnostic.to_string();
        let (word, rest) = line.split_at(line.find(' ').unwrap_or(line.len()));
        let colour = match diagnostic.level {
            Level::Ok => Colour::Green,
            Level::Note => Colour::Faint,
            Level::Warn => Colour::Yellow,
            Level::Fail | Level::Unusable => Colour::Red,
        };
        let word = if colours { colour.paint(word) } else { word.to_owned() };
        format!("{word}{rest}\n")
    };
    diagnostics.iter().map(line).collect()
}

/// Returns the diagnostics as a JSON object, with a newline.
fn json(diagnostics: &[Diagnostic]) -> String {
    let worst = worst(diagnostics).unwrap_or(Level::Unusable).name();
    let all: Vec<_> = diagnostics
        .iter()
        .map(|it| json!({ "level": it.level.name(), "finding": it.text, "advice": it.advice }))
        .collect();
    json_for_terminals(&format!("{:#}\n", json!({ "version": 1, "worst": worst, "diagnostics": all })))
}

/// Returns the worst level; `None` if there is no diagnostic.
fn worst(diagnostics: &[Diagnostic]) -> Option<Level> {
    diagnostics.iter().map(|diagnostic| diagnostic.level).max()
}

/// Returns the outcome for the worst diagnostic.
fn outcome(diagnostics: &[Diagnostic]) -> Outcome {
    match worst(diagnostics) {
        Some(Level::Ok | Level::Note) => Outcome::Printed,
        Some(Level::Warn) => Outcome::Weak,
        Some(Level::Fail) => Outcome::Unsafe,
        // Without a diagnostic the store was not diagnosed.
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
