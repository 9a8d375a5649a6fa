//! Checks the names of lockrun's variables. A misspelt one must not be ignored, or a run would use another store than intended.

use std::ffi::OsStr;

use super::files;
use super::layer::variable;
use super::settings::UsageError;
use crate::cli::text;
use crate::text::escape::escaped_os;
use crate::text::nearest::nearest;

pub use super::layer::PREFIX;

/// Checks an environment variable's name that begins with [`PREFIX`]. Fails if it is neither the variable of an option nor one
/// that lockrun sets for COMMAND.
pub fn check(name: &OsStr) -> Result<(), UsageError> {
    let known = || {
        let of_commands = text::ENVIRONMENT.iter().map(|(name, _)| (*name).to_owned());
        files::option_names().map(variable).chain(of_commands)
    };
    if known().any(|known| name == known.as_str()) {
        return Ok(());
    }
    // The prefix, which all share, would make wrong names look alike.
    let typed = name.to_string_lossy().to_ascii_uppercase();
    let typed = typed.strip_prefix(PREFIX).unwrap_or(&typed);
    let names = known().filter_map(|known| known.strip_prefix(PREFIX).map(str::to_owned));
    let nearest = format!("{PREFIX}{}", nearest(typed, names).unwrap_or_default());
    Err(format!("{} is not a variable of lockrun; the nearest is {nearest}: rename it or unset it", escaped_os(name))
        .into())
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
}
