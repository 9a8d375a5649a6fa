//! The command line of a run. A run pays for every word of it, so nothing is here but what it needs.

use clap::{Arg, Command, ValueHint, builder::OsStringValueParser};

use super::options::{self, heading, option, switch};
use super::{name, text};

/// The definition of the command line of a run. What excludes what is for [`crate::plan`] to say, which also knows the other
/// places that options come from.
pub fn command() -> Command {
    Command::new("lockrun")
        .version(env!("CARGO_PKG_VERSION"))
        .about(text::ABOUT)
        .long_about(text::LONG_ABOUT)
        .override_usage(text::USAGE)
        .arg(options::key())
        .args(options::store())
        .arg(options::slots())
        .args(options::held())
        .args(lease())
        .args(run())
        .args(options::output())
        .arg(events())
        .arg(
            Arg::new(name::COMMAND)
                .num_args(1..)
                .trailing_var_arg(true)
                .value_hint(ValueHint::CommandWithArguments)
                .value_parser(OsStringValueParser::new())
                .help("The command to run and its arguments, executed as they are"),
        )
}

fn lease() -> [Arg; 6] {
    [
        options::ttl(),
        option(name::RENEW_EVERY, "DURATION", heading::LEASE).help("The time between renewals  [default: ttl / 3]"),
        options::store_timeout(),
        option(name::ON_LOST, "ACTION", heading::LEASE)
            .value_parser(["kill", "warn"])
            .help("What a lost lease does to COMMAND: kill or warn  [default: kill]")
            .long_help(
                "What a lost lease does to COMMAND [default: kill]\n\n\
                 kill: COMMAND and all that it started are dead before the lock can pass to another.\n\n\
                 warn: say so, and let COMMAND run on although another run may hold the lock.",
            )
            .hide_possible_values(true),
        option(name::MIN_HOLD, "DURATION", heading::LEASE)
            .help("Keep the lock at least this long, also when COMMAND has ended before")
            .long_help(
                "Keep the lock at least this long from when it was taken, also when COMMAND has ended before; lockrun \
                 does not wait for that. A guard against clocks that differ between servers whose jobs are short.",
            ),
        switch(name::KEEP, heading::LEASE).help("Do not let go of the lock when COMMAND has ended with 0").long_help(
            "Do not let go of the lock when COMMAND has ended with status 0: it stays held until its lease runs out, or \
                 `lockrun release` or `lockrun break` frees it.",
        ),
    ]
}

fn run() -> [Arg; 4] {
    [
        option(name::COMMAND_STRING, "STRING", heading::RUN).short('c').help("Run STRING by `sh -c`, as flock(1) does"),
        option(name::MAX_RUNTIME, "DURATION", heading::RUN)
            .help("Stop COMMAND when it has run for that long, and exit 124"),
        option(name::KILL_AFTER, "DURATION", heading::RUN)
            .help("The time from TERM to KILL when COMMAND is stopped  [default: 10s, at most ttl / 3]"),
        option(name::DESCENDANTS, "ACTION", heading::RUN)
            .value_parser(["leave", "wait", "kill"])
            .help("Processes that COMMAND left behind: leave, wait or kill  [default: leave]")
            .long_help(
                "What is done about processes that COMMAND left behind when it ended [default: leave]\n\n\
                 leave: let go of the lock, and leave them alone.\n\n\
                 wait: hold the lock until the last of them has gone.\n\n\
                 kill: end them (TERM, then KILL after --kill-after), then let go of the lock.",
            )
            .hide_possible_values(true),
    ]
}

fn events() -> Arg {
    option(name::EVENTS, "FILE", heading::OUTPUT)
        .value_hint(ValueHint::FilePath)
        .help("Append what happens to FILE, one JSON object a line")
}
