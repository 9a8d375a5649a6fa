//! Fuzzing of option files.

use super::password::entry;

/// Reads an option file: a password that is found is no longer than the file, and one in an added last group is found.
pub fn mycnf(data: &[u8]) {
    if let Some(password) = entry(data) {
        assert!(password.len() <= data.len());
    }
    let longer = [data, b"\n[client]\npassword = \"p\\\\w\""].concat();
    assert_eq!(entry(&longer).as_deref(), Some(&b"p\\w"[..]));
}
