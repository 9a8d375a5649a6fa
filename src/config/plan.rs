//! Turns the settings of a run into one checked plan.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use super::common::NO_KEY;
use super::settings::{DEFAULT_TTL, Settings, Ttl, UsageError, nonzero_duration};
use crate::cli::{Subcommand, name};
use crate::lock::claim::Mode;
use crate::lock::key::Key;
use crate::lock::lease::Terms;
use crate::report::Verbosity;
use crate::report::event_log::EventFile;
use crate::run::outcome::HELD;
use crate::run::sequence::Sequence;
use crate::store::Address;
use crate::supervise::Descendants;
use crate::text::escape::without_value;

pub use super::settings::OnHeld;

/// Everything that a run needs to know, checked.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The lock's name.
    pub key: Key,
    /// The store.
    pub store: Address,
    /// How the lock may be shared.
    pub mode: Mode,
    /// For how long after the start of a successful run no other is needed.
    pub once_per: Option<Duration>,
    /// The sequence whose next value is reserved, instead of acquiring a lock.
    pub sequence: Option<Sequence>,
    /// What to do when the lock is held.
    pub on_held: OnHeld,
    /// The exit status when the lock is held.
    pub held_status: u8,
    /// For how long to go on trying a store that is away, before COMMAND has started.
    pub store_retry: Duration,
    /// Whether the lease expires after `terms.ttl`.
    pub expires: bool,
    /// The time spans of the lease.
    pub terms: Terms,
    /// The shortest time for which the lock is held, from its acquisition.
    pub min_hold: Duration,
    /// Whether the lock stays held after COMMAND has exited with 0.
    pub keep: bool,
    /// Whether COMMAND is stopped when the lease is lost.
    pub kill_on_lost: bool,
    /// How long COMMAND may run.
    pub max_runtime: Option<Duration>,
    /// What to do with processes that COMMAND leaves behind.
    pub descendants: Descendants,
    /// COMMAND and its arguments.
    pub argv: Vec<OsString>,
    /// The user's own words for who runs it, or why.
    pub label: Option<String>,
    /// The file to which events are appended.
    pub events: Option<EventFile>,
    /// How much is printed.
    pub verbosity: Verbosity,
}

/// Makes the plan of a run under a lock.
pub fn make(settings: &Settings<'_>) -> Result<Plan, UsageError> {
    let plan = of_any_run(settings)?;
    let on_held = settings.on_held()?;
    Ok(Plan {
        mode: settings.mode()?,
        once_per: settings.once_per()?,
        on_held,
        held_status: settings.held_status()?,
        store_retry: settings.store_retry(on_held)?,
        min_hold: settings.duration(name::MIN_HOLD)?.unwrap_or_default(),
        keep: settings.switch(name::KEEP)?,
        ..plan
    })
}

/// Makes the plan of a run with the next value of the sequence that `read` finds in the settings. Settings that concern
/// only locks are ignored.
pub fn make_with_next_of(
    settings: &Settings<'_>,
    read: impl FnOnce(&Settings<'_>) -> Result<Sequence, UsageError>,
) -> Result<Plan, UsageError> {
    let plan = of_any_run(settings)?;
    Ok(Plan { sequence: Some(read(settings)?), ..plan })
}

/// Makes the part of the plan that all runs share, for a lock that is held alone.
fn of_any_run(settings: &Settings<'_>) -> Result<Plan, UsageError> {
    let key = settings.key_if_given()?.ok_or_else(|| no_key(settings))?;
    let argv = argv(settings)?;
    let store = settings.store()?;
    let (expires, terms) = lease(settings, &store)?;
    Ok(Plan {
        key,
        store,
        mode: Mode::EXCLUSIVE,
        once_per: None,
        sequence: None,
        on_held: OnHeld::Fail,
        held_status: HELD,
        store_retry: settings.store_retry(OnHeld::Fail)?,
        expires,
        terms,
        min_hold: Duration::ZERO,
        keep: false,
        kill_on_lost: settings
            .value(name::ON_LOST, |text| match text {
                "kill" => Ok(true),
                "warn" => Ok(false),
                _ => Err(format!("{text:?} is neither kill nor warn")),
            })?
            .unwrap_or(true),
        max_runtime: settings.value(name::MAX_RUNTIME, nonzero_duration)?,
        descendants: settings
            .value(name::DESCENDANTS, |text| match text {
                "leave" => Ok(Descendants::Leave),
                "wait" => Ok(Descendants::Wait),
                "kill" => Ok(Descendants::Kill),
                _ => Err(format!("{text:?} is not one of leave, wait and kill")),
            })?
            .unwrap_or(Descendants::Leave),
        argv,
        label: settings.label()?,
        events: settings.value_and_source(name::EVENTS, event_file)?.map(|(path, source)| EventFile { path, source }),
        verbosity: settings.verbosity()?,
    })
}

/// Returns the error for a run without a key. An option in front of one of lockrun's subcommands turns the line into a
/// run.
fn no_key(settings: &Settings<'_>) -> UsageError {
    let first = settings.typed().get_many::<OsString>(name::COMMAND).and_then(|mut words| words.next());
    match first.and_then(|first| Subcommand::named(first)).map(Subcommand::name) {
        Some(name) => format!(
            "no key: name the lock with --key KEY; if lockrun's own {name} is meant, write it first: lockrun {name} [OPTIONS]"
        )
        .into(),
        // Most likely an option after it was meant for lockrun, or it is the lock, in flock(1)'s order.
        None => match first {
            Some(first) => {
                let first = first.to_string_lossy();
                let first = without_value(&first, &format!("{first:?}"));
                format!("{NO_KEY}, before the command, which begins with {first}").into()
            }
            None => NO_KEY.into(),
        },
    }
}

/// Returns COMMAND and its arguments.
fn argv(settings: &Settings<'_>) -> Result<Vec<OsString>, UsageError> {
    let by_sh = |string: OsString| vec!["sh".into(), "-c".into(), string];
    let typed = settings.typed();
    let args: Vec<OsString> = typed.get_many(name::COMMAND).unwrap_or_default().cloned().collect();
    match (args.first(), typed.get_one::<OsString>(name::COMMAND_STRING)) {
        (Some(_), Some(_)) => Err("--command and COMMAND exclude each other".into()),
        (None, Some(string)) => Ok(by_sh(string.clone())),
        (Some(first), None) if first.is_empty() => Err("the command is an empty word".into()),
        (Some(_), None) => Ok(args),
        (None, None) => match settings.value(name::COMMAND_STRING, |text| Ok(OsString::from(text)))? {
            Some(string) => Ok(by_sh(string)),
            None => Err("no command: give the COMMAND to run, or one for sh with --command".into()),
        },
    }
}

/// Returns whether the lease expires, and its time spans.
fn lease(settings: &Settings<'_>, store: &Address) -> Result<(bool, Terms), UsageError> {
    let ttl = settings.ttl()?;
    let renew_every = settings.value(name::RENEW_EVERY, nonzero_duration)?;
    let kill_after = settings.duration(name::KILL_AFTER)?;
    let store_timeout = settings.store_timeout()?;
    let expires = ttl != Some(Ttl::None);
    let length = if let Some(Ttl::Lasts(length)) = ttl { length } else { DEFAULT_TTL };
    let at_most = |most: u64, part: u32| Duration::from_secs(most).min(length / part);
    let terms = Terms {
        ttl: length,
        renew_every: renew_every.unwrap_or(length / 3),
        kill_after: kill_after.unwrap_or(at_most(10, 3)),
        store_timeout: store_timeout.unwrap_or(at_most(5, 6)),
    };
    // A run on the file store has no lease: there, a long --kill-after alone does no harm.
    let concerned = store.has_leases() || ttl.is_some() || renew_every.is_some() || store_timeout.is_some();
    if expires && concerned {
        terms.check()?;
    }
    Ok((expires, terms))
}

fn event_file(text: &str) -> Result<PathBuf, String> {
    match text {
        "" => Err("is empty; it must name a file".into()),
        "-" => Err(
            "must name a file: standard output belongs to COMMAND; write /dev/stderr, or ./- for a file of that name"
                .into(),
        ),
        path => Ok(path.into()),
    }
}
