//! The layers of settings: the command line, the environment, and each file.

use std::ffi::{OsStr, OsString};

use clap::ArgMatches;
use clap::parser::ValueSource;

use super::settings::UsageError;
use crate::cli::ALWAYS;

/// One layer of settings.
pub trait Layer {
    /// Returns the value of an option that takes one, if this layer sets it.
    fn value(&self, name: &str) -> Option<OsString>;
    /// Returns whether this layer turns a switch on or off, if it sets it. Fails if the value is neither.
    fn switch(&self, name: &str) -> Result<Option<bool>, UsageError>;
    /// Returns whether an option with an optional value is turned on or off here without one.
    fn on_or_off(&self, name: &str) -> Option<bool>;
    /// Returns the option as this layer spells it, for messages.
    fn spell(&self, name: &str) -> String;
}

/// Returns whether a value means on or off; `None` if it is neither.
fn word(value: &OsStr) -> Option<bool> {
    match value.to_str()?.to_ascii_lowercase().as_str() {
        "1" | "true" | "yes" | "on" => Some(true),
        "0" | "false" | "no" | "off" => Some(false),
        _ => None,
    }
}

/// The words of the command line.
pub struct Typed<'a>(pub &'a ArgMatches);

impl Layer for Typed<'_> {
    fn value(&self, name: &str) -> Option<OsString> {
        self.0.try_get_one::<OsString>(name).ok().flatten().cloned()
    }

    fn switch(&self, name: &str) -> Result<Option<bool>, UsageError> {
        // Not every command has every switch that a variable can set.
        let is_typed = self.0.try_contains_id(name).is_ok_and(|there| there)
            && self.0.value_source(name) == Some(ValueSource::CommandLine);
        Ok(is_typed.then(|| self.0.get_flag(name)))
    }

    fn on_or_off(&self, name: &str) -> Option<bool> {
        self.value(name).filter(|value| value == ALWAYS).map(|_| true)
    }

    fn spell(&self, name: &str) -> String {
        format!("--{name}")
    }
}

/// `LOCKRUN_…` variables.
pub struct Environment<'a>(pub &'a dyn Fn(&str) -> Option<OsString>);

impl Layer for Environment<'_> {
    fn value(&self, name: &str) -> Option<OsString> {
        (self.0)(&self.spell(name))
    }

    fn switch(&self, name: &str) -> Result<Option<bool>, UsageError> {
        let Some(value) = self.value(name).filter(|value| !value.is_empty()) else { return Ok(None) };
        // The value is not repeated: it may be a secret that was meant for another variable.
        let neither = || format!("{}: is neither true nor false", self.spell(name));
        Ok(Some(word(&value).ok_or_else(neither)?))
    }

    fn on_or_off(&self, name: &str) -> Option<bool> {
        word(&self.value(name)?)
    }

    fn spell(&self, name: &str) -> String {
        variable(name)
    }
}

/// The prefix of all of lockrun's variables.
pub const PREFIX: &str = "LOCKRUN_";

/// Returns the name of an option's variable.
pub fn variable(name: &str) -> String {
    let mut variable = String::with_capacity(32);
    variable.push_str(PREFIX);
    variable.extend(name.bytes().map(|byte| char::from(if byte == b'-' { b'_' } else { byte.to_ascii_uppercase() })));
    variable
}
