//! Finds the known word that a misspelt one most likely stands for.

use strsim::normalized_damerau_levenshtein as likeness;

/// How similar two words must be for one to be a misspelling of the other; 1 means equal.
const ALIKE: f64 = 0.65;

/// Returns the `known` word that is most similar to `typed`; `None` if there is none.
pub fn nearest<T: AsRef<str>>(typed: &str, known: impl Iterator<Item = T>) -> Option<T> {
    known.max_by(|one, other| likeness(typed, one.as_ref()).total_cmp(&likeness(typed, other.as_ref())))
}

/// As [`nearest`], but returns `None` if the words differ so much that another word was most likely meant.
pub fn alike<T: AsRef<str>>(typed: &str, known: impl Iterator<Item = T>) -> Option<T> {
    nearest(typed, known).filter(|known| likeness(typed, known.as_ref()) >= ALIKE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_too_different_is_not_alike() {
        let known = ["skip", "wait", "store", "ttl"];
        let cases = [("skipp", "skip"), ("wiat", "wait"), ("stoer", "store"), ("STORE", ""), ("colour", ""), ("", "")];
        for (typed, meant) in cases {
            assert_eq!(alike(typed, known.into_iter()).unwrap_or_default(), meant, "{typed}");
        }
        assert!(nearest("colour", known.into_iter()).is_some());
        assert_eq!(nearest("colour", [""; 0].into_iter()), None);
    }
}
