//! The subcommands and their command lines.

use std::ffi::OsStr;

use clap::{Arg, Command};

use super::descriptions::described;
use super::options::{self, option, switch};
use super::text::{self, Table};
use super::{examples, name, table};

/// A subcommand. Only the first word of a command line can name one. A COMMAND to run is never the first word, since
/// `--key` comes before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subcommand {
    /// Acquires a lock and leaves it held.
    Acquire,
    /// Renews the lease of a lock.
    Renew,
    /// Releases a lock.
    Release,
    /// Runs a command with the next value of a sequence.
    Reserve,
    /// Shows the holders, the waiters and the last run of locks.
    Status,
    /// Revokes a lock from its holders.
    Break,
    /// Diagnoses the store.
    Doctor,
    /// Removes the remains of unused locks.
    Prune,
}

use Subcommand::{Acquire, Break, Doctor, Prune, Release, Renew, Reserve, Status};

/// The documentation of a subcommand.
struct Doc {
    name: &'static str,
    page: &'static str,
    usage: &'static str,
    about: &'static str,
    more: &'static str,
}

const OK: (&str, &str) = ("0", "done");
const BAD_USAGE: (&str, &str) = ("64", "the command line or the configuration is wrong");
const STORE_FAILED: (&str, &str) =
    ("69", "the store cannot be reached, rejects the request, does not answer in time, or has a broken record");
const NOT_OURS: (&str, &str) = ("79", "the lock is not, or no longer, held under this token");
const FAILED: (&str, &str) = ("125", "lockrun itself failed");

impl Subcommand {
    /// All subcommands, in the order of the help.
    pub const ALL: [Subcommand; 8] = [Acquire, Renew, Release, Reserve, Status, Break, Doctor, Prune];

    /// Returns the subcommand with this name.
    pub fn named(word: &OsStr) -> Option<Self> {
        Self::ALL.into_iter().find(|subcommand| word == subcommand.name())
    }

    /// Returns its name.
    pub fn name(self) -> &'static str {
        self.doc().name
    }

    /// Returns the name of its manual page.
    pub fn page(self) -> &'static str {
        self.doc().page
    }

    /// Returns the definition of its command line, after its name.
    pub fn definition(self) -> Command {
        let doc = self.doc();
        let key_of_held = |arg: Arg| arg.help("The lock's name  [default: $LOCKRUN_KEY]").long_help(None);
        let command = Command::new(doc.name).args(options::store());
        let command = match self {
            Acquire => command
                .args([options::key(), options::key_word()])
                .args(options::mode())
                .args(options::held())
                .args([option(name::TTL), options::token(), option(name::LABEL), option(name::STORE_RETRY)])
                .args([switch(name::JSON), switch(name::EXPORT)])
                .args(options::output()),
            Renew => command.args([options::key(), options::key_word(), options::token(), option(name::TTL)]),
            Release => command.args([options::key(), options::key_word(), options::token()]).args(options::output()),
            Reserve => command
                .arg(options::key())
                .args([option(name::FROM), option(name::STEP), option(name::NEXT), option(name::ON_FAILURE)])
                .args(options::lease_and_command())
                .args(options::output()),
            Status => command.args([
                options::key(),
                options::key_word(),
                switch(name::ONLY_HELD),
                switch(name::JSON),
                switch(name::METRICS),
            ]),
            Break => command.args([options::key(), options::key_word(), option(name::FENCE), switch(name::NOW)]),
            Doctor => command.args([switch(name::JSON), switch(name::SCHEMA)]),
            Prune => command.args([
                options::key(),
                options::key_word(),
                option(name::OLDER_THAN),
                switch(name::DRY_RUN),
                switch(name::DONE),
            ]),
        };
        let command = described(if self == Reserve { command } else { command.arg(option(name::STORE_TIMEOUT)) });
        let command = match self {
            Acquire => command.mut_arg(name::TOKEN, |arg| {
                arg.help("Use this token instead of a random one: letters, digits and . _ : -")
            }),
            Renew => command.mut_arg(name::KEY, key_of_held).mut_arg(name::TTL, |arg| {
                arg.help(
                    "The new length of the lease, at least 1s; none: it never expires  [default: its present length]",
                )
                .long_help(None)
            }),
            Release => command.mut_arg(name::KEY, key_of_held),
            Status => command
                .mut_arg(name::KEY, |arg| arg.help("Show only this lock").long_help(None))
                .mut_arg(name::KEY_WORD, |arg| arg.help("The lock's name, or a pattern of names, such as 'backup-*'")),
            Prune => command.mut_arg(name::KEY, |arg| arg.help("Remove only this lock").long_help(None)),
            Break | Doctor | Reserve => command,
        };
        command
            .bin_name(format!("lockrun {}", doc.name))
            .display_name(doc.page)
            .about(doc.about)
            .long_about(format!("{}.\n\n{}", doc.about, doc.more))
            .override_usage(doc.usage)
            .after_long_help(format!(
                "Exit status:\n{}\n{}\n\n{}\n\n{}",
                table(self.exit_status()),
                text::DURATIONS,
                self.settings(),
                examples::listed(examples::of(self))
            ))
    }

    /// Returns where its options can be set.
    pub fn settings(self) -> String {
        let only_typed = match self {
            Acquire => {
                " --skip, -E, --shared and --slots are read only from the command line: a script must not continue without its lock, \
                 or share it, because of a setting that its author did not know about."
            }
            Renew => " --ttl is read only from the command line.",
            _ => "",
        };
        format!("{}{only_typed}", text::SHARED_SETTINGS)
    }

    /// Returns its exit statuses and their meanings.
    pub fn exit_status(self) -> &'static Table {
        const ACQUIRE: &Table = &[
            ("0", "the lock was acquired; with --skip, also: it was held"),
            BAD_USAGE,
            STORE_FAILED,
            ("75", "the lock is held, or the wait timed out (--conflict-exit-code changes it)"),
            FAILED,
        ];
        const HELD: &Table = &[OK, BAD_USAGE, STORE_FAILED, NOT_OURS, FAILED];
        const RESERVE: &Table = &[
            ("COMMAND's", "it ran and ended; if a signal terminated it, the same signal terminates lockrun"),
            BAD_USAGE,
            STORE_FAILED,
            ("75", "the server has just started or failed over, and reserves nothing yet"),
            ("79", "the lease was lost while COMMAND ran, and COMMAND was stopped"),
            ("124", "--max-runtime passed, and COMMAND was stopped"),
            ("125", "lockrun itself failed, or there is no next value"),
            ("126", "COMMAND cannot be executed; the value is free again"),
            ("127", "COMMAND was not found; the value is free again"),
        ];
        const STATUS: &Table = &[
            ("0", "done; with KEY: the lock is free"),
            BAD_USAGE,
            STORE_FAILED,
            ("75", "with KEY: the lock is held or withheld"),
            FAILED,
        ];
        const BREAK: &Table = &[
            ("0", "the lock was broken, or was free"),
            BAD_USAGE,
            STORE_FAILED,
            (
                "75",
                "the lock, or a slot, stays held: by a living process of this machine, under another fencing token than --fence, or by a run that has acquired it meanwhile",
            ),
            FAILED,
        ];
        const DOCTOR: &Table = &[
            ("0", "nothing was found, or only notes; with --schema: the SQL was printed"),
            ("1", "a warning: locks hold, but not in every situation, or they are slow"),
            ("2", "a failure: locks are granted that cannot be relied on"),
            BAD_USAGE,
            ("69", "no lock can be acquired at all"),
            FAILED,
        ];
        const PRUNE: &Table = &[
            OK,
            BAD_USAGE,
            STORE_FAILED,
            (
                "75",
                "with KEY: the lock is held, withheld or waited for, keeps a sequence or a --once-per, or cannot be removed yet",
            ),
            FAILED,
        ];
        match self {
            Acquire => ACQUIRE,
            Reserve => RESERVE,
            Renew | Release => HELD,
            Status => STATUS,
            Break => BREAK,
            Doctor => DOCTOR,
            Prune => PRUNE,
        }
    }

    fn doc(self) -> &'static Doc {
        match self {
            Acquire => &Doc {
                name: "acquire",
                page: "lockrun-acquire",
                usage: "lockrun acquire [--key] KEY [OPTIONS]",
                about: "Acquire a lock and leave it held, for a script to renew and release",
                more: "Prints the token under which the lock is held; `renew` and `release` need it. Nothing renews the \
                       lease automatically: it expires after --ttl. Running a command under lockrun is safer where that is possible.",
            },
            Renew => &Doc {
                name: "renew",
                page: "lockrun-renew",
                usage: "lockrun renew [--key] KEY --token TOKEN [OPTIONS]",
                about: "Renew the lease of a lock acquired by `acquire`",
                more: "From now on the lease lasts for its present length, or for --ttl. While lockrun's command runs under it, \
                       --ttl cannot shorten it. A lock that is not held under the token is never acquired anew.",
            },
            Release => &Doc {
                name: "release",
                page: "lockrun-release",
                usage: "lockrun release [--key] KEY --token TOKEN [OPTIONS]",
                about: "Release a lock acquired by `acquire`",
                more: "A lock that is not held under the token is not touched. One under which lockrun's command \
                       still runs is released when the command has ended. The store is not remembered: if --store named it when the \
                       lock was acquired, name it again, or set LOCKRUN_STORE for both.",
            },
            Reserve => &Doc {
                name: "reserve",
                page: "lockrun-reserve",
                usage: "lockrun reserve --key KEY --from VALUE [OPTIONS] [--] COMMAND [ARG]...",
                about: "Run a command with the next free value of a sequence",
                more: "COMMAND finds the value in LOCKRUN_VALUE. The first run gets VALUE; a later one gets the last value plus \
                       --step, or what --next prints. Values that other runs have reserved are skipped. When COMMAND exits \
                       with 0 its value becomes the last one, unless a later value already is. When COMMAND fails or is \
                       stopped, the last value stays, and the reserved one comes up again when its lease has expired, \
                       unless a later value was used meanwhile. It never waits, not even for a run that holds KEY as a lock: give a sequence \
                       a key of its own.\n\n\
                       A sequence is as durable as its store: files in the default directory are gone after a reboot, and the \
                       sequence would begin anew. Use a directory that survives a reboot, a PostgreSQL, or a Redis that keeps its data.",
            },
            Status => &Doc {
                name: "status",
                page: "lockrun-status",
                usage: "lockrun status [[--key] KEY] [OPTIONS]",
                about: "Show who holds which lock, who waits, and how the last run ended",
                more: "Without KEY it lists every lock of the store that is held or has been held. With KEY it exits with 75 \
                       if the lock is held or withheld, and with 0 if it is free. KEY without --key may be a pattern, in which * stands for any \
                       characters and ? for one: then it lists those locks. The state is held (a run holds the lock), shared, by hand \
                       (acquired by `acquire`), kept (by --keep or --min-hold, its run has ended), revoked, unrecorded (its record was deleted, \
                       and held until its command has been stopped), withheld (granted to nobody yet, after a failover of Redis) or free. \
                       On a terminal it has colours, unless NO_COLOR is set. A lock whose record is broken is reported on \
                       standard error instead, and the status is 69.",
            },
            Break => &Doc {
                name: "break",
                page: "lockrun-break",
                usage: "lockrun break [--key] KEY [OPTIONS]",
                about: "Break a lock: revoke it from its holder",
                more: "The holder can no longer renew its lease: at its next renewal it stops its command. The lock is free when \
                       the command has ended, at the latest when the lease expires. A lock acquired by hand is free at once. In \
                       files the lock of a run belongs to a living process, and ends with it: such a holder is named, and the \
                       others are revoked.",
            },
            Doctor => &Doc {
                name: "doctor",
                page: "lockrun-doctor",
                usage: "lockrun doctor [OPTIONS]",
                about: "Look for anything that could keep locks from working, and say what to do about it",
                more: "It changes nothing but a lock of its own, which it acquires and releases. With --schema it looks at nothing: it \
                       prints the SQL of the tables of a PostgreSQL or MySQL store, for a role that may not create them.",
            },
            Prune => &Doc {
                name: "prune",
                page: "lockrun-prune",
                usage: "lockrun prune --older-than DURATION [OPTIONS]\n       lockrun prune [--key] KEY [OPTIONS]\n       lockrun prune --done [--key] KEY",
                about: "Remove the remains of one lock, or of all that have not been used for long",
                more: "With KEY and without --older-than it removes that lock's remains, however young they are. The next fencing token of \
                       a removed lock is still greater than every earlier one. Locks that are held or waited for are left alone. So is a lock whose record is broken: it is reported on \
                       standard error, and the status is 69.",
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_definition_is_sound_and_found_by_its_name() {
        for subcommand in Subcommand::ALL {
            subcommand.definition().debug_assert();
            assert_eq!(Subcommand::named(subcommand.name().as_ref()), Some(subcommand));
            assert_eq!(subcommand.page(), format!("lockrun-{}", subcommand.name()));
        }
        assert_eq!(Subcommand::named("nonsense".as_ref()), None);
    }
}
