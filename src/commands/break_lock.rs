//! `lockrun break`: revokes a lock from its holder.

use std::time::Duration;

use anyhow::{Context, Result};
use nix::unistd::geteuid;

use super::open;
use crate::cli::name;
use crate::config::settings::Settings;
use crate::lock::holder::Holder;
use crate::report;
use crate::run::outcome::{HELD, Outcome};
use crate::store::{Held, LivingHolder, Revoked};
use crate::sys::namespace::own_pid_namespace;
use crate::text::duration;
use crate::text::escape::escaped;

/// Revokes the lock, and prints its former holders. The outcome is status 75 if a holder keeps the lock or a slot.
/// Fails with [`crate::config::settings::UsageError`] if a setting is wrong.
pub fn run(settings: &Settings<'_>) -> Result<Outcome> {
    let key = settings.key()?;
    let fence = settings.typed_value(name::FENCE, |text| {
        text.parse().map_err(|_| format!("{text:?} is not a fencing token, which is a number"))
    })?;
    let now = settings.typed_switch(name::NOW);
    let mut store = open(settings, None)?;
    let revoked = store.revoke(&key, fence, &Holder::caller(None), now);
    let key = escaped(key.as_str());
    let say = |text: &str| report::say(&format!("lock \"{key}\" {text}"));
    match revoked.with_context(|| format!("cannot break the lock \"{key}\"")) {
        Ok(Revoked::Free) => {
            say("is free; there is nothing to break");
            Ok(Outcome::Printed)
        }
        Ok(Revoked::Others(holders)) => {
            let why = if fence.is_some() {
                "is not held under that fence"
            } else {
                "was passed on before it could be broken"
            };
            for held in holders {
                say(&format!("{why}: it stays with {}", held.named()));
            }
            Ok(Outcome::Held(HELD))
        }
        Ok(Revoked::From { from, living, free_in, may_run_unaware }) => {
            for held in from {
                say(&format!("was taken from {}", former_holder(&held)));
            }
            if free_in > Duration::ZERO {
                // Round up to whole seconds.
                let span = duration::say(free_in + Duration::from_secs(1));
                report::say(&format!("it will be free when its command has been stopped, within {span}"));
            }
            if may_run_unaware {
                report::say("its command may still be running; make sure that it has ended");
            }
            for LivingHolder { held, pids, .. } in &living {
                say(&format!("stays with {}", held.named()));
                report::say(&format!(
                    "it belongs to a living process of this machine, and ends with it: {}",
                    how_to_end(pids)
                ));
            }
            Ok(if living.is_empty() { Outcome::Printed } else { Outcome::Held(HELD) })
        }
        Err(error) => {
            report::error(&error);
            Ok(Outcome::StoreFailed)
        }
    }
}

/// Describes a holder that has lost the lock, as in `web-1 pid 4242 (deploy: ./report.sh), which had held it for 3m
/// 12s`.
fn former_holder(held: &Held) -> String {
    match (&held.holder, held.since) {
        (Some(holder), Some(since)) => format!("{holder}, which had held it for {}", duration::say(since)),
        _ => held.named(),
    }
}

/// Returns what to do about the processes that keep the lock.
fn how_to_end(pids: &[u32]) -> String {
    if pids.is_empty() {
        // No process of this namespace that can be inspected has the lock.
        let elsewhere = format!(
            "it runs outside {}, for instance in a container that shares the directory: end it there",
            own_pid_namespace()
        );
        return if geteuid().is_root() {
            elsewhere
        } else {
            format!("this user may not see which: it is another user's (ask root), or {elsewhere}")
        };
    }
    format!("stop it with kill {}", pids.iter().map(u32::to_string).collect::<Vec<_>>().join(" "))
}
