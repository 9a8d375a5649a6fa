//! What can be typed, in clap's terms. These definitions feed the parser, `--help`, the manual and the completions.
//!
//! Nothing is read or checked here beyond what can be said of a word by itself; [`crate::settings`] and [`crate::plan`] do
//! the rest.

pub mod name;
pub mod text;

mod options;
mod run;
mod subcommands;
mod words;

use clap::{Arg, Command};

pub use run::command;
pub use subcommands::Subcommand;
pub use words::tie_wait;

/// The subcommand that prints the help of another.
pub const HELP: &str = "help";

/// The hidden subcommand that prints the manual and the completions.
pub const GENERATE: &str = "generate";

/// What `--wait` means without a duration.
pub const FOR_EVER: &str = "forever";

/// The definition of a run with what only the help, the manual and the completions show, and a run need not pay for.
pub fn documented() -> Command {
    command()
        .after_long_help(format!(
            "Exit status:\n{}\nCOMMAND finds in its environment:\n{}\n{}\n\n{}",
            table(&text::EXIT_STATUS),
            table(&text::ENVIRONMENT),
            text::DURATIONS,
            text::VARIABLES
        ))
        .disable_help_subcommand(true)
        .subcommand_help_heading("Other commands, by the first word")
        .subcommands(Subcommand::ALL.map(documented_subcommand))
        .subcommand(help())
}

/// The definition of a subcommand with what the help shows beside the options.
pub fn documented_subcommand(subcommand: Subcommand) -> Command {
    let definition = subcommand.definition();
    let exit_status = table(subcommand.exit_status());
    definition.after_long_help(format!(
        "Exit status:\n{exit_status}\n{}\n\n{}",
        text::DURATIONS,
        text::SHARED_VARIABLES
    ))
}

/// Terms with their meanings, in columns.
fn table(rows: &text::Table) -> String {
    rows.iter().fold(String::new(), |text, (name, meaning)| format!("{text}  {name:<15}{meaning}\n"))
}

/// The definition of the subcommand that prints the help of another.
pub fn help() -> Command {
    let names = Subcommand::ALL.map(Subcommand::name);
    Command::new(HELP)
        .about("Print this help, or that of one of these commands")
        .override_usage("lockrun help [COMMAND]")
        .arg(Arg::new("what").value_name("COMMAND").value_parser(names).help("The command that it is about"))
}

/// The definition of the hidden subcommand that prints a generated file: the manual page of lockrun or, by its name, of a
/// subcommand, or a shell's completions.
pub fn generate() -> Command {
    let files = ["man", "bash", "zsh", "fish"].into_iter().chain(Subcommand::ALL.map(Subcommand::page));
    Command::new(GENERATE)
        .about("Print the manual or a shell's completions")
        .arg(Arg::new("what").required(true).value_parser(files.collect::<Vec<_>>()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_definitions_are_sound() {
        command().debug_assert();
        documented().debug_assert();
        help().debug_assert();
        generate().debug_assert();
    }
}
