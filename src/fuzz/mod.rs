//! The fuzz targets: all code that parses input from outside. `make fuzz` searches for inputs that make a target panic.
//! Inputs that once did, and examples of each kind, are in `fuzz/corpus`; every run of the tests tries them.
//!
//! A target is a function that panics if an invariant does not hold. Each target is next to the code that it tests.

#[cfg(test)]
mod replay;

use crate::commands::status;
use crate::config;
use crate::store;
use crate::text;

/// A fuzz target.
pub struct Target {
    /// Its name, which is also that of its directory in the corpus.
    pub name: &'static str,
    run: fn(&[u8]),
}

impl Target {
    /// Tries one input. Panics if that breaks an invariant.
    pub fn run(&self, input: &[u8]) {
        // An input with the password, which the fuzzer can learn from comparisons, would put it into any output.
        if !String::from_utf8_lossy(input).contains(PASSWORD) {
            (self.run)(input);
        }
    }
}

/// All targets.
pub const TARGETS: [Target; 15] = [
    Target { name: "url", run: store::fuzz::url },
    Target { name: "duration", run: text::fuzz::duration },
    Target { name: "words", run: text::fuzz::words },
    Target { name: "config", run: config::fuzz::file },
    Target { name: "variables", run: config::fuzz::variables },
    Target { name: "record", run: store::fuzz::record },
    Target { name: "resp", run: store::fuzz::resp },
    Target { name: "redis", run: store::fuzz::redis },
    Target { name: "failover", run: store::fuzz::failover },
    Target { name: "postgres", run: store::fuzz::postgres },
    Target { name: "mysql", run: store::fuzz::mysql },
    Target { name: "etcd", run: store::fuzz::etcd },
    Target { name: "pgpass", run: store::fuzz::pgpass },
    Target { name: "mycnf", run: store::fuzz::mycnf },
    Target { name: "status", run: status::fuzz::status },
];

/// A password that no input contains by chance, and no message may contain.
pub const PASSWORD: &str = "pw0rd-0f-0urs";

/// Checks that a text for people does not contain the password.
pub fn check_secret(text: &str) {
    assert!(!text.contains(PASSWORD), "the password is said: {text:?}");
}

/// Checks that a text is safe to show on a terminal: it has no control character except newline, and none that deceives
/// its reader.
pub fn check_harmless(text: &str) {
    let escaped = text::escape::escaped_lines(text);
    assert_eq!(escaped.trim_end_matches('\n'), text.trim_end_matches('\n'), "it is not escaped");
}
