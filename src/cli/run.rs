//! The command line of a run, for the parser. Every run pays for building it, so it contains only what parsing needs.
//! The help shows its headings in the order of their first option.

use clap::Command;

use super::name;
use super::options::{self, option, switch};

/// Returns the definition of a run's command line. [`crate::config::settings`], which also knows the other layers,
/// checks which options exclude each other.
pub fn command() -> Command {
    Command::new("lockrun")
        .version(env!("CARGO_PKG_VERSION"))
        .arg(options::key())
        .args(options::store())
        .args(options::held())
        .args(options::mode())
        .args([option(name::ONCE_PER), option(name::MIN_HOLD), switch(name::KEEP)])
        .args(options::lease_and_command())
        .args(options::output())
}
