//! What people are told of each option: for the help, the manual and the completions.

use std::ffi::OsString;

use clap::builder::{PossibleValuesParser, TypedValueParser as _};
use clap::{Arg, Command, ValueHint};

use super::name;

const LOCK: &str = "The lock";
const HELD: &str = "When the lock is held";
const LEASE: &str = "The lease";
const RUN: &str = "The command";
const OUTPUT: &str = "Output";

/// What people are told of an option.
struct Description {
    name: &'static str,
    heading: Option<&'static str>,
    /// What its value is called, if it takes one.
    value: Option<&'static str>,
    /// One line.
    help: &'static str,
    /// That and more, where there is more to say.
    more: Option<&'static str>,
    /// All values that there are, where they can be counted.
    values: &'static [&'static str],
    /// What its value is, for completion.
    hint: ValueHint,
}

/// The definition with all its options described.
pub fn described(command: Command) -> Command {
    command.mut_args(|arg| match ALL.iter().enumerate().find(|(_, described)| arg.get_id() == described.name) {
        Some((place, description)) => describe(arg, description).display_order(place),
        None => arg,
    })
}

fn describe(arg: Arg, description: &Description) -> Arg {
    let mut arg = arg.help(description.help).long_help(description.more).value_hint(description.hint);
    if let Some(heading) = description.heading {
        arg = arg.help_heading(heading);
    }
    if let Some(value) = description.value {
        arg = arg.value_name(value);
    }
    if !description.values.is_empty() {
        // The same type as of all values: another one would not be found.
        let parser = PossibleValuesParser::new(description.values).map(OsString::from);
        arg = arg.value_parser(parser).hide_possible_values(true);
    }
    arg
}

/// An option that takes a value.
const fn option(name: &'static str, value: &'static str, heading: &'static str, help: &'static str) -> Description {
    let hint = ValueHint::Unknown;
    Description { name, heading: Some(heading), value: Some(value), help, more: None, values: &[], hint }
}

/// An option that takes none.
const fn switch(name: &'static str, heading: &'static str, help: &'static str) -> Description {
    Description { value: None, ..option(name, "", heading, help) }
}

impl Description {
    const fn more(self, more: &'static str) -> Self {
        Description { more: Some(more), ..self }
    }

    const fn values(self, values: &'static [&'static str]) -> Self {
        Description { values, ..self }
    }

    const fn hint(self, hint: ValueHint) -> Self {
        Description { hint, ..self }
    }
}

/// Every option, in the order in which they are listed.
const ALL: [Description; 33] = [
    option(name::KEY, "KEY", LOCK, "The lock's name")
        .more("The lock's name: 1 to 512 bytes of UTF-8 without control characters."),
    option(
        name::STORE,
        "URL",
        LOCK,
        "Where the lock lives: file:, file:/DIR, redis://, rediss://, redis+unix://  [default: file:]",
    )
    .more(
        "Where the lock lives [default: file:]\n\n\
         file: or file:/DIR - this machine; files in /run/lock/lockrun-UID (root: /run/lockrun), or in DIR, which must be \
         yours and writable by nobody else.\n\n\
         redis://[USER[:PASSWORD]@]HOST[:PORT][/DB] - one Redis or Valkey; rediss:// is the same over TLS.\n\n\
         redis+unix://[USER[:PASSWORD]@]/PATH - the same through a local socket; its database is ?db=DB.\n\n\
         Parameters, after a `?` and separated by `&`: prefix=NAME (what the keys in Redis begin with, default \
         lockrun), ca=FILE, cert=FILE, key=FILE (TLS: whom to trust, and who we are; PEM).",
    ),
    option(
        name::STORE_FILE,
        "PATH",
        LOCK,
        "Read the store's URL from a file, so that no password stands in ps or a crontab",
    )
    .more(
        "Read the store's URL from the file PATH, so that no password stands in ps or a crontab. A pipe, such as /dev/stdin or a \
         shell's <(...), is read to its end, which must come within 10s.",
    )
    .hint(ValueHint::FilePath),
    option(name::SLOTS, "N", LOCK, "Up to N hold the lock at once, 1 to 1000  [default: 1]").more(
        "Up to N hold the lock at once, 1 to 1000 [default: 1]. Each has a number of its own, from 0 to N-1, the lowest that \
         is free: LOCKRUN_SLOT. All who use the lock should give the same N.",
    ),
    option(name::FROM, "VALUE", LOCK, "The first value of all"),
    option(name::STEP, "N", LOCK, "From one value to the next: an integer, which may be negative  [default: 1]"),
    option(name::NEXT, "PROGRAM", LOCK, "What prints the next value, called with the one before it").more(
        "What prints the next value: PROGRAM is called with the one before it as its only argument, and must print one \
         line. It is called again for each value that is reserved already, 10,000 times at most.",
    )
    .hint(ValueHint::CommandName),
    option(name::ON_FAILURE, "ACTION", LOCK, "A value whose COMMAND has failed: keep or free  [default: keep]")
        .more(
            "What becomes of the value when COMMAND has failed [default: keep]\n\n\
             keep: it stays reserved until its lease runs out.\n\n\
             free: another run can have it at once.",
        )
        .values(&["keep", "free"]),
    option(name::TOKEN, "TOKEN", LOCK, "The token that `acquire` has printed; else LOCKRUN_TOKEN"),
    option(name::FENCE, "N", LOCK, "Only if this is still the holder's fence")
        .more("Only if this is still the holder's fence, as `lockrun status` has shown it."),
    switch(name::NOW, LOCK, "Free it at once, even where its command could not be told").more(
        "Free the lock at once, even where its holder could not be told: its command may still run beside the next one.",
    ),
    option(name::OLDER_THAN, "DURATION", LOCK, "Locks that have not been used for that long"),
    switch(name::DRY_RUN, LOCK, "Only say what would be removed"),
    switch(name::FAIL, HELD, "Say who holds it and exit 75; this is the default (--nonblock is the same)"),
    switch(name::SKIP, HELD, "Exit 0, silently"),
    option(name::WAIT, "DURATION", HELD, "Wait for it: for ever, or that long and then as --fail").more(
        "Wait for the lock: for ever, or that long and then as --fail. 0 is --fail. The word after --wait is its value \
         only if it is a duration.",
    ),
    option(
        name::CONFLICT,
        "N",
        HELD,
        "The exit status when it is held, or the wait ran out: 0 to 255, in place of 75",
    ),
    option(name::TTL, "DURATION", LEASE, "The lease's length, at least 1s; none: it never expires  [default: 30s]").more(
        "The lease's length, at least 1s [default: 30s]\n\n\
         If lockrun or its machine dies, a lock in Redis is free after this time. `none` means that it never expires. \
         The file store needs no lease: its locks end with their holder.",
    ),
    option(name::RENEW_EVERY, "DURATION", LEASE, "The time between renewals  [default: ttl / 3]"),
    option(
        name::STORE_TIMEOUT,
        "DURATION",
        LEASE,
        "The longest that one request to the store may take  [default: 5s, at most ttl / 6]",
    )
    .more("The longest that one request to the store may take, connecting included [default: 5s, at most ttl / 6]"),
    option(name::ON_LOST, "ACTION", LEASE, "What a lost lease does to COMMAND: kill or warn  [default: kill]")
        .more(
            "What a lost lease does to COMMAND [default: kill]\n\n\
             kill: COMMAND and all that it started are dead before the lock can pass to another.\n\n\
             warn: say so, and let COMMAND run on although another run may hold the lock.",
        )
        .values(&["kill", "warn"]),
    option(name::MIN_HOLD, "DURATION", LEASE, "Keep the lock at least this long, also when COMMAND has ended before").more(
        "Keep the lock at least this long from when it was taken, also when COMMAND has ended before; lockrun does not \
         wait for that. A guard against clocks that differ between servers whose jobs are short.",
    ),
    switch(name::KEEP, LEASE, "Do not let go of the lock when COMMAND has ended with 0").more(
        "Do not let go of the lock when COMMAND has ended with status 0: it stays held until its lease runs out, or `lockrun release` \
         or `lockrun break` frees it.",
    ),
    option(name::COMMAND_STRING, "STRING", RUN, "Run STRING by `sh -c`")
        .more("Run STRING by `sh -c`, whatever SHELL says. (flock(1) takes the shell that SHELL names.)")
        .hint(ValueHint::CommandString),
    option(name::MAX_RUNTIME, "DURATION", RUN, "Stop COMMAND when it has run for that long, and exit 124"),
    option(
        name::KILL_AFTER,
        "DURATION",
        RUN,
        "The time from TERM to KILL when COMMAND is stopped  [default: 10s, at most ttl / 3]",
    ),
    option(
        name::DESCENDANTS,
        "ACTION",
        RUN,
        "Processes that COMMAND left behind: leave, wait or kill  [default: leave]",
    )
    .more(
        "What is done about processes that COMMAND left behind when it ended [default: leave]\n\n\
         leave: let go of the lock, and leave them alone.\n\n\
         wait: hold the lock until the last of them has gone.\n\n\
         kill: end them (TERM, then KILL after --kill-after), then let go of the lock.",
    )
    .values(&["leave", "wait", "kill"]),
    switch(name::JSON, OUTPUT, "Print the answer as JSON"),
    switch(
        name::EXPORT,
        OUTPUT,
        "Print assignments for a shell to evaluate: LOCKRUN_KEY, LOCKRUN_TOKEN, LOCKRUN_FENCE, LOCKRUN_SLOT",
    ),
    option(name::EVENTS, "FILE", OUTPUT, "Append what happens to FILE, one JSON object a line")
        .more(
            "Append what happens to FILE, one JSON object a line: waiting, acquired, started, held, skipped, lost, killed, \
             finished, released, kept, interrupted, failed. Each has the time, the event, the key, host, pid, user and \
             command, and what there is to say of it.\n\n\
             Many runs can share FILE, which is made with mode 0600. If it cannot be written, or not at once, that is said \
             once, and the run goes on.",
        )
        .hint(ValueHint::FilePath),
    switch(name::VERBOSE, OUTPUT, "Say on stderr what happens: waiting, acquired, started, finished, released ..."),
    switch(name::QUIET, OUTPUT, "Say nothing when the lock is held"),
    Description {
        heading: None,
        value: None,
        ..option(name::COMMAND, "", "", "The command to run and its arguments, executed as they are")
    }
    .hint(ValueHint::CommandWithArguments),
];
