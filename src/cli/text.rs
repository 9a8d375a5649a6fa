//! The texts of the help and the manual, except those of the options.

/// A one-line description.
pub const ABOUT: &str = "Run a command under a lock: flock(1) for a whole fleet";

/// A longer description.
pub const LONG_ABOUT: &str = "\
Run a command under a lock, so that it never runs twice at once: not on this machine, and with a shared store not on \
any other. lockrun acquires the lock KEY, starts COMMAND, holds the lock while COMMAND runs, forwards signals to it, \
releases the lock and ends as COMMAND ended. If the lock is held, it fails, skips or waits.";

/// The usage.
pub const USAGE: &str = "\
lockrun --key KEY [OPTIONS] [--] COMMAND [ARG]...
       lockrun --key KEY [OPTIONS] --command STRING
       lockrun acquire | renew | release | reserve | status | break | doctor | prune [OPTIONS]";

/// The date in the footers of the manual pages: when they were last changed.
pub const MANUAL_DATE: &str = "2026-11-28";

/// Terms, and what each means.
pub type Table = [(&'static str, &'static str)];

/// Every exit status of a run and what it means.
pub const EXIT_STATUS: [(&str, &str); 10] = [
    ("COMMAND's", "it ran and ended; if a signal terminated it, the same signal terminates lockrun"),
    ("0", "also: the lock was held, and --skip was given; or the job was done (--once-per)"),
    ("64", "the command line or the configuration is wrong"),
    (
        "69",
        "the store cannot be reached, rejects the request, does not answer in time, or has a broken record; COMMAND was not started",
    ),
    ("75", "the lock is held, or the wait timed out (--conflict-exit-code changes it)"),
    ("79", "the lease was lost while COMMAND ran, and COMMAND was stopped"),
    ("124", "--max-runtime passed, and COMMAND was stopped"),
    ("125", "lockrun itself failed"),
    ("126", "COMMAND cannot be executed; the lock is released"),
    ("127", "COMMAND was not found; the lock is released"),
];

/// The variables that COMMAND finds in its environment.
pub const ENVIRONMENT: [(&str, &str); 6] = [
    ("LOCKRUN_KEY", "the lock's name"),
    ("LOCKRUN_TOKEN", "the random token of this acquisition"),
    ("LOCKRUN_FENCE", "the fencing token: greater than that of every earlier run under this lock"),
    (
        "LOCKRUN_SLOT",
        "with --slots N, N above 1: this run's slot, from 0 to N-1, which no other run has at the same time",
    ),
    ("LOCKRUN_VALUE", "under `lockrun reserve`: the reserved value"),
    ("LOCKRUN_OUTER_TOKENS", "inside the command of another run: the tokens of the enclosing runs"),
];

/// How durations are written.
pub const DURATIONS: &str =
    "Durations are plain seconds (5, 0.5) or have units (500ms, 30s, 5m, '2h 30m'), which are ms, s, m, h, d and w.";

/// Where the options of a run can be set.
pub const SETTINGS: &str = "Every option but --key can also be set by an environment variable: LOCKRUN_ and its name in \
    capitals with _ for -, such as LOCKRUN_STORE, LOCKRUN_STORE_FILE or LOCKRUN_TTL. An option that takes no value is \
    set to true or false, and --skip and --wait, whose duration is optional, to true, false or a duration: LOCKRUN_WAIT=true waits for \
    ever, and LOCKRUN_SKIP=1 is on, as for a switch. Any other variable that begins with LOCKRUN_ is an error \
    (status 64), except those that Kubernetes sets for a service, such as LOCKRUN_SERVICE_HOST. In the files below an option is set by its name. Precedence: command line, environment, user file, system file.";

/// Where the options of a subcommand can be set.
pub const SHARED_SETTINGS: &str = "The options that lockrun also has when it runs a command can be set by the same \
    variables and in the same files, such as by LOCKRUN_STORE: see lockrun(1). The command line wins.";

/// Which signals reach which processes.
pub const SIGNALS: &str = "lockrun relays INT, TERM, HUP, QUIT, TSTP, CONT and WINCH to COMMAND's whole process group, and every other \
    signal (USR1, for example) to COMMAND's own process alone. Without a controlling terminal COMMAND leads a process group of its own. \
    With one it shares lockrun's: lockrun then relays signals to those members that descend from COMMAND, and does not repeat \
    signals that the terminal itself sends to the group. When COMMAND has ended and --descendants waits for the processes that it left \
    behind, an INT, QUIT or TERM that another process sends to lockrun goes to all of these. After TERM, stopped processes get CONT. A signal that was ignored when \
    lockrun started stays ignored.";

/// The configuration files.
pub const FILES: [(&str, &str); 2] = [
    ("$XDG_CONFIG_HOME/lockrun/config.toml", "the user's, in ~/.config/lockrun if XDG_CONFIG_HOME is unset or empty"),
    ("/etc/lockrun.toml", "the system's"),
];

/// Their format.
pub const FILE_FORMAT: &str = "TOML, one option per line, such as: ttl = \"1m\", kill-after = 5, skip = true, store = \
    \"redis://redis.example.com\". An unknown option or a wrong value is an error. lockrun warns of a password \
    that others can read.";

/// The fields that the objects of `--events` have in common.
pub const EVENT_FORMAT: &str = "--events FILE appends one JSON object per line for each of these events. Each has time (UTC), \
    event, key, and host, pid, user and command of the run; from acquired on also fence and, with --slots, slot. Events \
    never contain a token or a store's password.";

/// The events, and the other fields of each.
pub const EVENTS: [(&str, &str); 14] = [
    (
        "waiting",
        "the lock is held, and lockrun waits for it: holder (host, pid, user, command, held_ms), place in the queue",
    ),
    ("acquired", "the lock was acquired: waited_ms; with reserve also value"),
    ("started", "COMMAND runs"),
    (
        "held",
        "the lock is held, and the run fails: holder; place, if it waited; why, if it gave up waiting, would wait for a lock that it runs under, or too many wait",
    ),
    (
        "skipped",
        "the lock is held, and --skip was given: holder; or the job is done (--once-per): why, and the holder that did it",
    ),
    (
        "outage",
        "a request for the lock, or a renewal, has failed because the store is away: why; left_ms, for how long it is tried again",
    ),
    ("recovered", "the store, which was away, answers again"),
    ("lost", "the lease is lost: why, stops_command, held_ms"),
    ("killed", "COMMAND was stopped: why"),
    ("finished", "COMMAND has ended: status or signal, ran_ms"),
    ("released", "the lock was released: held_ms, min_hold_ms"),
    ("kept", "the lock stays held: held_ms"),
    ("interrupted", "a signal terminated lockrun before COMMAND was started: signal"),
    ("failed", "an error: why"),
];
