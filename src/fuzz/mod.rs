//! What is fuzzed: everything that reads what others have written. `make fuzz` looks for inputs that break one of these; those that have,
//! and others of each kind, lie in `fuzz/corpus`, and are tried with each run of the tests.
//!
//! A target is a function that panics if what it is about does not hold. The targets stand beside what they try.

#[cfg(test)]
mod replay;

use crate::commands::status;
use crate::config;
use crate::store;
use crate::supervise::guardian;
use crate::text;

/// Something that is fuzzed.
pub struct Target {
    /// Its name, and that of its directory in the corpus.
    pub name: &'static str,
    run: fn(&[u8]),
}

impl Target {
    /// Tries one input. Panics if it breaks something.
    pub fn run(&self, input: &[u8]) {
        // One that has the password may have found it in the fuzzer's own comparisons, and says it anywhere.
        if !String::from_utf8_lossy(input).contains(PASSWORD) {
            (self.run)(input);
        }
    }
}

/// All of them.
pub const TARGETS: [Target; 14] = [
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
    Target { name: "etcd", run: store::fuzz::etcd },
    Target { name: "pgpass", run: store::fuzz::pgpass },
    Target { name: "status", run: status::fuzz::status },
    Target { name: "guardian", run: guardian::fuzz::messages },
];

/// A password that no input has by chance, and no message may have.
pub const PASSWORD: &str = "pw0rd-0f-0urs";

/// Checks that a text for people does not say the password.
pub fn check_secret(text: &str) {
    assert!(!text.contains(PASSWORD), "the password is said: {text:?}");
}

/// Checks that a text can be shown on a terminal: no control character but the end of a line, nor any that deceives its reader.
pub fn check_harmless(text: &str) {
    let escaped = text::escape::escaped_lines(text);
    assert_eq!(escaped.trim_end_matches('\n'), text.trim_end_matches('\n'), "it is not escaped");
}
