//! Fuzzing of configuration files and variables, up to the plan of a run.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::sync::LazyLock;

use clap::ArgMatches;

use super::files::{self, File};
use super::layer::{Layer as _, PREFIX, variable};
use super::settings::{Settings, UsageError};
use super::{plan, variables as names};
use crate::cli;
use crate::fuzz::{PASSWORD, check_harmless, check_secret};
use crate::text::escape::escaped_lines;

/// A command line that sets nothing but the key and the command.
static TYPED: LazyLock<ArgMatches> = LazyLock::new(|| {
    cli::command().try_get_matches_from(["lockrun", "--key", "k", "--", "true"]).expect("is a command line")
});

/// Fuzzes a configuration file: its settings survive being written and read again, and no message reveals a password.
pub fn file(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    if let Some(file) = read(&text) {
        let again = read(&written(&file)).expect("is read again");
        for name in files::option_names() {
            assert_eq!(again.value(name), file.value(name), "{name}");
        }
        settle(Some(file), &[]);
    }
    for (at, mark) in text.match_indices(['=', '"', '\'', '\n']).take(8) {
        let (before, after) = text.split_at(at + mark.len());
        for planted in [format!("redis://u:{PASSWORD}@h"), format!("u:{PASSWORD}@h"), format!("u:'{PASSWORD}@h")] {
            settle(read(&format!("{before}{planted}{after}")), &[]);
        }
    }
}

/// Returns the file, if it can be read.
fn read(text: &str) -> Option<File> {
    let read = File::parse("/etc/lockrun.toml".as_ref(), text, 0o644);
    read.map_err(|error| check_message(&error)).ok()
}

/// Returns the text of a file with the same settings.
fn written(file: &File) -> String {
    let line = |name: &str| {
        let value = file.value(name)?.into_string().ok()?;
        let quoted = serde_json::to_string(&value).ok()?.replace('\x7f', "\\u007f");
        let lines = [format!("{name} = {value}\n"), format!("{name} = {quoted}\n")];
        lines.into_iter().find(|line| {
            !line.trim_end().contains('\n')
                && File::parse(OsStr::new("f"), line, 0)
                    .is_ok_and(|file| file.value(name) == Some(OsString::from(&value)))
        })
    };
    files::option_names().filter_map(line).collect()
}

/// Fuzzes the environment, given as lines `NAME=VALUE`.
pub fn variables(data: &[u8]) {
    let mut variables: Vec<(OsString, OsString)> = Vec::new();
    for line in data.split(|byte| *byte == b'\n') {
        let at = line.iter().position(|byte| *byte == b'=').unwrap_or(line.len());
        let (name, value) = (OsStr::from_bytes(&line[..at]), OsStr::from_bytes(line.get(at + 1..).unwrap_or_default()));
        if name.as_bytes().starts_with(PREFIX.as_bytes())
            && let Err(error) = names::check(name)
        {
            check_message(&error);
            check_harmless(&error.to_string());
        }
        variables.push((name.into(), value.into()));
    }
    settle(None, &variables);
    let mut value = variables.first().map(|(_, value)| value.clone()).unwrap_or_default();
    value.push(format!("redis://u:{PASSWORD}@h"));
    for name in files::option_names() {
        settle(None, &[(variable(name).into(), value.clone())]);
    }
}

/// Makes the plan of a run with these settings, if they are compatible.
fn settle(file: Option<File>, variables: &[(OsString, OsString)]) {
    if let Some(warning) = file.as_ref().and_then(File::warning) {
        check_secret(&warning);
    }
    let environment = |name: &str| variables.iter().find(|(known, _)| known == name).map(|(_, value)| value.clone());
    let read_file = |path: &Path| match path.to_str() {
        Some("/url") => Ok(format!("redis://u:{PASSWORD}@h\n")),
        _ => Err(io::ErrorKind::NotFound.into()),
    };
    let settings = Settings::new(&TYPED, &environment, file.into_iter().collect(), &read_file);
    match plan::make(&settings) {
        Ok(plan) if plan.expires && plan.store.has_leases() => assert_eq!(plan.terms.check(), Ok(())),
        Ok(_) => {}
        Err(error) => check_message(&error),
    }
}

fn check_message(error: &UsageError) {
    let why = error.to_string();
    check_secret(&why);
    check_harmless(&escaped_lines(&why));
}
