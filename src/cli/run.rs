//! The command line of a run, as the parser sees it. Every run pays for what is here, so nothing is that it does not need.
//! The headings of the help come in the order of their first option.

use clap::{Arg, Command, builder::ValueParser};

use super::name;
use super::options::{self, option, switch};

/// The definition of the command line of a run. What excludes what is for [`crate::settings`] to say, which also knows the
/// other places that options come from.
pub fn command() -> Command {
    Command::new("lockrun")
        .version(env!("CARGO_PKG_VERSION"))
        .arg(options::key())
        .args(options::store())
        .args(options::held())
        .args([
            option(name::SLOTS),
            option(name::TTL),
            option(name::RENEW_EVERY),
            option(name::STORE_TIMEOUT),
            option(name::ON_LOST),
            option(name::MIN_HOLD),
            switch(name::KEEP),
            option(name::COMMAND_STRING).short('c'),
            option(name::MAX_RUNTIME),
            option(name::KILL_AFTER),
            option(name::DESCENDANTS),
            option(name::EVENTS),
            Arg::new(name::COMMAND).num_args(1..).trailing_var_arg(true).value_parser(ValueParser::os_string()),
        ])
        .args(options::output())
}
