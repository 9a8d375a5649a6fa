//! The manual that is checked in.

use std::fs;
use std::path::Path;

use crate::support::{Lockrun, Store};

/// lockrun's other commands.
const SUBCOMMANDS: [&str; 8] = ["acquire", "renew", "release", "reserve", "status", "break", "doctor", "prune"];

/// The options that a help names.
fn options(help: &str) -> Vec<&str> {
    help.split(|c: char| !(c.is_ascii_lowercase() || c == '-'))
        .filter(|word| word.starts_with("--") && word.len() > 2)
        .collect()
}

// "Generated from cli.rs by a hidden subcommand, checked in, compared by a test."
#[test]
fn the_checked_in_files_are_up_to_date() {
    let pages = SUBCOMMANDS.map(|name| (format!("lockrun-{name}"), format!("man/lockrun-{name}.1")));
    let files = [("man".to_owned(), "man/lockrun.1".to_owned())];
    for (what, file) in files.into_iter().chain(pages) {
        let output = Lockrun::bare().args(["generate", &what]).run().exited(0).silent();
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(&file);
        let checked_in = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{file}: {error}"));
        assert!(!checked_in.is_empty(), "{file}");
        assert!(output.stdout() == checked_in, "{file} is not what `lockrun generate {what}` prints");
    }
}

// Help that cannot be printed is a failure, as a manual page in an empty file would be.
#[test]
fn help_that_cannot_be_printed() {
    for word in ["--help", "--version", "help"] {
        let call = Lockrun::bare().arg(word);
        call.in_shell("exec \"$@\" >/dev/full").alone().exited(125).said("cannot print the help: No space left");
        call.in_shell("exec \"$@\" >&-").alone().exited(125).said("cannot print the help: standard output is closed");
    }
}

// Nor is an answer that nobody can read a success: a job that reads it would take the silence for the answer.
#[test]
fn an_answer_that_cannot_be_printed() {
    let store = Store::file();
    Lockrun::new(&store).key("printed").command(["true"]).run().exited(0);
    for (command, options) in
        [("status", &["printed"][..]), ("status", &["--json"]), ("doctor", &[]), ("prune", &["printed"])]
    {
        let call = Lockrun::other(command, &store).args(options);
        call.in_shell("exec \"$@\" >&-").alone().exited(125).said("standard output is closed");
    }
}

// "A flag's documentation is written once and feeds help, manual and completions": the manual names every option.
#[test]
fn every_option_is_documented() {
    let help = Lockrun::bare().arg("--help").run().exited(0).stdout();
    let options = options(&help);
    assert!(options.contains(&"--key") && options.contains(&"--ttl"), "{help}");
    let text = Lockrun::bare().args(["generate", "man"]).run().exited(0).stdout();
    let text = text.replace("\\-", "-");
    let offered = Lockrun::bare().args(["complete", "--"]).run().exited(0).silent().stdout();
    for option in &options {
        assert!(text.contains(option.trim_start_matches('-')), "the manual does not know {option}");
        // Without aliases, and options that only print something.
        let is_offered = offered.lines().any(|line| line.split('\t').next() == Some(option));
        assert!(is_offered || ["--nonblock", "--version"].contains(option), "{option} is not offered: {offered}");
    }
    Lockrun::bare().args(["generate", "nonsense"]).run().exited(64);
}

// The same of lockrun's other commands: the help lists them, and each has a help and a page of its own.
#[test]
fn every_subcommand_is_documented() {
    let overview = Lockrun::bare().arg("--help").run().exited(0).silent().stdout();
    let same = Lockrun::bare().arg("help").run().exited(0).silent().stdout();
    assert_eq!(overview, same);
    for name in SUBCOMMANDS {
        assert!(overview.lines().any(|line| line.starts_with(&format!("  {name} "))), "{overview}");
        let help = Lockrun::bare().args([name, "--help"]).run().exited(0).silent().stdout();
        assert_eq!(help, Lockrun::bare().args(["help", name]).run().exited(0).silent().stdout());
        assert!(help.contains(&format!("Usage: lockrun {name}")) && help.contains("Exit status:"), "{help}");
        let page = Lockrun::bare().args(["generate", &format!("lockrun-{name}")]).run().exited(0).stdout();
        let page = page.replace("\\-", "-");
        for option in options(&help) {
            assert!(page.contains(option), "the page of {name} does not know {option}");
        }
    }
    Lockrun::bare().args(["help", "nonsense"]).run().exited(64);
}
