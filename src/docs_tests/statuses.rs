//! The exit statuses.

use std::collections::BTreeSet;

use super::{README, REFERENCE, code, plain, table};
use crate::cli::{Subcommand, text};
use crate::lock::ending::Ending;
use crate::run::outcome::{HELD, Outcome};

/// The name of a run's first status in its table.
const OWN: &str = "the command's own";

/// Returns every outcome with a status of lockrun's own.
fn outcomes() -> Vec<Outcome> {
    use Outcome::{
        BadUsage, CannotExecute, Ended, Failed, Held, Lost, NotFound, Printed, Skipped, StoreFailed, TimedOut, Unsafe,
        Weak,
    };
    let all = [
        Skipped,
        Printed,
        Weak,
        Unsafe,
        BadUsage,
        StoreFailed,
        Held(HELD),
        Lost,
        TimedOut,
        Failed,
        CannotExecute,
        NotFound,
    ];
    // A new outcome fails to compile here until it is added above, too.
    for outcome in all {
        match outcome {
            Ended(_) | Skipped | Printed | Weak | Unsafe | BadUsage | StoreFailed | Held(_) | Lost | TimedOut
            | Failed | CannotExecute | NotFound => {}
        }
    }
    all.into()
}

fn status(outcome: Outcome) -> String {
    match outcome.ending() {
        Ending::Exited(status) => status.to_string(),
        Ending::Signaled(signal) => panic!("signal {signal}"),
    }
}

// The README, the reference, the help and the manual list the same statuses of a run.
#[test]
fn the_statuses_of_a_run_are_documented() {
    let of_help: Vec<&str> = text::EXIT_STATUS.iter().map(|(status, _)| *status).collect();
    for page in [README, REFERENCE] {
        let rows = table(page, &["status", "meaning"]);
        let documented: Vec<&str> =
            rows.iter().map(|row| if row[0] == OWN { "COMMAND's" } else { row[0].as_str() }).collect();
        assert_eq!(documented, of_help);
    }
    let of_run: BTreeSet<String> = outcomes()
        .into_iter()
        .filter(|outcome| !matches!(outcome, Outcome::Weak | Outcome::Unsafe))
        .map(status)
        .collect();
    let documented: BTreeSet<String> =
        of_help.into_iter().filter(|name| *name != "COMMAND's").map(str::to_owned).collect();
    assert_eq!(of_run, documented);
}

#[test]
fn the_statuses_of_the_other_commands_are_documented() {
    let rows = table(REFERENCE, &["command", "status", "meaning"]);
    let known: BTreeSet<String> = outcomes().into_iter().map(status).chain(["COMMAND's".to_owned()]).collect();
    let common = |status: &str, meaning: &str| {
        let same = |other: Subcommand| other.exit_status().contains(&(status, meaning));
        matches!(status, "64" | "69" | "125") && Subcommand::ALL.into_iter().filter(|&other| same(other)).count() > 1
    };
    let mut expected = 0;
    for subcommand in Subcommand::ALL {
        for (status, meaning) in subcommand.exit_status().iter().filter(|(status, meaning)| !common(status, meaning)) {
            assert!(known.contains(*status), "{status}");
            let is_its = |row: &&Vec<String>| {
                code(&row[0]).contains(&subcommand.name()) && row[1] == *status && plain(&row[2]) == *meaning
            };
            assert_eq!(rows.iter().filter(is_its).count(), 1, "{} {status}: {meaning}", subcommand.name());
            expected += 1;
        }
    }
    assert_eq!(rows.iter().map(|row| code(&row[0]).len()).sum::<usize>(), expected);
}

// `doctor` has its own table, with the same statuses.
#[test]
fn the_statuses_of_doctor_are_documented() {
    let rows = table(include_str!("../../docs/doctor.md"), &["status", "meaning", "worst line"]);
    let documented: BTreeSet<&str> = rows.iter().map(|row| row[0].as_str()).collect();
    let of_help: BTreeSet<&str> = Subcommand::Doctor.exit_status().iter().map(|(status, _)| *status).collect();
    assert_eq!(documented, of_help);
}
