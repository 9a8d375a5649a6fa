//! The name of a lock.

use std::ffi::OsStr;
use std::fmt;

/// The longest name, in bytes of UTF-8.
pub const MAX_LEN: usize = 512;

/// A lock's name: 1 to 512 bytes of UTF-8 without control characters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Key(String);

impl Key {
    /// Checks a name. The error says what is wrong.
    pub fn new(name: &OsStr) -> Result<Self, String> {
        let Some(name) = name.to_str() else {
            return Err("the key is not valid UTF-8".into());
        };
        if name.is_empty() {
            return Err("the key is empty; give the lock a name, such as --key nightly-report".into());
        }
        if name.len() > MAX_LEN {
            return Err(format!("the key is {} bytes long; the maximum is {MAX_LEN}", name.len()));
        }
        if let Some(control) = name.chars().find(|c| c.is_control()) {
            return Err(format!("the key contains a control character ({})", control.escape_default()));
        }
        Ok(Key(name.to_owned()))
    }

    /// Returns the name as the user gave it.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::ffi::OsStrExt;

    #[test]
    fn names_are_taken_as_they_are() {
        let longest = "x".repeat(MAX_LEN);
        for name in ["a", "../../etc/x", "a{b}c", "a b", "ключ", longest.as_str()] {
            assert_eq!(Key::new(name.as_ref()).map(|key| key.0), Ok(name.to_owned()));
        }
    }

    #[test]
    fn bad_names_are_refused_by_what_is_wrong_with_them() {
        let too_long = "x".repeat(MAX_LEN + 1);
        for (name, why) in [("", "empty"), ("a\nb", "control"), ("a\u{9b}b", "control"), (&too_long, "513 bytes")] {
            let refused = Key::new(name.as_ref()).expect_err("is refused");
            assert!(refused.contains(why), "{refused}");
        }
        assert!(Key::new(OsStr::from_bytes(b"a\xffb")).expect_err("is refused").contains("UTF-8"));
    }
}
