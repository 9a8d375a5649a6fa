//! The command line, in clap's terms. These definitions feed the parser, `--help`, the manual and the completions.
//!
//! Words are checked only one by one here; [`crate::config::settings`] and [`crate::config::plan`] do the rest.

pub mod examples;
pub mod name;
pub mod text;

mod argv;
mod descriptions;
mod options;
mod parse;
mod refusals;
mod run;
mod subcommands;
mod typos;

use clap::{Arg, Command};

pub use argv::{Expected, expected_after, normalize, takes_command};
use descriptions::described;
pub use parse::{Request, parse};
pub use run::command;
pub use subcommands::Subcommand;

/// The subcommand that prints the help of another one.
pub const HELP: &str = "help";

/// The hidden subcommand that prints the manual.
pub const GENERATE: &str = "generate";

/// The value of `--wait` without a duration.
pub const FOR_EVER: &str = "forever";

/// The value of `--skip` without a duration.
pub const ALWAYS: &str = "always";

/// The hidden subcommand that a shell's completion calls for candidates.
pub const COMPLETE: &str = "complete";

/// Returns the definition of a run with its texts for the help, the manual, the completions and messages. A plain run
/// does not need them.
pub fn documented() -> Command {
    described(command()).about(text::ABOUT).long_about(text::LONG_ABOUT).override_usage(text::USAGE).after_long_help(
        format!(
            "Exit status:\n{}\nCOMMAND finds in its environment:\n{}\n{}\n\n{}\n\nFiles:\n{}\n{}\n\n{}",
            table(&text::EXIT_STATUS),
            table(&text::ENVIRONMENT),
            text::DURATIONS,
            text::SETTINGS,
            table(&text::FILES),
            text::FILE_FORMAT,
            examples::listed(&examples::OF_A_RUN)
        ),
    )
}

/// Returns the same definition with the subcommands. Not for parsing: it would take a COMMAND with the name of a
/// subcommand for that subcommand.
pub fn all() -> Command {
    documented()
        .disable_help_subcommand(true)
        .subcommand_help_heading("Other commands, by the first word")
        .subcommands(Subcommand::ALL.map(Subcommand::definition))
        .subcommand(help())
}

/// Formats terms and their meanings in columns.
fn table(rows: &text::Table) -> String {
    let width = rows.iter().map(|(name, _)| name.len() + 2).max().unwrap_or_default().max(15);
    rows.iter().fold(String::new(), |text, (name, meaning)| format!("{text}  {name:<width$}{meaning}\n"))
}

/// Returns the definition of the subcommand that prints the help of another one.
pub fn help() -> Command {
    let names = Subcommand::ALL.map(Subcommand::name);
    Command::new(HELP)
        .about("Print this help, or that of one of these commands")
        .override_usage("lockrun help [COMMAND]")
        .arg(Arg::new("what").value_name("COMMAND").value_parser(names).help("The command to describe"))
}

/// Returns the definition of the hidden subcommand that prints a manual page: lockrun's or, by its name, a
/// subcommand's.
pub fn generate() -> Command {
    let files = ["man"].into_iter().chain(Subcommand::ALL.map(Subcommand::page));
    Command::new(GENERATE)
        .about("Print the manual")
        .arg(Arg::new("what").required(true).value_parser(files.collect::<Vec<_>>()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_definitions_are_sound() {
        command().debug_assert();
        all().debug_assert();
        help().debug_assert();
        generate().debug_assert();
    }

    #[test]
    fn everything_is_described() {
        for command in [all()].iter().chain(all().get_subcommands()) {
            for arg in command.get_arguments() {
                assert!(arg.get_help().is_some(), "{} {}", command.get_name(), arg.get_id());
            }
        }
    }
}
