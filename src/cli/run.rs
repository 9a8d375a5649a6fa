//! The command line of a run, for the parser. Building it costs every run time, so it contains only what parsing needs. The headings of
//! the help appear in the order of their first option.

use clap::Command;

use super::name;
use super::options::{self, option, switch};

/// Returns the definition of the command line of a run. Which options exclude each other is checked by [`crate::config::settings`], which
/// also knows the other places of options.
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
