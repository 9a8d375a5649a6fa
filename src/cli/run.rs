//! The command line of a run, as the parser sees it. Every run pays for what is here, so nothing is that it does not need.
//! The headings of the help come in the order of their first option.

use clap::Command;

use super::name;
use super::options::{self, option, switch};

/// The definition of the command line of a run. What excludes what is for [`crate::config::settings`] to say, which also knows the
/// other places that options come from.
pub fn command() -> Command {
    Command::new("lockrun")
        .version(env!("CARGO_PKG_VERSION"))
        .arg(options::key())
        .args(options::store())
        .args(options::held())
        .args([option(name::SLOTS), option(name::MIN_HOLD), switch(name::KEEP)])
        .args(options::lease_and_command())
        .args(options::output())
}
