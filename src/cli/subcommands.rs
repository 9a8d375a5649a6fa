//! What lockrun does beside running a command, and what can be typed for each.

use std::ffi::OsStr;

use clap::{Arg, Command};

use super::name;
use super::options::{self, heading, option, switch};
use super::text::Table;

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
    /// Says who holds what.
    Status,
    /// Takes a lock away from its holder.
    Break,
    /// Looks for what is wrong.
    Doctor,
    /// Removes what is left of locks that nobody uses any more.
    Prune,
}

use Subcommand::{Acquire, Break, Doctor, Prune, Release, Renew, Status};

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
    pub const ALL: [Subcommand; 7] = [Acquire, Renew, Release, Status, Break, Doctor, Prune];

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
        let arguments: Vec<Arg> = match self {
            Acquire => [options::key()]
                .into_iter()
                .chain(options::store())
                .chain([
                    options::slots(),
                    token("A token of your own choice in place of a random one: letters, digits and . _ : -"),
                ])
                .chain(options::held())
                .chain([options::ttl(), options::store_timeout()])
                .chain(options::output())
                .chain([json(), export()])
                .collect(),
            Renew => held_lock().chain([new_ttl(), options::store_timeout()]).collect(),
            Release => held_lock().chain([options::store_timeout()]).chain(options::output()).collect(),
            Status => [options::key().help("This lock alone").long_help("This lock alone.")]
                .into_iter()
                .chain(options::store())
                .chain([options::store_timeout(), json()])
                .collect(),
            Break => [options::key()].into_iter().chain(options::store()).chain(breaking()).collect(),
            Doctor => options::store().into_iter().chain([options::store_timeout()]).collect(),
            Prune => options::store().into_iter().chain(pruning()).collect(),
        };
        Command::new(words.name)
            .bin_name(format!("lockrun {}", words.name))
            .display_name(words.page)
            .about(words.about)
            .long_about(format!("{}.\n\n{}", words.about, words.more))
            .override_usage(words.usage)
            .args(arguments)
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
            ("75", "the lock stays whose it is: a living process of this machine's, or not the one with --fence"),
            FAILED,
        ];
        const OTHER: &Table = &[OK, BAD_USAGE, STORE_FAILED, FAILED];
        match self {
            Acquire => ACQUIRE,
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
                more: "The lease lasts from now on for as long as it was taken for, or for --ttl. A lock that is not held under the token is never taken anew.",
            },
            Release => &Words {
                name: "release",
                page: "lockrun-release",
                usage: "lockrun release --key KEY --token TOKEN [OPTIONS]",
                about: "Let go of a lock that `acquire` has taken",
                more: "A lock that is not held under the token is not touched. One under which a command of lockrun's \
                       still runs is let go of when that has ended.",
            },
            Status => &Words {
                name: "status",
                page: "lockrun-status",
                usage: "lockrun status [--key KEY] [OPTIONS]",
                about: "Say who holds which lock, who waits, and who ran last",
                more: "Without --key it lists every lock of the store that is held or has been. With --key it ends with 75 \
                       if the lock is held, and with 0 if it is free.",
            },
            Break => &Words {
                name: "break",
                page: "lockrun-break",
                usage: "lockrun break --key KEY [OPTIONS]",
                about: "Take a lock away from whoever holds it",
                more: "The holder's renewals are refused from now on: it learns of it at the next one, and stops its \
                       command. The lock is free when that has been done, at the latest when its lease ends. A lock that was \
                       taken by hand is free at once. In files a lock belongs to a living process, and goes with it.",
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
                more: "Locks that are held or waited for are left alone.",
            },
        }
    }
}

/// A lock that somebody holds under a token.
fn held_lock() -> impl Iterator<Item = Arg> {
    [options::key().long_help("The lock's name; else LOCKRUN_KEY.")]
        .into_iter()
        .chain([token("The token that `acquire` has printed; else LOCKRUN_TOKEN")])
        .chain(options::store())
}

fn token(help: &'static str) -> Arg {
    option(name::TOKEN, "TOKEN", heading::LOCK).help(help)
}

fn new_ttl() -> Arg {
    option(name::TTL, "DURATION", heading::LEASE)
        .help("The lease's new length, at least 1s; none: it never expires  [default: as it was taken for]")
}

fn json() -> Arg {
    switch(name::JSON, heading::OUTPUT).help("Print the answer as JSON")
}

fn export() -> Arg {
    switch(name::EXPORT, heading::OUTPUT)
        .help("Print assignments for a shell to evaluate: LOCKRUN_KEY, LOCKRUN_TOKEN, LOCKRUN_FENCE, LOCKRUN_SLOT")
}

fn breaking() -> [Arg; 3] {
    [
        option(name::FENCE, "N", heading::LOCK)
            .help("Only if this is still the holder's fence")
            .long_help("Only if this is still the holder's fence, as `lockrun status` has shown it."),
        switch(name::NOW, heading::LOCK).help("Free it at once, even where its command could not be told").long_help(
            "Free the lock at once, even where its holder could not be told: its command may still run beside the \
                 next one.",
        ),
        options::store_timeout(),
    ]
}

fn pruning() -> [Arg; 3] {
    [
        option(name::OLDER_THAN, "DURATION", heading::LOCK).help("Locks that were not used for that long"),
        switch(name::DRY_RUN, heading::LOCK).help("Only say what would be removed"),
        options::store_timeout(),
    ]
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
