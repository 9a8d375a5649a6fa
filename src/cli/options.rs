//! The options, each defined once for all commands that have it.

use clap::{Arg, ArgAction, ValueHint, builder::OsStringValueParser, value_parser};

use super::{FOR_EVER, name};

/// The headings under which the help and the manual list the options.
pub mod heading {
    pub const LOCK: &str = "The lock";
    pub const HELD: &str = "When the lock is held";
    pub const LEASE: &str = "The lease";
    pub const RUN: &str = "The command";
    pub const OUTPUT: &str = "Output";
}

/// An option that takes one value.
pub fn option(id: &'static str, value: &'static str, heading: &'static str) -> Arg {
    Arg::new(id)
        .long(id)
        .value_name(value)
        .help_heading(heading)
        .action(ArgAction::Set)
        // A value is the next word, whatever it looks like, as getopt(3) takes it.
        .allow_hyphen_values(true)
        .value_parser(OsStringValueParser::new())
}

/// An option that is there or not.
pub fn switch(id: &'static str, heading: &'static str) -> Arg {
    Arg::new(id).long(id).help_heading(heading).action(ArgAction::SetTrue)
}

/// Which lock.
pub fn key() -> Arg {
    option(name::KEY, "KEY", heading::LOCK)
        .short('k')
        .help("The lock's name")
        .long_help("The lock's name: 1 to 512 bytes of UTF-8 without control characters.")
}

/// Where it lives.
pub fn store() -> [Arg; 2] {
    [
        option(name::STORE, "URL", heading::LOCK)
            .help("Where the lock lives: file:, file:/DIR, redis://, rediss://, redis+unix://  [default: file:]")
            .long_help(
                "Where the lock lives [default: file:]\n\n\
                 file: or file:/DIR - this machine; files in /run/lock/lockrun-UID (else /tmp/lockrun-UID), or in \
                 DIR, which must be yours and writable by nobody else.\n\n\
                 redis://[USER[:PASSWORD]@]HOST[:PORT][/DB] - one Redis or Valkey; rediss:// is the same over \
                 TLS.\n\n\
                 redis+unix://[USER[:PASSWORD]@]/PATH - the same through a local socket; its database is ?db=DB.\n\n\
                 Parameters, after a `?` and separated by `&`: prefix=NAME (what the keys in Redis begin with, \
                 default lockrun), ca=FILE, cert=FILE, key=FILE (TLS: whom to trust, and who we are; PEM).",
            ),
        option(name::STORE_FILE, "PATH", heading::LOCK)
            .value_hint(ValueHint::FilePath)
            .help("Read the store's URL from a file, so that no password stands in ps or a crontab")
            .long_help("Read the store's URL from the file PATH, so that no password stands in ps or a crontab."),
    ]
}

/// How many may hold it at once.
pub fn slots() -> Arg {
    option(name::SLOTS, "N", heading::LOCK).help("Up to N hold the lock at once, 1 to 1000  [default: 1]").long_help(
        "Up to N hold the lock at once, 1 to 1000 [default: 1]. Each has a number of its own, from 0 to N-1, the lowest \
         that is free: LOCKRUN_SLOT. All who use the lock should give the same N.",
    )
}

/// What to do when it is held.
pub fn held() -> [Arg; 4] {
    [
        switch(name::FAIL, heading::HELD)
            .short('n')
            .visible_alias("nonblock")
            .alias("nb")
            .help("Say who holds it and exit 75; this is the default (--nonblock is the same)"),
        switch(name::SKIP, heading::HELD).help("Exit 0, silently"),
        // `--wait` takes a word only if that word is a duration; `tie_wait` writes it as `--wait=DURATION`.
        option(name::WAIT, "DURATION", heading::HELD)
            .short('w')
            .num_args(0..=1)
            .require_equals(true)
            .default_missing_value(FOR_EVER)
            .help("Wait for it: for ever, or that long and then as --fail")
            .long_help(
                "Wait for the lock: for ever, or that long and then as --fail. 0 is --fail. \
                 The word after --wait is its value only if it is a duration.",
            ),
        option(name::CONFLICT, "N", heading::HELD)
            .short('E')
            .value_parser(value_parser!(u8))
            .help("The exit status when it is held, or the wait ran out: 0 to 255, in place of 75"),
    ]
}

/// How long the lease is.
pub fn ttl() -> Arg {
    option(name::TTL, "DURATION", heading::LEASE)
        .help("The lease's length, at least 1s; none: it never expires  [default: 30s]")
        .long_help(
            "The lease's length, at least 1s [default: 30s]\n\n\
             If lockrun or its machine dies, a lock in Redis is free after this time. `none` means that it \
             never expires. The file store needs no lease: its locks end with their holder.",
        )
}

/// How long the store may take.
pub fn store_timeout() -> Arg {
    option(name::STORE_TIMEOUT, "DURATION", heading::LEASE)
        .help("The longest that one request to the store may take  [default: 5s, at most ttl / 6]")
        .long_help(
            "The longest that one request to the store may take, connecting included \
             [default: 5s, at most ttl / 6]",
        )
}

/// How much is said.
pub fn output() -> [Arg; 2] {
    [
        switch(name::VERBOSE, heading::OUTPUT)
            .short('v')
            .help("Say on stderr what happens: waiting, acquired, started, finished, released"),
        switch(name::QUIET, heading::OUTPUT).short('q').help("Say nothing when the lock is held"),
    ]
}
