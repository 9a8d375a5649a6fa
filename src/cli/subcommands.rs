//! What lockrun does beside running a command, and what can be typed for each.

use std::ffi::OsStr;

use clap::{Arg, Command};

use super::descriptions::described;
use super::options::{self, option, switch};
use super::text::{self, Table};
use super::{name, table};

/// One of lockrun's other commands. Only the first word of a command line names one: a COMMAND to run cannot stand there,
/// since `--key` comes before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subcommand {
    /// Takes a lock, and leaves it held.
    Acquire,
    /// Prolongs the lease of a lock.
    Renew,
    /// Lets go of a lock.
    Release,
    /// Runs a command with the next value of a sequence.
    Reserve,
    /// Says who holds what.
    Status,
    /// Takes a lock away from its holder.
    Break,
    /// Looks for what is wrong.
    Doctor,
    /// Removes what is left of locks that nobody uses any more.
    Prune,
}

use Subcommand::{Acquire, Break, Doctor, Prune, Release, Renew, Reserve, Status};

/// What a person is told of a subcommand.
struct Words {
    name: &'static str,
    page: &'static str,
    usage: &'static str,
    about: &'static str,
    more: &'static str,
}

const OK: (&str, &str) = ("0", "done");
const BAD_USAGE: (&str, &str) = ("64", "the command line or the configuration is wrong");
const STORE_FAILED: (&str, &str) = ("69", "the store cannot be reached, refuses us, or does not answer in time");
const NOT_OURS: (&str, &str) = ("79", "the lock is not, or no longer, held under this token");
const FAILED: (&str, &str) = ("125", "lockrun itself failed");

impl Subcommand {
    /// All of them, in the order in which the help lists them.
    pub const ALL: [Subcommand; 8] = [Acquire, Renew, Release, Reserve, Status, Break, Doctor, Prune];

    /// The one with this name.
    pub fn named(word: &OsStr) -> Option<Self> {
        Self::ALL.into_iter().find(|subcommand| word == subcommand.name())
    }

    /// The word that names it.
    pub fn name(self) -> &'static str {
        self.words().name
    }

    /// The name of its manual page.
    pub fn page(self) -> &'static str {
        self.words().page
    }

    /// The definition of what can be typed after its name.
    pub fn definition(self) -> Command {
        let words = self.words();
        let key_of_held = |arg: Arg| arg.help("The lock's name; else LOCKRUN_KEY").long_help(None);
        let command = Command::new(words.name).args(options::store());
        let command = match self {
            Acquire => command
                .arg(options::key())
                .args(options::held())
                .args([option(name::SLOTS), option(name::TTL), option(name::TOKEN)])
                .args([switch(name::JSON), switch(name::EXPORT)])
                .args(options::output()),
            Renew => command.args([options::key(), option(name::TOKEN), option(name::TTL)]),
            Release => command.args([options::key(), option(name::TOKEN)]).args(options::output()),
            Reserve => command
                .arg(options::key())
                .args([option(name::FROM), option(name::STEP), option(name::NEXT), option(name::ON_FAILURE)])
                .args(options::lease_and_command())
                .args(options::output()),
            Status => command.args([options::key(), switch(name::JSON)]),
            Break => command.args([options::key(), option(name::FENCE), switch(name::NOW)]),
            Doctor => command,
            Prune => command.args([option(name::OLDER_THAN), switch(name::DRY_RUN)]),
        };
        let command = described(if self == Reserve { command } else { command.arg(option(name::STORE_TIMEOUT)) });
        let command = match self {
            Acquire => command.mut_arg(name::TOKEN, |arg| {
                arg.help("A token of your own choice in place of a random one: letters, digits and . _ : -")
            }),
            Renew => command.mut_arg(name::KEY, key_of_held).mut_arg(name::TTL, |arg| {
                arg.help("The lease's new length, at least 1s; none: it never expires  [default: as it was taken for]")
                    .long_help(None)
            }),
            Release => command.mut_arg(name::KEY, key_of_held),
            Status => command.mut_arg(name::KEY, |arg| arg.help("This lock alone").long_help(None)),
            Break | Doctor | Prune | Reserve => command,
        };
        command
            .bin_name(format!("lockrun {}", words.name))
            .display_name(words.page)
            .about(words.about)
            .long_about(format!("{}.\n\n{}", words.about, words.more))
            .override_usage(words.usage)
            .after_long_help(format!(
                "Exit status:\n{}\n{}\n\n{}",
                table(self.exit_status()),
                text::DURATIONS,
                text::SHARED_SETTINGS
            ))
    }

    /// Its exit statuses and what they mean.
    pub fn exit_status(self) -> &'static Table {
        const ACQUIRE: &Table = &[
            ("0", "the lock is ours; with --skip, also: it was held"),
            BAD_USAGE,
            STORE_FAILED,
            ("75", "the lock is held, or the wait ran out (--conflict-exit-code changes it)"),
            FAILED,
        ];
        const HELD: &Table = &[OK, BAD_USAGE, STORE_FAILED, NOT_OURS, FAILED];
        const RESERVE: &Table = &[
            ("COMMAND's", "it ran and ended; if a signal ended it, lockrun dies of the same signal"),
            BAD_USAGE,
            STORE_FAILED,
            ("79", "the lease was lost while COMMAND ran, and COMMAND was stopped"),
            ("124", "--max-runtime passed, and COMMAND was stopped"),
            ("125", "lockrun itself failed, or there is no next value"),
            ("126", "COMMAND cannot be executed; the value is free again"),
            ("127", "COMMAND was not found; the value is free again"),
        ];
        const STATUS: &Table = &[
            ("0", "done; with --key: the lock is free"),
            BAD_USAGE,
            STORE_FAILED,
            ("75", "with --key: the lock is held"),
            FAILED,
        ];
        const BREAK: &Table = &[
            ("0", "the lock was taken away, or was free"),
            BAD_USAGE,
            STORE_FAILED,
            (
                "75",
                "the lock, or a slot, stays whose it is: a living process of this machine's, or not the one with --fence",
            ),
            FAILED,
        ];
        const OTHER: &Table = &[OK, BAD_USAGE, STORE_FAILED, FAILED];
        match self {
            Acquire => ACQUIRE,
            Reserve => RESERVE,
            Renew | Release => HELD,
            Status => STATUS,
            Break => BREAK,
            Doctor | Prune => OTHER,
        }
    }

    fn words(self) -> &'static Words {
        match self {
            Acquire => &Words {
                name: "acquire",
                page: "lockrun-acquire",
                usage: "lockrun acquire --key KEY [OPTIONS]",
                about: "Take a lock and leave it held, for a script to renew and release",
                more: "Prints the token under which the lock is held; `renew` and `release` need it. Nothing renews the \
                       lease by itself: it runs out after --ttl. Where a command can run under lockrun, that is safer.",
            },
            Renew => &Words {
                name: "renew",
                page: "lockrun-renew",
                usage: "lockrun renew --key KEY --token TOKEN [OPTIONS]",
                about: "Prolong the lease of a lock that `acquire` has taken",
                more: "The lease lasts from now on for as long as it was taken for, or for --ttl. While a command of lockrun's \
                       runs under it, --ttl cannot make it shorter than it was taken for. A lock that is not held under the \
                       token is never taken anew.",
            },
            Release => &Words {
                name: "release",
                page: "lockrun-release",
                usage: "lockrun release --key KEY --token TOKEN [OPTIONS]",
                about: "Let go of a lock that `acquire` has taken",
                more: "A lock that is not held under the token is not touched. One under which a command of lockrun's \
                       still runs is let go of when that has ended.",
            },
            Reserve => &Words {
                name: "reserve",
                page: "lockrun-reserve",
                usage: "lockrun reserve --key KEY --from VALUE [OPTIONS] [--] COMMAND [ARG]...",
                about: "Run a command with the next value of a sequence that nobody else has reserved",
                more: "COMMAND finds the value in LOCKRUN_SLOT. It is VALUE for the first run; then the last one and --step, \
                       or what --next prints. Values that other runs have reserved are passed over. When COMMAND ends \
                       with 0 the value becomes the last one, unless one that comes after it has. When it fails, or has \
                       to be stopped, the last one stays, and the value is reserved until its lease runs out: then it \
                       comes up again, if none that comes after it was used. Nothing is waited for.\n\n\
                       A sequence is as durable as its store: files in the default directory are gone after a reboot, and the \
                       sequence would begin anew. Name a directory that lasts, or a Redis that keeps its data.",
            },
            Status => &Words {
                name: "status",
                page: "lockrun-status",
                usage: "lockrun status [--key KEY] [OPTIONS]",
                about: "Say who holds which lock, who waits, and who ran last",
                more: "Without --key it lists every lock of the store that is held or has been. With --key it ends with 75 \
                       if the lock is held, and with 0 if it is free. A lock in files whose record is broken is not among \
                       them: that is said on standard error, and the status is 69.",
            },
            Break => &Words {
                name: "break",
                page: "lockrun-break",
                usage: "lockrun break --key KEY [OPTIONS]",
                about: "Take a lock away from whoever holds it",
                more: "The holder's renewals are refused from now on: it learns of it at the next one, and stops its \
                       command. The lock is free when that has been done, at the latest when its lease ends. A lock that was \
                       taken by hand is free at once. In files the lock of a run belongs to a living process, and goes with it: it is \
                       named, and the others are taken.",
            },
            Doctor => &Words {
                name: "doctor",
                page: "lockrun-doctor",
                usage: "lockrun doctor [OPTIONS]",
                about: "Look for what could keep locks from working here, and say what to do about it",
                more: "Nothing is changed but a lock of its own, which it takes and frees.",
            },
            Prune => &Words {
                name: "prune",
                page: "lockrun-prune",
                usage: "lockrun prune --older-than DURATION [OPTIONS]",
                about: "Remove what is left of locks that have not been used for long",
                more: "Locks that are held or waited for are left alone. So are those in files whose record is broken: that is \
                       said on standard error, and the status is 69.",
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
