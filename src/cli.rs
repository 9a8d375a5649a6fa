//! What can be typed, in clap's terms. This one definition feeds the parser, `--help`, the manual and the completions.
//!
//! Nothing is read or checked here beyond what can be said of a word by itself; [`crate::plan`] does the rest.

use std::ffi::{OsStr, OsString};

use clap::{Arg, ArgAction, Command, builder::OsStringValueParser, value_parser};

use crate::duration;

/// The hidden subcommand that prints the manual and the completions.
pub const GENERATE: &str = "generate";

/// The subcommand that examines a store.
pub const DOCTOR: &str = "doctor";

/// What `--wait` means without a duration.
pub const FOR_EVER: &str = "forever";

const ABOUT: &str = "Run a command under a lock: flock(1) for a whole fleet";

const LONG_ABOUT: &str = "\
Run a command under a lock, so that it never runs twice at once: not on this machine, and with a shared store not on \
any other. lockrun takes the lock KEY, starts COMMAND, keeps the lock for as long as COMMAND runs, forwards signals \
to it, lets go of the lock and ends as COMMAND ended. If the lock is held, it fails, skips or waits.";

/// Every exit status and what it means: for the help and the manual.
pub const EXIT_STATUS: [(&str, &str); 10] = [
    ("COMMAND's", "it ran and ended; if a signal ended it, lockrun dies of the same signal"),
    ("0", "also: the lock was held, and --skip was given"),
    ("64", "the command line or the configuration is wrong"),
    ("69", "the store cannot be reached, refuses us, or does not answer in time; COMMAND was not started"),
    ("75", "the lock is held, or the wait ran out (--conflict-exit-code changes it)"),
    ("79", "the lease was lost while COMMAND ran, and COMMAND was stopped"),
    ("124", "--max-runtime passed, and COMMAND was stopped"),
    ("125", "lockrun itself failed"),
    ("126", "COMMAND cannot be executed; the lock is released"),
    ("127", "COMMAND was not found; the lock is released"),
];

/// The variables that COMMAND finds in its environment: for the help and the manual.
pub const ENVIRONMENT: [(&str, &str); 3] = [
    ("LOCKRUN_KEY", "the lock's name"),
    ("LOCKRUN_TOKEN", "the random token of this acquisition"),
    ("LOCKRUN_FENCE", "the fencing token: greater than that of every earlier run under this lock"),
];

/// What the help says about durations.
pub const DURATIONS: &str = "Durations are plain seconds (5, 0.5) or have units (500ms, 30s, 5m, '2h 30m').";

/// What the help says about setting options elsewhere.
pub const VARIABLES: &str = "Every option but --key can also be set by an environment variable: LOCKRUN_ and its name in \
    capitals with _ for -, such as LOCKRUN_STORE, LOCKRUN_STORE_FILE or LOCKRUN_TTL. An option that takes no value is \
    set to true or false. The command line wins.";

/// The end of the long help.
fn after_long_help() -> String {
    let table = |rows: &[(&str, &str)]| -> String {
        rows.iter().fold(String::new(), |text, (name, meaning)| format!("{text}  {name:<15}{meaning}\n"))
    };
    format!(
        "Exit status:\n{}\nCOMMAND finds in its environment:\n{}\n{DURATIONS}\n\n{VARIABLES}",
        table(&EXIT_STATUS),
        table(&ENVIRONMENT)
    )
}

/// Names of the arguments, as the definition and the reader of its matches share them.
#[allow(missing_docs)]
pub mod name {
    pub const KEY: &str = "key";
    pub const STORE: &str = "store";
    pub const STORE_FILE: &str = "store-file";
    pub const FAIL: &str = "fail";
    pub const SKIP: &str = "skip";
    pub const WAIT: &str = "wait";
    pub const CONFLICT: &str = "conflict-exit-code";
    pub const TTL: &str = "ttl";
    pub const RENEW_EVERY: &str = "renew-every";
    pub const KILL_AFTER: &str = "kill-after";
    pub const MAX_RUNTIME: &str = "max-runtime";
    pub const ON_LOST: &str = "on-lost";
    pub const DESCENDANTS: &str = "descendants";
    pub const STORE_TIMEOUT: &str = "store-timeout";
    pub const COMMAND_STRING: &str = "command";
    pub const VERBOSE: &str = "verbose";
    pub const QUIET: &str = "quiet";
    pub const COMMAND: &str = "COMMAND";
}

/// An option that takes one value.
fn option(id: &'static str, value: &'static str, heading: &'static str) -> Arg {
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
fn switch(id: &'static str, heading: &'static str) -> Arg {
    Arg::new(id).long(id).help_heading(heading).action(ArgAction::SetTrue)
}

/// The definition with what only the help and the manual show, and a run need not pay for.
pub fn documented() -> Command {
    command().after_long_help(after_long_help())
}

/// The definition of the command line of a run. What excludes what is for [`crate::plan`] to say, which also knows the other
/// places that options come from.
pub fn command() -> Command {
    Command::new("lockrun")
        .version(env!("CARGO_PKG_VERSION"))
        .about(ABOUT)
        .long_about(LONG_ABOUT)
        .override_usage(
            "lockrun --key KEY [OPTIONS] [--] COMMAND [ARG]...\n       lockrun --key KEY [OPTIONS] --command STRING",
        )
        .args(lock_options())
        .args(held_options())
        .args(lease_options())
        .args(run_options())
        .args(output_options())
        .arg(
            Arg::new(name::COMMAND)
                .num_args(1..)
                .trailing_var_arg(true)
                .value_parser(OsStringValueParser::new())
                .help("The command to run and its arguments, executed as they are"),
        )
}

fn lock_options() -> [Arg; 3] {
    const LOCK: &str = "The lock";
    [
        option(name::KEY, "KEY", LOCK)
            .short('k')
            .help("The lock's name")
            .long_help("The lock's name: 1 to 512 bytes of UTF-8 without control characters."),
        option(name::STORE, "URL", LOCK)
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
        option(name::STORE_FILE, "PATH", LOCK)
            .help("Read the store's URL from a file, so that no password stands in ps or a crontab")
            .long_help("Read the store's URL from the file PATH, so that no password stands in ps or a crontab."),
    ]
}

fn held_options() -> [Arg; 4] {
    const HELD: &str = "When the lock is held";
    [
        switch(name::FAIL, HELD)
            .short('n')
            .visible_alias("nonblock")
            .alias("nb")
            .help("Say who holds it and exit 75; this is the default (--nonblock is the same)"),
        switch(name::SKIP, HELD).help("Exit 0, silently"),
        // `--wait` takes a word only if that word is a duration; `tie_wait` writes it as `--wait=DURATION`.
        option(name::WAIT, "DURATION", HELD)
            .short('w')
            .num_args(0..=1)
            .require_equals(true)
            .default_missing_value(FOR_EVER)
            .help("Wait for it: for ever, or that long and then as --fail")
            .long_help(
                "Wait for the lock: for ever, or that long and then as --fail. 0 is --fail. \
                 The word after --wait is its value only if it is a duration.",
            ),
        option(name::CONFLICT, "N", HELD)
            .short('E')
            .value_parser(value_parser!(u8))
            .help("The exit status when it is held, or the wait ran out: 0 to 255, in place of 75"),
    ]
}

fn lease_options() -> [Arg; 4] {
    const LEASE: &str = "The lease";
    [
        option(name::TTL, "DURATION", LEASE)
            .help("The lease's length, at least 1s; none: it never expires  [default: 30s]")
            .long_help(
                "The lease's length, at least 1s [default: 30s]\n\n\
                 If lockrun or its machine dies, a lock in Redis is free after this time. `none` means that it \
                 never expires. The file store needs no lease: its locks end with their holder.",
            ),
        option(name::RENEW_EVERY, "DURATION", LEASE).help("The time between renewals  [default: ttl / 3]"),
        option(name::STORE_TIMEOUT, "DURATION", LEASE)
            .help("The longest that one request to the store may take  [default: 5s, at most ttl / 6]")
            .long_help(
                "The longest that one request to the store may take, connecting included \
                 [default: 5s, at most ttl / 6]",
            ),
        option(name::ON_LOST, "ACTION", LEASE)
            .value_parser(["kill", "warn"])
            .help("What a lost lease does to COMMAND: kill or warn  [default: kill]")
            .long_help(
                "What a lost lease does to COMMAND [default: kill]\n\n\
                 kill: COMMAND and all that it started are dead before the lock can pass to another.\n\n\
                 warn: say so, and let COMMAND run on although another run may hold the lock.",
            )
            .hide_possible_values(true),
    ]
}

fn run_options() -> [Arg; 4] {
    const RUN: &str = "The command";
    [
        option(name::COMMAND_STRING, "STRING", RUN).short('c').help("Run STRING by `sh -c`, as flock(1) does"),
        option(name::MAX_RUNTIME, "DURATION", RUN).help("Stop COMMAND when it has run for that long, and exit 124"),
        option(name::KILL_AFTER, "DURATION", RUN)
            .help("The time from TERM to KILL when COMMAND is stopped  [default: 10s, at most ttl / 3]"),
        option(name::DESCENDANTS, "ACTION", RUN)
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

fn output_options() -> [Arg; 2] {
    const OUTPUT: &str = "Output";
    [
        switch(name::VERBOSE, OUTPUT)
            .short('v')
            .help("Say on stderr what happens: waiting, acquired, started, finished, released"),
        switch(name::QUIET, OUTPUT).short('q').help("Say nothing when the lock is held"),
    ]
}

/// Writes `-w 5`, `-w5` and `--wait 5` as `--wait=5`, where the word is a duration and stands among lockrun's own
/// options. A word that is no duration is left to be the command. Everything from `--` or the first word that is no
/// option on is COMMAND's, and is not touched.
pub fn tie_wait(command: &Command, words: Vec<OsString>) -> Vec<OsString> {
    let takes_value = |find: &dyn Fn(&Arg) -> bool| {
        command.get_arguments().find(|arg| find(arg)).is_some_and(|arg| arg.get_action().takes_values())
    };
    let mut tied = Vec::with_capacity(words.len());
    let mut words = words.into_iter().peekable();
    while let Some(word) = words.next() {
        let text = word.to_str().unwrap_or_default();
        let mut waits = false;
        let mut wants_value = false;
        if text == "--" || !text.starts_with('-') || text == "-" {
            tied.push(word);
            break;
        } else if let Some(long) = text.strip_prefix("--") {
            waits = long == name::WAIT;
            wants_value = !long.contains('=') && takes_value(&|arg| arg.get_long() == Some(long));
        } else if let Some((at, short)) =
            text[1..].char_indices().find(|(_, short)| takes_value(&|arg| arg.get_short() == Some(*short)))
        {
            let (before, value) = text[1..].split_at(at);
            let value = &value[short.len_utf8()..];
            wants_value = value.is_empty();
            if short == 'w' {
                if !before.is_empty() {
                    tied.push(format!("-{before}").into());
                }
                let value = value.strip_prefix('=').unwrap_or(value);
                if value.is_empty() {
                    waits = true;
                } else {
                    tied.push(format!("--{}={value}", name::WAIT).into());
                    continue;
                }
            }
        }
        if waits {
            // A word in front of `--` cannot be the command: if it is no duration either, the reader of the value says so.
            let before_dashes = words.clone().nth(1).is_some_and(|after| after == "--");
            let is_value = |next: &OsString| {
                let text = next.to_str().unwrap_or_default();
                duration::parse(text).is_ok() || (before_dashes && !text.starts_with('-'))
            };
            let value = words.next_if(is_value);
            tied.push(value.map_or_else(
                || OsString::from("--wait"),
                |value| {
                    let mut tie = OsString::from("--wait=");
                    tie.push(value);
                    tie
                },
            ));
            continue;
        }
        tied.push(word);
        if wants_value {
            tied.extend(words.next());
        }
    }
    tied.extend(words);
    tied
}

/// The definition of the hidden subcommand that prints a generated file.
pub fn generate() -> Command {
    Command::new(GENERATE)
        .about("Print the manual or a shell's completions")
        .arg(Arg::new("what").required(true).value_parser(["man", "bash", "zsh", "fish"]))
}

/// Whether the first word names the hidden subcommand. A COMMAND cannot stand there: `--key` comes before it.
pub fn is_generate(first: Option<&OsString>) -> bool {
    first.map(OsString::as_os_str) == Some(OsStr::new(GENERATE))
}

/// The definition of the subcommand that examines a store.
pub fn doctor() -> Command {
    let [_, store, store_file] = lock_options();
    let [_, _, store_timeout, _] = lease_options();
    Command::new(DOCTOR)
        .about("Say what would make locks in a store unsafe or slow")
        .after_help(
            "Exit status: 0 all is well, 1 there are warnings, 2 locks are granted there that cannot be relied on,\n\
             64 the command line is wrong, 69 no lock can be had there at all",
        )
        .args([store, store_file, store_timeout])
}

/// Whether the first word names that subcommand.
pub fn is_doctor(first: Option<&OsString>) -> bool {
    first.map(OsString::as_os_str) == Some(OsStr::new(DOCTOR))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tied(words: &[&str]) -> Vec<String> {
        let words = words.iter().map(OsString::from).collect();
        tie_wait(&command(), words).into_iter().map(|word| word.into_string().expect("is UTF-8")).collect()
    }

    #[test]
    fn the_definition_is_sound() {
        command().debug_assert();
        generate().debug_assert();
        doctor().debug_assert();
    }

    #[test]
    fn wait_takes_the_next_word_only_if_it_is_a_duration() {
        for (typed, meant) in [
            (&["-k", "a", "--wait", "5m", "run"][..], &["-k", "a", "--wait=5m", "run"][..]),
            (&["-k", "a", "-w", "0.5", "run"], &["-k", "a", "--wait=0.5", "run"]),
            (&["-k", "a", "-w5", "run"], &["-k", "a", "--wait=5", "run"]),
            (&["-k", "a", "-vw5", "run"], &["-k", "a", "-v", "--wait=5", "run"]),
            (&["-k", "a", "-vw", "5", "run"], &["-k", "a", "-v", "--wait=5", "run"]),
            (&["-k", "a", "--wait", "run", "-v"], &["-k", "a", "--wait", "run", "-v"]),
            (&["-k", "a", "-w", "--", "5"], &["-k", "a", "--wait", "--", "5"]),
            (&["-k", "a", "--wait=5", "run"], &["-k", "a", "--wait=5", "run"]),
            (&["-k", "a", "-w", "5x", "--", "run"], &["-k", "a", "--wait=5x", "--", "run"]),
            (&["-k", "a", "-w", "-v", "--", "run"], &["-k", "a", "--wait", "-v", "--", "run"]),
        ] {
            assert_eq!(tied(typed), meant, "{typed:?}");
        }
    }

    #[test]
    fn words_of_the_command_and_values_of_options_are_not_touched() {
        for words in [
            &["-k", "--wait", "--", "x"][..],
            &["--key", "-w", "run", "-w", "5"],
            &["-kw", "run", "--wait", "5"],
            &["-k", "a", "run", "--wait", "5"],
            &["-k", "a", "--", "-w", "5"],
            &["-k", "a", "-c", "-w", "-v"],
        ] {
            assert_eq!(tied(words), words);
        }
    }
}
