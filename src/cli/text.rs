//! What the help and the manual say beside the options.

/// A line for people.
pub const ABOUT: &str = "Run a command under a lock: flock(1) for a whole fleet";

/// What a run is.
pub const LONG_ABOUT: &str = "\
Run a command under a lock, so that it never runs twice at once: not on this machine, and with a shared store not on \
any other. lockrun takes the lock KEY, starts COMMAND, keeps the lock for as long as COMMAND runs, forwards signals \
to it, lets go of the lock and ends as COMMAND ended. If the lock is held, it fails, skips or waits.";

/// How lockrun is called.
pub const USAGE: &str = "\
lockrun --key KEY [OPTIONS] [--] COMMAND [ARG]...
       lockrun --key KEY [OPTIONS] --command STRING
       lockrun acquire | renew | release | status | break | doctor | prune [OPTIONS]";

/// Terms, and what each means.
pub type Table = [(&'static str, &'static str)];

/// Every exit status of a run and what it means.
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

/// The variables that COMMAND finds in its environment.
pub const ENVIRONMENT: [(&str, &str); 4] = [
    ("LOCKRUN_KEY", "the lock's name"),
    ("LOCKRUN_TOKEN", "the random token of this acquisition"),
    ("LOCKRUN_FENCE", "the fencing token: greater than that of every earlier run under this lock"),
    (
        "LOCKRUN_SLOT",
        "with --slots N, N above 1: this run's slot, from 0 to N-1, which no other has now; under `lockrun reserve`: the value",
    ),
];

/// How durations are written.
pub const DURATIONS: &str = "Durations are plain seconds (5, 0.5) or have units (500ms, 30s, 5m, '2h 30m').";

/// Where the options of a run can be set.
pub const SETTINGS: &str = "Every option but --key can also be set by an environment variable: LOCKRUN_ and its name in \
    capitals with _ for -, such as LOCKRUN_STORE, LOCKRUN_STORE_FILE or LOCKRUN_TTL. An option that takes no value is \
    set to true or false, and --wait to true, to wait for ever, or to a duration. And it can be set in the files below, by \
    its name. The command line wins over the environment, it over the user's file, it over the system's.";

/// Where the options of a subcommand can be set.
pub const SHARED_SETTINGS: &str = "The options that lockrun also has when it runs a command can be set in the same places, \
    such as by LOCKRUN_STORE or LOCKRUN_TTL: see lockrun(1). The command line wins.";

/// Which signals reach which processes.
pub const SIGNALS: &str = "INT, TERM, HUP, QUIT, TSTP, CONT and WINCH that are sent to lockrun are passed on to COMMAND's whole \
    process group, every other signal (USR1, for example) to COMMAND's own process alone. Without a controlling terminal COMMAND leads \
    a process group of its own. With one it shares lockrun's: signals are then passed on to those members that descend from \
    COMMAND, and what the terminal itself sends to the group is not sent again. After TERM, a process that is stopped gets CONT. \
    A signal that was ignored when lockrun started stays ignored.";

/// The configuration files.
pub const FILES: [(&str, &str); 2] = [
    (
        "$XDG_CONFIG_HOME/lockrun/config.toml",
        "the user's, in ~/.config/lockrun if XDG_CONFIG_HOME is not set to an absolute path",
    ),
    ("/etc/lockrun.toml", "the system's"),
];

/// What they look like.
pub const FILE_FORMAT: &str = "They are TOML, one option a line, such as: ttl = \"1m\", kill-after = 5, skip = true, store = \
    \"redis://redis.example.com\". What is not an option, or has a wrong value, is an error. lockrun warns of a password \
    that others can read.";

/// What the objects of `--events` have in common.
pub const EVENT_FORMAT: &str = "--events FILE appends an object in JSON for each of these, on a line of its own. Each has time (UTC), \
    event, key, and host, pid, user and command of the run; from acquired on also fence and, with --slots, slot. There is \
    never a token or a store's password in it.";

/// The events, and what else there is in each.
pub const EVENTS: [(&str, &str); 12] = [
    ("waiting", "the lock is held, and we wait for it: holder (host, pid, user, command, held_ms), place in the queue"),
    ("acquired", "the lock is ours: waited_ms"),
    ("started", "COMMAND runs"),
    ("held", "the lock is held, and that is a failure: holder; why, if a run would wait for its own lock"),
    ("skipped", "the lock is held, and --skip was given: holder"),
    ("lost", "the lease is lost: why, stops_command, held_ms"),
    ("killed", "COMMAND was stopped: why"),
    ("finished", "COMMAND has ended: status or signal, ran_ms"),
    ("released", "the lock was let go of: held_ms, min_hold_ms"),
    ("kept", "the lock stays held: held_ms"),
    ("interrupted", "a signal ended lockrun before COMMAND was started: signal"),
    ("failed", "something went wrong: why"),
];
