//! The user's settings from the command line, `LOCKRUN_…` variables, the user's configuration file and the system's, in
//! order of precedence.
//!
//! Pure, except that [`super::files`] reads the configuration and the caller's function reads the file that
//! `--store-file` names.

use std::ffi::OsString;
use std::fmt;
use std::io;
use std::path::Path;
use std::time::Duration;

use clap::ArgMatches;

pub use super::common::{DEFAULT_STORE_TIMEOUT, DEFAULT_TTL, Keys, OnHeld, nonzero_duration};

pub use crate::lock::lease::Ttl;

use super::layer::{Environment, Layer, Typed};
use crate::text::duration;
use crate::text::escape::without_value;

/// An error in the command line or the configuration, in the user's own terms.
#[derive(Debug)]
pub struct UsageError(String);

impl fmt::Display for UsageError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for UsageError {}

impl<T: Into<String>> From<T> for UsageError {
    fn from(why: T) -> Self {
        UsageError(why.into())
    }
}

/// Reads the text of a file.
pub type ReadFile<'a> = &'a dyn Fn(&Path) -> io::Result<String>;

/// All settings of one command, the layer with the highest precedence first.
pub struct Settings<'a> {
    matches: &'a ArgMatches,
    layers: Vec<Box<dyn Layer + 'a>>,
    pub(super) read_file: ReadFile<'a>,
}

impl<'a> Settings<'a> {
    /// Combines the settings of the command line, the environment and the configuration files.
    pub fn new(
        matches: &'a ArgMatches,
        environment: &'a dyn Fn(&str) -> Option<OsString>,
        files: Vec<super::files::File>,
        read_file: ReadFile<'a>,
    ) -> Self {
        let mut layers: Vec<Box<dyn Layer + 'a>> = vec![Box::new(Typed(matches)), Box::new(Environment(environment))];
        layers.extend(files.into_iter().map(|file| -> Box<dyn Layer> { Box::new(file) }));
        Settings { matches, layers, read_file }
    }

    /// Returns the matches of the command line, for options that can be set nowhere else.
    pub fn typed(&self) -> &ArgMatches {
        self.matches
    }

    /// Returns the value of an option from the command line alone, parsed by `read`, whose error says what is wrong.
    pub fn typed_value<T>(
        &self,
        name: &str,
        read: impl Fn(&str) -> Result<T, String>,
    ) -> Result<Option<T>, UsageError> {
        read_from(&Typed(self.matches), name, read)
    }

    /// Returns whether a switch is on the command line.
    pub fn typed_switch(&self, name: &str) -> bool {
        self.matches.get_flag(name)
    }

    /// Returns the value of an option from the first layer that sets it, parsed by `read`, whose error says what is
    /// wrong.
    pub fn value<T>(&self, name: &str, read: impl Fn(&str) -> Result<T, String>) -> Result<Option<T>, UsageError> {
        Ok(self.value_and_source(name, read)?.map(|(value, _)| value))
    }

    /// Does the same, and returns also how that layer spells the option, for messages.
    pub fn value_and_source<T>(
        &self,
        name: &str,
        read: impl Fn(&str) -> Result<T, String>,
    ) -> Result<Option<(T, String)>, UsageError> {
        for layer in &self.layers {
            if let Some(value) = read_from(layer.as_ref(), name, &read)? {
                return Ok(Some((value, layer.spell(name))));
            }
        }
        Ok(None)
    }

    /// Returns the value of an option that takes a duration.
    pub fn duration(&self, name: &str) -> Result<Option<Duration>, UsageError> {
        self.value(name, duration::parse)
    }

    /// Returns whether a switch is on in the first layer that sets it.
    pub fn switch(&self, name: &str) -> Result<bool, UsageError> {
        for layer in &self.layers {
            if let Some(on) = layer.switch(name)? {
                return Ok(on);
            }
        }
        Ok(false)
    }

    /// Returns which of several mutually exclusive options applies, and its layer: the one set in the first layer that
    /// sets any of them. `is_set` returns whether a layer sets an option, or turns it off for the layers below.
    pub(super) fn one_of<'n>(
        &self,
        names: &[&'n str],
        is_set: impl Fn(&dyn Layer, &str) -> Result<Option<bool>, UsageError>,
    ) -> Result<Option<(&dyn Layer, &'n str)>, UsageError> {
        let mut cancelled = Vec::new();
        for layer in &self.layers {
            let mut there = Vec::new();
            for &name in names {
                if cancelled.contains(&name) {
                    continue;
                }
                match is_set(layer.as_ref(), name)? {
                    Some(true) => there.push(name),
                    Some(false) => cancelled.push(name),
                    None => {}
                }
            }
            match there[..] {
                [] => {}
                [one] => return Ok(Some((layer.as_ref(), one))),
                [one, other, ..] => {
                    return Err(format!("{} and {} exclude each other", layer.spell(one), layer.spell(other)).into());
                }
            }
        }
        Ok(None)
    }
}

/// Returns the value of an option in one layer.
pub(super) fn read_from<T>(
    layer: &dyn Layer,
    name: &str,
    read: impl Fn(&str) -> Result<T, String>,
) -> Result<Option<T>, UsageError> {
    let Some(value) = layer.value(name) else { return Ok(None) };
    let wrong = |why: &str| UsageError(format!("{}: {why}", layer.spell(name)));
    let text = value.to_str().ok_or_else(|| wrong("is not valid UTF-8"))?;
    // A store's address may have been meant for another option.
    read(text).map(Some).map_err(|why| wrong(&without_value(text, &why)))
}
