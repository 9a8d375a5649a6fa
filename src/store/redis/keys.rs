//! The names of a lock's keys in Redis.

use crate::lock::key::Key;

/// Returns what all keys of a lock begin with. Braces and percent signs in KEY are escaped, so that the hash tag is the
/// whole KEY and no two locks share a key.
pub(super) fn base(prefix: &str, key: &Key) -> String {
    let escaped = key.as_str().replace('%', "%25").replace('{', "%7B").replace('}', "%7D");
    format!("{prefix}:{{{escaped}}}:")
}

/// Returns the pattern, for SCAN, of the fences of all locks: every key that was ever held has one.
pub(super) fn pattern(prefix: &str) -> String {
    glob(prefix) + ":{*}:fence"
}

/// Returns a pattern that matches only this text.
pub(super) fn glob(text: &str) -> String {
    let mut pattern = String::new();
    for c in text.chars() {
        if matches!(c, '*' | '?' | '[' | ']' | '\\') {
            pattern.push('\\');
        }
        pattern.push(c);
    }
    pattern
}

/// Returns the KEY whose fence has this name; `None` if no fence has such a name.
pub(super) fn of_fence(prefix: &str, name: &str) -> Option<String> {
    let escaped = name.strip_prefix(prefix)?.strip_prefix(":{")?.strip_suffix("}:fence")?;
    let is_one = !escaped.contains(['{', '}']);
    is_one.then(|| escaped.replace("%7B", "{").replace("%7D", "}").replace("%25", "%"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(name: &str) -> Key {
        Key::new(name.as_ref()).expect("is a key")
    }

    #[test]
    fn the_hash_tag_is_the_whole_key() {
        assert_eq!(base("lockrun", &key("a")), "lockrun:{a}:");
        assert_eq!(base("lockrun", &key("a{b}c")), "lockrun:{a%7Bb%7Dc}:");
        assert_ne!(base("lockrun", &key("{")), base("lockrun", &key("%7B")));
    }

    #[test]
    fn a_key_is_known_by_its_fence() {
        for name in ["a", "a{b}c", "%7B", "a:fence", "a b*", "{", "%25"] {
            let fence = base("lock*run", &key(name)) + "fence";
            assert_eq!(of_fence("lock*run", &fence).as_deref(), Some(name));
        }
        assert_eq!(of_fence("lockrun", "lockrun:{a}:last"), None);
        assert_eq!(of_fence("lockrun", "other:{a}:fence"), None);
        assert_eq!(pattern("a*[b"), "a\\*\\[b:{*}:fence");
    }
}
