//! The shells' completions: clap's scripts, corrected because clap does not know that only the first word names a subcommand, and
//! that a word elsewhere begins COMMAND.

use anyhow::{Result, ensure};
use clap::Command;
use clap_complete::Shell;

use crate::cli::{self, Subcommand, name};

/// Returns the script for `shell`. Fails if clap's script lacks a place that is to be corrected, as after an upgrade.
pub fn script(shell: Shell) -> Result<String> {
    let (mut definition, corrections) = match shell {
        Shell::Bash => (cli::all(), bash()),
        // For zsh, clap would take the first positional word for COMMAND and the second for the subcommand.
        Shell::Zsh => (without_command(), zsh()),
        _ => (cli::all(), Vec::new()),
    };
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut definition, "lockrun", &mut script);
    let mut script = String::from_utf8(script)?;
    for (from, to) in corrections {
        ensure!(script.contains(&from), "the script for {shell} has no {from:?} in it");
        script = script.replacen(&from, &to, 1);
    }
    Ok(script)
}

/// Returns the definition of a run with all its options, but without COMMAND.
fn without_command() -> Command {
    let full = cli::all();
    let options = full.get_arguments().filter(|arg| arg.get_id() != name::COMMAND).cloned().collect::<Vec<_>>();
    let subcommands = full.get_subcommands().cloned().collect::<Vec<_>>();
    Command::new("lockrun")
        .version(env!("CARGO_PKG_VERSION"))
        .disable_help_subcommand(true)
        .args(options)
        .subcommands(subcommands)
}

fn bash() -> Vec<(String, String)> {
    let names = Subcommand::ALL.map(Subcommand::name).join(" ");
    vec![
        (
            r#"for i in "${COMP_WORDS[@]:0:COMP_CWORD}""#.into(),
            r#"for i in "${COMP_WORDS[@]:0:COMP_CWORD<2?COMP_CWORD:2}""#.into(),
        ),
        (
            format!(" {names} {}\"\n", cli::HELP),
            format!("\"\n            [[ ${{COMP_CWORD}} -ne 1 ]] || opts+=\" {names} {}\"\n", cli::HELP),
        ),
    ]
}

fn zsh() -> Vec<(String, String)> {
    let after = |place: &str, more: &str| (place.to_owned(), format!("{place}{more}"));
    vec![
        after("    local ret=1\n", "    local first=\"$words[2]\"\n"),
        after(
            "        words=($line[1] \"${words[@]}\")\n        (( CURRENT += 1 ))\n",
            "        if [[ $first == -* ]]; then\n            _normal && ret=0\n            return ret\n        fi\n",
        ),
        after("_lockrun_commands() {\n", "    [[ $first != -* ]] || { _command_names -e; return }\n"),
    ]
}
