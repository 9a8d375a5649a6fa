//! `lockrun reserve`: runs a command with the next value of a sequence.

use std::ffi::OsString;

use anyhow::{Context, Result};

use crate::cli::name;
use crate::config::plan;
use crate::config::settings::{Settings, UsageError};
use crate::run::next_value;
use crate::run::outcome::Outcome;
use crate::run::sequence::{Order, Sequence};
use crate::sys::signals::Signals;
use crate::text::escape::without_value;

/// Reserves a value and runs the command with it. Fails with [`UsageError`] if a setting is wrong.
pub fn run(settings: &Settings<'_>) -> Result<Outcome> {
    let plan = plan::make_with_next_of(settings, sequence)?;
    crate::run::run(&plan, &Signals::take_over().context("cannot block signals")?)
}

fn sequence(settings: &Settings<'_>) -> Result<Sequence, UsageError> {
    let from = settings.typed_value(name::FROM, |text| next_value::check_value(text).map(|()| text.to_owned()))?;
    let from = from.ok_or("no first value: name it with --from VALUE")?;
    let step = settings.typed_value(name::STEP, |text| match text.parse::<i64>() {
        Ok(0) => Err("must not be 0, or every value would be the same".into()),
        Ok(step) => Ok(step),
        Err(_) => Err(format!("{text:?} is not an integer")),
    })?;
    let program = settings.typed().get_one::<OsString>(name::NEXT);
    let order = match (step, program) {
        (Some(_), Some(_)) => return Err("--step and --next exclude each other".into()),
        (None, Some(program)) if program.is_empty() => return Err("--next: is empty; it must name a program".into()),
        (None, Some(program)) => Order::Program { from, program: program.clone() },
        (step, None) => {
            let wrong = |_| without_value(&from, &format!("--from: {from:?} is not an integer; others need --next"));
            let from = from.parse().map_err(wrong)?;
            Order::Step { from, step: step.unwrap_or(1) }
        }
    };
    let keep_on_failure = settings.typed_value(name::ON_FAILURE, |text| match text {
        "keep" => Ok(true),
        "free" => Ok(false),
        _ => Err(format!("{text:?} is neither keep nor free")),
    })?;
    Ok(Sequence { order, keep_on_failure: keep_on_failure.unwrap_or(true) })
}
