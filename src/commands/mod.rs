//! What lockrun does beside running a command.

pub mod acquire;
pub mod break_lock;
pub mod doctor;
pub mod generate;
pub mod prune;
pub mod release;
pub mod renew;
pub mod status;

mod completions;

use anyhow::Result;

use crate::cli::Subcommand;
use crate::outcome::Outcome;
use crate::settings::Settings;

/// Does what `subcommand` is for, as `settings` say. Fails with [`crate::settings::Wrong`] if they are not right.
pub fn run(subcommand: Subcommand, settings: &Settings<'_>) -> Result<Outcome> {
    match subcommand {
        Subcommand::Acquire => acquire::run(settings),
        Subcommand::Renew => renew::run(settings),
        Subcommand::Release => release::run(settings),
        Subcommand::Status => status::run(settings),
        Subcommand::Break => break_lock::run(settings),
        Subcommand::Doctor => doctor::run(settings),
        Subcommand::Prune => prune::run(settings),
    }
}
