//! The manual and the completions that are checked in.

use std::fs;
use std::path::Path;

use crate::support::Lockrun;

// "Generated from cli.rs by a hidden subcommand, checked in, compared by a test."
#[test]
fn the_checked_in_files_are_up_to_date() {
    for (what, file) in [
        ("man", "man/lockrun.1"),
        ("bash", "completions/lockrun.bash"),
        ("zsh", "completions/_lockrun"),
        ("fish", "completions/lockrun.fish"),
    ] {
        let output = Lockrun::bare().args(["generate", what]).run().exited(0).silent();
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(file);
        let checked_in = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{file}: {error}"));
        assert!(!checked_in.is_empty(), "{file}");
        assert!(output.stdout() == checked_in, "{file} is not what `lockrun generate {what}` prints");
    }
}

// "A flag's documentation is written once and feeds help, manual and completions": each names every option.
#[test]
fn every_option_is_documented() {
    let help = Lockrun::bare().arg("--help").run().exited(0).stdout();
    let options: Vec<&str> = help
        .split(|c: char| !(c.is_ascii_lowercase() || c == '-'))
        .filter(|word| word.starts_with("--") && word.len() > 2)
        .collect();
    assert!(options.contains(&"--key") && options.contains(&"--ttl"), "{help}");
    for what in ["man", "bash", "zsh", "fish"] {
        let text = Lockrun::bare().args(["generate", what]).run().exited(0).stdout();
        let text = text.replace("\\-", "-");
        for option in &options {
            let name = option.trim_start_matches('-');
            assert!(text.contains(name), "{what} does not know {option}");
        }
    }
    Lockrun::bare().args(["generate", "nonsense"]).run().exited(64);
}
