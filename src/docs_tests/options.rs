//! The options of a run and of the subcommands.

use clap::{Arg, Command};

use super::{REFERENCE, code, plain, table};
use crate::cli::{self, Subcommand, name};
use crate::config::files;
use crate::run::outcome::HELD;

/// Returns the options of a command, in the order of their definition.
fn options(command: &Command) -> impl Iterator<Item = &Arg> {
    command.get_arguments().filter(|arg| arg.get_long().is_some_and(|long| !matches!(long, "help" | "version")))
}

/// Returns an option as the documentation writes it.
fn spelled(arg: &Arg) -> Vec<String> {
    let shorts = arg.get_short().into_iter().chain(arg.get_visible_short_aliases().unwrap_or_default());
    let mut spelled: Vec<String> = shorts.map(|letter| format!("-{letter}")).collect();
    let long = arg.get_long().expect("an option");
    spelled.push(format!("--{long}{}", value(arg)));
    spelled.extend(arg.get_visible_aliases().unwrap_or_default().iter().map(|alias| format!("--{alias}")));
    spelled
}

/// Returns what follows an option's name.
fn value(arg: &Arg) -> String {
    if !arg.get_action().takes_values() {
        return String::new();
    }
    let possible: Vec<_> = arg.get_possible_values().iter().map(|value| value.get_name().to_owned()).collect();
    let names = arg.get_value_names().unwrap_or_default().iter().map(ToString::to_string).collect::<Vec<_>>();
    let value = if possible.is_empty() { names.join(" ") } else { possible.join("|") };
    let is_optional = arg.get_num_args().is_some_and(|count| count.min_values() == 0);
    match (is_optional, arg.get_id() == name::WAIT) {
        (false, _) => format!(" {value}"),
        // The next word is its value only if it is a duration.
        (true, true) => format!(" [{value}]"),
        (true, false) => format!("[={value}]"),
    }
}

/// Returns the default given in the help.
fn default(arg: &Arg) -> Option<String> {
    let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
    let more = arg.get_long_help().map(ToString::to_string).unwrap_or_default();
    let after = |text: &str| Some(text.split_once("[default: ")?.1.split_once(']')?.0.to_owned());
    after(&help).or_else(|| after(&more))
}

/// Returns the documented default of an option whose help gives none.
fn unnamed_default(option: &str) -> String {
    match option {
        name::KEY | name::FROM => "required".into(),
        name::OLDER_THAN => "required without KEY".into(),
        name::EXCLUSIVE | name::FAIL => "this one".into(),
        name::MAX_WAITING => "no limit".into(),
        name::CONFLICT => HELD.to_string(),
        name::MIN_HOLD => "0".into(),
        name::MAX_RUNTIME => "none".into(),
        name::TOKEN => "random".into(),
        _ => "–".into(),
    }
}

fn documented_default(arg: &Arg) -> String {
    default(arg).unwrap_or_else(|| unnamed_default(arg.get_id().as_str()))
}

#[test]
fn every_option_of_a_run_is_documented() {
    let run = cli::documented();
    let rows = table(REFERENCE, &["option", "meaning", "default", "variable", "key in a file"]);
    assert_eq!(rows.len(), options(&run).count());
    for arg in options(&run) {
        let names = spelled(arg);
        let row = rows.iter().find(|row| code(&row[0]) == names).unwrap_or_else(|| panic!("{names:?} is not there"));
        assert_eq!(plain(&row[2]), documented_default(arg), "{names:?}");
        let option = arg.get_long().expect("an option");
        let elsewhere = match files::documented_kind(option) {
            Some(kind) => {
                let variable = format!("LOCKRUN_{}", option.to_uppercase().replace('-', "_"));
                [format!("`{variable}`"), format!("`{option}`: {kind}")]
            }
            None => ["–", "–"].map(str::to_owned),
        };
        assert_eq!(row[3..], elsewhere, "{names:?}");
    }
}

#[test]
fn every_option_of_the_other_commands_is_documented() {
    let run = cli::documented();
    let rows = table(REFERENCE, &["command", "option", "meaning", "default"]);
    let mut expected = 0;
    for subcommand in Subcommand::ALL {
        let definition = subcommand.definition();
        // An option that a run has with the same meaning is in the other table.
        let is_of_run = |arg: &&Arg| {
            options(&run).any(|other| other.get_id() == arg.get_id() && other.get_help() == arg.get_help())
        };
        for arg in options(&definition).filter(|arg| !is_of_run(arg)) {
            let names = spelled(arg);
            let is_its = |row: &&Vec<String>| code(&row[0]).contains(&subcommand.name()) && code(&row[1]) == names;
            let found: Vec<_> = rows.iter().filter(is_its).collect();
            assert_eq!(found.len(), 1, "{}: {names:?}", subcommand.name());
            let default = match (subcommand, arg.get_id().as_str()) {
                (Subcommand::Status | Subcommand::Prune, name::KEY) => "–".into(),
                _ => documented_default(arg),
            };
            assert_eq!(plain(&found[0][3]), default, "{}: {names:?}", subcommand.name());
            expected += 1;
        }
    }
    assert_eq!(rows.iter().map(|row| code(&row[0]).len()).sum::<usize>(), expected);
}
