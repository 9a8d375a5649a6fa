//! A lock file whose record cannot be read. It must not count as empty: a holder of the lock would be forgotten.

use std::fmt;

use super::record_file::Damage;

/// An error that says which file it is, what is wrong with it, and what to do.
#[derive(Debug)]
pub(super) struct Unreadable {
    /// The path of the file.
    pub(super) path: String,
    /// What is wrong with the file.
    pub(super) damage: Damage,
    /// What finally to do with the file, see [`super::access::Access::remedy`].
    pub(super) remedy: String,
}

impl Unreadable {
    /// Returns whether the file may never have been a lock file.
    pub(super) fn is_foreign(&self) -> bool {
        self.damage == Damage::Foreign
    }

    /// Returns what was found.
    pub(super) fn text(&self) -> String {
        let Unreadable { path, damage, .. } = self;
        let what = match damage {
            Damage::Foreign => return format!("{path} does not hold the record of a lock, but something else"),
            Damage::Truncated => "the file was cut off",
            Damage::Torn => "no copy of it is whole",
            Damage::Unparsable => "it cannot be understood",
            Damage::TooLong => "the file is longer than any that lockrun writes",
        };
        format!("the record in {path} is broken ({what})")
    }

    /// Returns what it means, and what to do about it.
    pub(super) fn advice(&self) -> String {
        let remedy = &self.remedy;
        if self.is_foreign() {
            return format!(
                "no lock of that name can be acquired; move the file away, or, if it was a lock's, make sure that no command \
                 runs under that lock, then {remedy}"
            );
        }
        format!(
            "the holder is unknown, so the lock cannot be acquired; make sure that no command runs under it, then {remedy} \
             (its sequence, if it has one, begins anew: go on after the last value with --from)"
        )
    }
}

/// Formats all of it in one line.
impl fmt::Display for Unreadable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.text(), self.advice())
    }
}

impl std::error::Error for Unreadable {}
