//! `lockrun acquire`: acquires a lock that outlives this process.

use std::fmt::Write as _;
use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::json;

use super::open_at;
use crate::cli::name;
use crate::config::settings::{DEFAULT_TTL, Settings, Ttl, UsageError};
use crate::lock::ending::Ending;
use crate::lock::holder::Holder;
use crate::lock::token::Token;
use crate::report::event::Event;
use crate::report::reporter::Reporter;
use crate::report::{self, Verbosity};
use crate::run::acquire::{self, HeldPolicy};
use crate::run::enclosing::{EnclosingLocks, OUTER};
use crate::run::outcome::Outcome;
use crate::store::{Address, Claim, Grant, Mode, left_behind};
use crate::supervise::{SLOT, VALUE};
use crate::sys::signals::Signals;
use crate::sys::{stderr, stdio};
use crate::text::escape::{escaped, json_for_terminals};
use crate::text::shell::quoted;

/// The settings of `lockrun acquire`, checked.
struct Options {
    claim: Claim,
    timeout: Duration,
    held_policy: HeldPolicy,
    verbosity: Verbosity,
    store: Address,
    form: Form,
}

/// The form in which the token is printed.
#[derive(Clone, Copy)]
enum Form {
    /// The bare token.
    Token,
    /// A JSON object.
    Json,
    /// Shell assignments.
    Export,
}

impl Options {
    fn read(settings: &Settings<'_>) -> Result<Self, UsageError> {
        if [name::KEY, name::KEY_WORD].iter().all(|name| settings.typed().contains_id(name)) {
            return Err("acquire runs no command: to run one under a lock, leave acquire out".into());
        }
        let ttl = settings.ttl()?.unwrap_or(Ttl::Lasts(DEFAULT_TTL));
        let on_held = settings.on_held_by_hand()?;
        let own_token = settings.typed_value(name::TOKEN, Token::parse)?;
        Ok(Options {
            claim: Claim {
                key: settings.key()?,
                request: own_token.is_some().then(Token::random),
                token: own_token.unwrap_or_else(Token::random),
                ttl,
                holder: Holder::caller(settings.label()?),
                mode: settings.mode_by_hand()?,
                once_per: None,
                by_hand: true,
            },
            timeout: settings.store_timeout_within(ttl)?,
            held_policy: HeldPolicy {
                on_held,
                held_status: settings.held_status_by_hand()?,
                store_retry: settings.store_retry(on_held)?,
                terms: None,
            },
            store: settings.store()?,
            verbosity: settings.verbosity()?,
            form: match (settings.typed_switch(name::JSON), settings.typed_switch(name::EXPORT)) {
                (true, true) => return Err("--json and --export exclude each other".into()),
                (true, false) => Form::Json,
                (false, true) => Form::Export,
                (false, false) => Form::Token,
            },
        })
    }
}

/// Acquires the lock and prints its token: alone on a line, as JSON, or as shell assignments. If the token cannot be
/// printed, no process could release the lock, so the acquisition is cancelled. Fails with [`UsageError`] if a setting
/// is wrong.
pub fn run(settings: &Settings<'_>) -> Result<Outcome> {
    let Options { claim, timeout, held_policy, verbosity, store: address, form } = Options::read(settings)?;
    let mut store = open_at(&address, settings, Some(timeout))?;
    let signals = Signals::take_over().context("cannot block signals")?;
    let reporter = Reporter::new(claim.key.clone(), &address, verbosity);
    let enclosing = EnclosingLocks::of_this_process();
    stderr::limit_blocking();
    let grant = match acquire::acquire(&mut *store, &claim, held_policy, &enclosing, &reporter, &signals, None) {
        Ok(grant) => grant,
        Err(outcome) => return Ok(outcome),
    };
    let is_alone = acquire::is_held_alone(&mut *store, &claim);
    if is_alone == Some(true) && !claim.mode.is_exclusive() && verbosity >= Verbosity::Normal {
        let key = escaped(claim.key.as_str());
        let wish = if claim.mode == Mode::Shared { "to share it" } else { "for a slot" };
        report::say(&format!("lock \"{key}\" is held alone by this token, as before: {wish}, release it first"));
    }
    let interrupted = signals.obey();
    let printed = if interrupted.is_none() { print(form, &claim, &grant, is_alone, &enclosing) } else { Ok(()) };
    if interrupted.is_some() || printed.is_err() {
        // If the token already held the lock, it still does.
        let is_clean = store.cancel(&claim, false);
        if let Some(left) = left_behind(&claim, is_clean) {
            reporter.report(Event::Failed { why: &left });
        }
    }
    printed.context(if claim.request.is_some() {
        "cannot print the token, so the lock is released again, unless this token held it before"
    } else {
        "cannot print the token, so this acquisition is cancelled"
    })?;
    Ok(interrupted.map_or(Outcome::Printed, |signal| Outcome::Ended(Ending::Signaled(signal))))
}

/// Prints the answer. `is_alone` says whether the lock is held alone, if that is known.
fn print(
    form: Form,
    claim: &Claim,
    grant: &Grant,
    is_alone: Option<bool>,
    enclosing: &EnclosingLocks,
) -> std::io::Result<()> {
    let (key, token, fence) = (claim.key.as_str(), claim.token.as_str(), grant.fence);
    let slot = claim.mode.several_slots().filter(|_| is_alone != Some(true)).map(|_| grant.slot);
    let text = match form {
        Form::Token => token.to_owned(),
        Form::Json => {
            let expires_in_ms = claim.ttl.length().map(|ttl| u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX));
            let shared = is_alone.map(|is_alone| !is_alone && claim.mode == Mode::Shared);
            let answer = json!({
                "key": key, "token": token, "fence": fence, "slot": slot, "shared": shared, "expires_in_ms": expires_in_ms
            });
            json_for_terminals(&answer.to_string())
        }
        Form::Export => {
            let mut text = format!("export LOCKRUN_KEY={} LOCKRUN_TOKEN={token} LOCKRUN_FENCE={fence}", quoted(key));
            if let Some(slot) = slot {
                let _ = write!(text, " LOCKRUN_SLOT={slot}");
            }
            // LOCKRUN_TOKEN may have been that of a run around the shell, for which the shell must not wait.
            if let Some(outer) = enclosing.for_shell(&claim.token) {
                let _ = write!(text, " {OUTER}={}", quoted(&outer));
            }
            // Those of a run around the shell say nothing of this lock.
            let stale = |name: &&str| std::env::var_os(name).is_some() && !(*name == SLOT && slot.is_some());
            for name in [SLOT, VALUE].iter().filter(|name| stale(name)) {
                let _ = write!(text, "; unset {name}");
            }
            text
        }
    };
    stdio::print(&(text + "\n"))
}
