//! The description of each option, for the help, the manual and the completions.

use std::ffi::OsString;

use clap::builder::{PossibleValuesParser, TypedValueParser as _};
use clap::{Arg, Command, ValueHint};

use super::name;

const LOCK: &str = "The lock";
const HELD: &str = "When the lock is held";
const LEASE: &str = "The lease";
const RUN: &str = "The command";
const OUTPUT: &str = "Output";

/// The description of an option.
struct Description {
    name: &'static str,
    heading: Option<&'static str>,
    /// The name of its value, if it takes one.
    value: Option<&'static str>,
    /// One line.
    help: &'static str,
    /// The long form, if there is more to say.
    more: Option<&'static str>,
    /// All possible values, if there are few.
    values: &'static [&'static str],
    /// The kind of its value, for completion.
    hint: ValueHint,
}

/// Adds the descriptions of all options to a definition.
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
        // The parser must return the same type as for other options: a value of another type would not be found.
        let parser = PossibleValuesParser::new(description.values).map(OsString::from);
        arg = arg.value_parser(parser).hide_possible_values(true);
    }
    arg
}

/// Returns an option that takes a value.
const fn option(name: &'static str, value: &'static str, heading: &'static str, help: &'static str) -> Description {
    let hint = ValueHint::Unknown;
    Description { name, heading: Some(heading), value: Some(value), help, more: None, values: &[], hint }
}

/// Returns an option that takes no value.
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

/// All options, in the order of the help.
const ALL: [Description; 44] = [
    option(name::KEY, "KEY", LOCK, "The lock's name")
        .more(
            "The lock's name: 1 to 512 bytes of UTF-8 without control characters. One that begins with - must be written --key=-x, \
             so that an unset variable does not make the next option the key.",
        ),
    option(
        name::STORE,
        "URL",
        LOCK,
        "Where the lock lives: file:, file:/DIR, redis://, redis+sentinel://, redis+cluster://, postgres://, mysql://, etcd://  [default: file:]",
    )
    .more(
        "Where the lock lives [default: file:]\n\n\
         file: or file:/DIR - this machine; files in /run/lock/lockrun-UID (root: /run/lockrun), or in DIR, which must be \
         yours and writable by no other user.\n\n\
         file:/DIR?group=NAME - the same, shared by the users of a group: root creates it (install -d -o root -g NAME -m \
         2770 DIR), and every member can hold, break and delete each lock there.\n\n\
         redis://[USER[:PASSWORD]@]HOST[:PORT][/DB] - one Redis or Valkey; rediss:// is the same over TLS.\n\n\
         redis+unix://[USER[:PASSWORD]@]/PATH - the same through a local socket; its database is ?db=DB.\n\n\
         redis+sentinel://[USER[:PASSWORD]@]HOST[:PORT],HOST.../SERVICE[/DB] - the primary that Sentinels name; \
         ?sentinel_user=NAME&sentinel_password=PASSWORD if they ask for one. rediss+sentinel:// is the same over TLS.\n\n\
         redis+cluster://[USER[:PASSWORD]@]HOST[:PORT],HOST... - a Redis or Valkey cluster; rediss+cluster:// is the same over \
         TLS.\n\n\
         postgres://[USER[:PASSWORD]@]HOST[:PORT][,HOST...]/DATABASE - tables in a PostgreSQL, which the first run creates; of \
         several hosts the first that accepts writes. Without a HOST: the local socket. The password may be in PGPASSWORD or \
         ~/.pgpass.\n\n\
         mysql://[USER[:PASSWORD]@]HOST[:PORT][,HOST...]/DATABASE - tables in a MySQL or MariaDB, which the first run creates. \
         The password may be in MYSQL_PWD or ~/.my.cnf.\n\n\
         etcd://[USER:PASSWORD@]HOST[:PORT],HOST... - an etcd cluster; etcds:// is the same over TLS.\n\n\
         Parameters, after a `?` and separated by `&`: prefix=NAME (how the keys in Redis or etcd begin, default lockrun), \
         grace=DURATION (for how long after its start a Redis that keeps no data grants nothing), schema=NAME (PostgreSQL's tables, default lockrun), ca=FILE, cert=FILE, key=FILE (TLS: the authorities to trust, and \
         the client's certificate and key; PEM); for PostgreSQL also sslmode, channel_binding, target_session_attrs, host, port, \
         user and application_name, as in libpq; for MySQL tables=PREFIX (how the names of its tables begin, default lockrun_) \
         and tls (disabled, preferred, required, verify-ca, verify-identity).",
    ),
    option(
        name::STORE_FILE,
        "PATH",
        LOCK,
        "Read the store's URL from a file, to keep a password out of ps and crontabs",
    )
    .more(
        "Read the store's URL from the file PATH, to keep a password out of ps and crontabs. A pipe, such as /dev/stdin or a \
         shell's <(...), is read to its end, which must come within 10s.",
    )
    .hint(ValueHint::FilePath),
    option(name::SLOTS, "N", LOCK, "Let up to N runs hold the lock at once, 1 to 1000  [default: 1]").more(
        "Let up to N runs hold the lock at once, 1 to 1000 [default: 1]. Each gets the lowest free slot, from 0 to N-1, in \
         LOCKRUN_SLOT. All users of a lock should give the same N.",
    ),
    switch(name::SHARED, LOCK, "Hold the lock beside other runs that share it, never beside one that does not").more(
        "Hold the lock beside other runs that share it, never beside one that does not: many readers or one writer. Waiters keep their turn, so readers \
         that come later wait behind a waiting writer.",
    ),
    switch(name::EXCLUSIVE, LOCK, "Hold the lock alone: the default, and the opposite of --shared"),
    option(name::FROM, "VALUE", LOCK, "The first value of the sequence"),
    option(name::STEP, "N", LOCK, "The distance between two values: an integer other than 0  [default: 1]"),
    option(name::NEXT, "PROGRAM", LOCK, "The program that prints the next value, called with the previous one").more(
        "The program that prints the next value. It is called with the previous value as its only argument, and must print one \
         line. It is called again for each value that is already reserved, 10,000 times at most.",
    )
    .hint(ValueHint::CommandName),
    option(name::ON_FAILURE, "ACTION", LOCK, "What to do with the value when COMMAND fails: keep or free  [default: keep]")
        .more(
            "What to do with the value when COMMAND fails [default: keep]\n\n\
             keep: it stays reserved until its lease expires.\n\n\
             free: the next run may get it at once.",
        )
        .values(&["keep", "free"]),
    option(name::TOKEN, "TOKEN", LOCK, "The token that `acquire` printed  [default: $LOCKRUN_TOKEN]"),
    option(name::FENCE, "N", LOCK, "Break the lock only if N is still the holder's fencing token")
        .more("Break the lock only if N is still the holder's fencing token, as shown by `lockrun status`."),
    switch(name::NOW, LOCK, "Free the lock at once, even if its command may still be running").more(
        "Free the lock at once, before the holder hears of it: its command may still be running beside the next one.",
    ),
    option(name::OLDER_THAN, "DURATION", LOCK, "Remove locks that have not been used for at least this long"),
    switch(name::DRY_RUN, LOCK, "Only list what would be removed"),
    switch(name::DONE, LOCK, "Forget that KEY's run has succeeded, so that its next --once-per is wanted; remove nothing"),
    switch(name::SCHEMA, OUTPUT, "Only print the SQL that creates the tables of a PostgreSQL or MySQL store").more(
        "Print the SQL that creates the tables of a PostgreSQL or MySQL store, in the schema or database that the store's URL \
         names, and grants their use to its user. The owner of the database runs it, for instance with psql -f or mysql, where \
         that user may not create tables. lockrun itself connects to nothing.",
    ),
    switch(name::FAIL, HELD, "Name the holder and exit 75; this is the default (also --nonblock)"),
    option(name::SKIP, "DURATION", HELD, "Exit 0, silently; with =DURATION only if it has been held for less than that").more(
        "Exit 0, silently. With a duration (--skip=5m) only if the lock has been held for less than that, and otherwise as --fail: a \
         run that hangs is reported instead of being skipped over for ever.",
    ),
    option(name::WAIT, "DURATION", HELD, "Wait in turn: for ever, or this long and then as --fail").more(
        "Wait for the lock in turn: for ever, or this long and then as --fail. 0 is --fail. With -v, and in a CI (if the variable \
         CI is set), a line at the beginning and one a minute say so. The word after --wait is its value \
         only if it is a duration. One that begins with a digit but is no duration is an error; write -w -- 5x for a command \
         of such a name.",
    ),
    option(name::MAX_WAITING, "N", HELD, "With --wait: if N wait already, do as --fail at once").more(
        "With --wait: if N wait already, do as --fail at once. With --max-waiting 1 one runs, one waits, and the others are \
         superfluous.",
    ),
    option(
        name::CONFLICT,
        "N",
        HELD,
        "Exit with N, 0 to 255, instead of 75 if the lock is held or the wait times out",
    ),
    option(name::TTL, "DURATION", LEASE, "The length of the lease, at least 1s; none: it never expires  [default: 30s]").more(
        "The length of the lease, at least 1s [default: 30s]\n\n\
         If lockrun or its machine dies, a lock in Redis or PostgreSQL is free after this time. With `none` it never expires. \
         A run on files needs no lease: its lock ends with it; one acquired by hand or kept has a lease there too.",
    ),
    option(name::RENEW_EVERY, "DURATION", LEASE, "The time between renewals  [default: ttl / 3]"),
    option(
        name::STORE_TIMEOUT,
        "DURATION",
        LEASE,
        "The longest that one request to the store may take  [default: 5s, at most ttl / 6]",
    )
    .more(
        "The longest that one request to the store may take, connecting included [default: 5s, at most ttl / 6]\n\n\
         A request for the lock that is not answered is then cancelled. If the store does not answer that either, lockrun ends \
         with status 69, unless it tries again: after twice this time at the latest, counted from its start, or, if it has waited, after about two and a half \
         times this, counted from the end of the wait.",
    ),
    option(
        name::STORE_RETRY,
        "DURATION",
        HELD,
        "How long to go on trying a store that is away  [default: 0; with --wait 1m]",
    )
    .more(
        "How long to go on trying a store that cannot be reached, restarts, fails over, or whose name does not resolve, before COMMAND \
         has started; then exit 69 [default: 0; with --wait 1m]\n\n\
         With --wait DURATION it never takes longer than that. A store that rejects the request, for instance because the password is wrong, is not \
         tried again. `reserve` goes on only while its request cannot have arrived. If the store is too busy, because too many others change \
         the same lock or are connected, `reserve` goes on for 30 seconds, or for this long if that is longer.",
    ),
    option(name::ON_LOST, "ACTION", LEASE, "What to do when the lease is lost: kill or warn  [default: kill]")
        .more(
            "What to do when the lease is lost [default: kill]\n\n\
             kill: stop COMMAND and everything it started before the lock can pass to another run.\n\n\
             warn: print a warning and let COMMAND run on, even though another run may hold the lock.",
        )
        .values(&["kill", "warn"]),
    option(name::ONCE_PER, "DURATION", LOCK, "Exit 0, silently, if a run with this option that began less than DURATION ago has ended with 0").more(
        "Exit 0, silently, instead of running COMMAND, if a run under this key that had this option, too, and began less than DURATION \
         ago, by the store's clock, has ended with 0. A run that failed, was stopped or lost its lock does not count, and one that is still going on holds \
         the lock. This is for the same crontab on several servers, whose clocks differ: give the period, less an hour for the change to summer \
         time, less the latest start of a run, such as 20h for a daily job.",
    ),
    option(name::MIN_HOLD, "DURATION", LEASE, "Hold the lock at least this long, even if COMMAND ends sooner").more(
        "Hold the lock at least this long from its acquisition, even if COMMAND ends sooner. lockrun itself ends with COMMAND. \
         It keeps runs apart; a job that is to run once a period on several servers wants --once-per.",
    ),
    switch(name::KEEP, LEASE, "Keep the lock when COMMAND exits with 0").more(
        "Keep the lock when COMMAND exits with status 0: it stays held until its lease expires, or until `lockrun release` \
         or `lockrun break` frees it.",
    ),
    option(name::COMMAND_STRING, "STRING", RUN, "Run STRING with `sh -c`")
        .more("Run STRING with `sh -c`, whatever SHELL is set to. (flock(1) uses the shell that SHELL names.)")
        .hint(ValueHint::CommandString),
    option(name::MAX_RUNTIME, "DURATION", RUN, "Stop COMMAND after this long, and exit 124"),
    option(
        name::KILL_AFTER,
        "DURATION",
        RUN,
        "The time between TERM and KILL when COMMAND is stopped  [default: 10s, at most ttl / 3]",
    ),
    option(
        name::DESCENDANTS,
        "ACTION",
        RUN,
        "What to do with processes that COMMAND leaves behind: leave, wait or kill  [default: leave]",
    )
    .more(
        "What to do with processes that COMMAND leaves behind [default: leave]\n\n\
         leave: release the lock and leave them alone.\n\n\
         wait: hold the lock until the last of them has ended.\n\n\
         kill: stop them (TERM, then KILL after --kill-after), then release the lock.",
    )
    .values(&["leave", "wait", "kill"]),
    switch(name::ONLY_HELD, LOCK, "Show only locks that are held"),
    switch(name::JSON, OUTPUT, "Print JSON"),
    switch(name::METRICS, OUTPUT, "Print OpenMetrics text, as for the textfile directory of a node exporter").more(
        "Print OpenMetrics text, as for the textfile directory of a node exporter: for each lock how many hold it, for how long, \
         how many wait, and when, how and after how long its last run ended.",
    ),
    switch(
        name::EXPORT,
        OUTPUT,
        "Print shell assignments: LOCKRUN_KEY, LOCKRUN_TOKEN, LOCKRUN_FENCE, LOCKRUN_SLOT",
    ),
    option(name::LABEL, "TEXT", OUTPUT, "Who or why, for people: shown wherever the holder is named").more(
        "Who or why, for people, in at most 200 bytes: shown in place of the user and the command line wherever the holder is named, \
         in messages, `lockrun status` and events.",
    ),
    option(name::EVENTS, "FILE", OUTPUT, "Append events to FILE, one JSON object per line")
        .more(
            "Append events to FILE, one JSON object per line: waiting, acquired, started, held, skipped, outage, recovered, lost, \
             killed, finished, released, kept, interrupted, failed. Each has the time, the event, the key, host, pid, user and \
             command, and its own details.\n\n\
             Many runs can share FILE, which is created with mode 0600. If another user could have chosen the file, the run is \
             refused (status 64). If it cannot be opened or written, or not at once, lockrun warns once and the run \
             continues.",
        )
        .hint(ValueHint::FilePath),
    switch(name::VERBOSE, OUTPUT, "Print events on stderr: waiting, acquired, started, finished, released ..."),
    switch(name::QUIET, OUTPUT, "Print nothing when the lock is held"),
    Description { heading: None, value: None, ..option(name::KEY_WORD, "", "", "The lock's name, as with --key") },
    Description {
        heading: None,
        value: None,
        ..option(name::COMMAND, "", "", "The command to run and its arguments, executed as they are")
    }
    .hint(ValueHint::CommandWithArguments),
];
