//! The names of lockrun's variables: a misspelt one must not be ignored, or a run would use another store than was meant.

use std::ffi::OsStr;

use super::files;
use super::layer::variable;
use super::settings::UsageError;
use crate::cli::text;
use crate::text::escape::escaped_os;

pub use super::layer::PREFIX;

/// Checks a name in the environment that begins with [`PREFIX`]. Fails if it is neither that of an option's variable, nor of one that a
/// command finds in its environment.
pub fn check(name: &OsStr) -> Result<(), UsageError> {
    let known = || {
        let of_commands = text::ENVIRONMENT.iter().map(|(name, _)| (*name).to_owned());
        files::option_names().map(variable).chain(of_commands)
    };
    if known().any(|known| name == known.as_str()) {
        return Ok(());
    }
    let typed = name.to_string_lossy().to_ascii_uppercase();
    let nearest = known().min_by_key(|known| difference(&typed, known)).unwrap_or_default();
    Err(format!("{} is not a variable of lockrun; the nearest is {nearest}: rename it or unset it", escaped_os(name))
        .into())
}

/// Returns how much of the longer of two names has to be changed to make it the other, in thousandths. What both begin with does not
/// count.
fn difference(one: &str, other: &str) -> usize {
    let chars = |name: &str| name.strip_prefix(PREFIX).unwrap_or(name).chars().collect::<Vec<_>>();
    let (one, other) = (chars(one), chars(other));
    1000 * edits(&one, &other) / one.len().max(other.len()).max(1)
}

/// Returns the least number of letters to insert, remove or replace that makes one of two words the other.
fn edits(one: &[char], other: &[char]) -> usize {
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (at, letter) in one.iter().enumerate() {
        let mut diagonal = row[0];
        row[0] = at + 1;
        for (place, with) in other.iter().enumerate() {
            let replaced = diagonal + usize::from(letter != with);
            diagonal = row[place + 1];
            row[place + 1] = replaced.min(diagonal + 1).min(row[place] + 1);
        }
    }
    row[other.len()]
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStrExt as _;

    use super::*;

    #[test]
    fn every_variable_is_known() {
        for name in ["LOCKRUN_STORE", "LOCKRUN_CONFLICT_EXIT_CODE", "LOCKRUN_KEY", "LOCKRUN_OUTER_TOKENS"] {
            assert!(check(name.as_ref()).is_ok(), "{name}");
        }
    }

    #[test]
    fn the_nearest_is_named() {
        for (name, nearest) in [
            ("LOCKRUN_STOER", "LOCKRUN_STORE"),
            ("LOCKRUN_store", "LOCKRUN_STORE"),
            ("LOCKRUN_STOREFILE", "LOCKRUN_STORE_FILE"),
            ("LOCKRUN_STORE-FILE", "LOCKRUN_STORE_FILE"),
            ("LOCKRUN_TIMEOUT", "LOCKRUN_STORE_TIMEOUT"),
            ("LOCKRUN_SKPI", "LOCKRUN_SKIP"),
            ("LOCKRUN_TOKENS", "LOCKRUN_TOKEN"),
        ] {
            let wrong = check(name.as_ref()).expect_err(name).to_string();
            assert!(
                wrong.starts_with(&format!("{name} ")) && wrong.contains(&format!("nearest is {nearest}:")),
                "{wrong}"
            );
        }
        assert!(check("LOCKRUN_".as_ref()).is_err());
    }

    #[test]
    fn a_hostile_name_is_escaped() {
        let wrong = check(OsStr::from_bytes(b"LOCKRUN_\x1b[31m\xff\n")).expect_err("is none").to_string();
        assert!(wrong.starts_with("LOCKRUN_\\u{1b}[31m\\xff\\n is not"), "{wrong}");
    }

    #[test]
    fn edits_are_counted() {
        let count =
            |one: &str, other: &str| edits(&one.chars().collect::<Vec<_>>(), &other.chars().collect::<Vec<_>>());
        assert_eq!((count("", ""), count("a", ""), count("", "ab"), count("kitten", "sitting")), (0, 1, 2, 3));
    }
}
