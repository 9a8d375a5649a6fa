//! The options for the parser. Their descriptions are in [`crate::cli::descriptions`].

use clap::{Arg, ArgAction, builder::ValueParser};

use super::{ALWAYS, FOR_EVER, name};

/// Returns an option that takes one value.
pub fn option(id: &'static str) -> Arg {
    Arg::new(id)
        .long(id)
        .action(ArgAction::Set)
        // The value is the next word, even if it begins with `-`, as with getopt(3).
        .allow_hyphen_values(true)
        .value_parser(ValueParser::os_string())
}

/// Returns an option that takes no value.
pub fn switch(id: &'static str) -> Arg {
    Arg::new(id).long(id).action(ArgAction::SetTrue)
}

/// Returns the option for the lock's name.
pub fn key() -> Arg {
    attached_only(name::KEY).short('k')
}

/// Returns the argument for the lock's name, for commands that also take it without `--key`.
pub fn key_word() -> Arg {
    Arg::new(name::KEY_WORD).value_parser(ValueParser::os_string())
}

/// Returns the option for the token under which a lock is held.
pub fn token() -> Arg {
    attached_only(name::TOKEN)
}

/// Returns an option whose value, if it begins with `-`, must be attached with `=`. If the value is an unset variable,
/// the next word is an option. Taken as a key or a token, it would be the same one for everybody who makes this
/// mistake.
fn attached_only(id: &'static str) -> Arg {
    option(id).allow_hyphen_values(false)
}

/// Returns the options for the store.
pub fn store() -> [Arg; 2] {
    [option(name::STORE), option(name::STORE_FILE)]
}

/// Returns the options that say how the lock may be shared.
pub fn mode() -> [Arg; 3] {
    [option(name::SLOTS), switch(name::SHARED).short('s'), switch(name::EXCLUSIVE).short('x').visible_short_alias('e')]
}

/// Returns the options that say what to do when the lock is held.
pub fn held() -> [Arg; 5] {
    [
        switch(name::FAIL).short('n').visible_alias("nonblock").alias("nb"),
        option(name::SKIP).num_args(0..=1).require_equals(true).default_missing_value(ALWAYS),
        // `--wait` takes a word only if that word is a duration; `normalize` writes it as `--wait=DURATION`.
        option(name::WAIT).short('w').num_args(0..=1).require_equals(true).default_missing_value(FOR_EVER),
        option(name::MAX_WAITING),
        option(name::CONFLICT).short('E'),
    ]
}

/// Returns the options for the lease, the command and the event log.
pub fn lease_and_command() -> [Arg; 12] {
    [
        option(name::TTL),
        option(name::RENEW_EVERY),
        option(name::STORE_TIMEOUT),
        option(name::STORE_RETRY),
        option(name::ON_LOST),
        option(name::COMMAND_STRING).short('c'),
        option(name::MAX_RUNTIME),
        option(name::KILL_AFTER),
        option(name::DESCENDANTS),
        option(name::LABEL),
        option(name::EVENTS),
        Arg::new(name::COMMAND).num_args(1..).trailing_var_arg(true).value_parser(ValueParser::os_string()),
    ]
}

/// Returns the options for the verbosity.
pub fn output() -> [Arg; 2] {
    [switch(name::VERBOSE).short('v'), switch(name::QUIET).short('q')]
}
