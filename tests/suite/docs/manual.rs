//! The help and the manual pages: as wide as the reader's terminal, free of mistakes, with examples that work.

use std::fs;
use std::process::Command;

use super::blocks::output_of;
use super::pages::{Block, root};
use super::prepared::{DURABLE, Preparation};
use crate::support::processes::find_program;
use crate::support::shell::{PROMPT, enter, shell};
use crate::support::{Lockrun, Store};

/// The other commands, and what must have happened before their examples.
const COMMANDS: [(&str, &str); 8] = [
    ("acquire", ""),
    ("renew", ACQUIRED),
    ("release", ACQUIRED),
    ("reserve", ""),
    ("status", ""),
    ("break", ""),
    ("doctor", ""),
    ("prune", ""),
];

/// A lock by hand, whose token a script knows.
const ACQUIRED: &str = "eval \"$(lockrun acquire --key deploy --ttl 10m --export)\"; token=$LOCKRUN_TOKEN";

/// The most columns of a help.
const WIDTH: usize = 100;

fn help(command: Option<&str>) -> String {
    Lockrun::bare().args(command).arg("--help").run().exited(0).silent().stdout()
}

/// Returns the commands of the examples in a help.
fn examples(help: &str) -> Vec<&str> {
    let (_, examples) = help.split_once("\nExamples:\n").expect("a help has examples");
    examples.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#')).collect()
}

/// Returns the manual pages that are checked in.
fn pages() -> Vec<String> {
    let directory = fs::read_dir(root().join("man")).expect("a directory");
    directory.map(|page| page.expect("a page").path().display().to_string()).collect()
}

// "`--help` wraps at the terminal's width, at most 100; three examples at its end."
#[test]
fn the_help_is_as_wide_as_the_terminal() {
    let overview = help(None);
    assert_eq!(examples(&overview).len(), 3);
    let others = COMMANDS.map(|(name, _)| help(Some(name)));
    let short = Lockrun::bare().arg("-h").run().exited(0).silent().stdout();
    for text in others.iter().chain([&overview, &short]) {
        let widest = text.lines().max_by_key(|line| line.chars().count()).unwrap_or_default();
        assert!(widest.chars().count() <= WIDTH, "{widest}");
    }
    let mut terminal = shell(&Store::file());
    enter(&mut terminal, "stty cols 72; lockrun status --help");
    let narrow = terminal.wait_for(PROMPT);
    // A word stays whole.
    let can_be_narrower = |line: &&str| line.split_whitespace().count() > 1;
    let widest = narrow.lines().filter(can_be_narrower).map(|line| line.trim_end().chars().count()).max();
    assert!(narrow.contains("Usage: lockrun status") && widest <= Some(72), "{widest:?}: {narrow}");
}

// "EXAMPLES on each; footers with version and date."
#[test]
fn every_manual_page_has_examples_and_a_footer() {
    assert_eq!(pages().len(), COMMANDS.len() + 1);
    for page in pages() {
        let text = fs::read_to_string(&page).expect("a page");
        let title = text.lines().find_map(|line| line.strip_prefix(".TH ")).expect("a title");
        let date = title.split(' ').nth(2).unwrap_or_default();
        let version = format!("\"lockrun {}\"", env!("CARGO_PKG_VERSION"));
        let is_date = date.len() == 10 && date.chars().all(|c| c.is_ascii_digit() || c == '-');
        assert!(is_date && title.contains(&version), "{page}: {title}");
        assert!(text.contains("\n.SH EXAMPLES\n"), "{page}");
    }
}

// "mandoc -Tlint clean."
#[test]
fn the_manual_pages_have_no_mistakes() {
    let output = Command::new(find_program("mandoc")).arg("-Tlint").args(pages()).output().expect("mandoc starts");
    assert!(
        output.status.success(),
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
}

// The examples work as they are written.
#[test]
fn every_example_works() {
    let of_other = COMMANDS.map(|(name, before)| (help(Some(name)), before));
    for (help, before) in of_other.into_iter().chain([(help(None), "")]) {
        for example in examples(&help) {
            let text = example.replace("redis://HOST", "redis://redis.example.com");
            let redis = (text != example).then_some(DURABLE);
            let block = Block { page: example.into(), line: 1, language: "sh".into(), text: text + "\n" };
            output_of(&block, &Preparation { before, redis, ..Preparation::NONE }).exited(0);
        }
    }
}
