//! Which known word a misspelt one was most likely meant to be.

use strsim::normalized_damerau_levenshtein as likeness;

/// How much alike two words must be for one to be taken for the other: 1 is the same word.
const ALIKE: f64 = 0.65;

/// Returns the one of the `known` words that is most like `typed`; `None` if there are none.
pub fn nearest<T: AsRef<str>>(typed: &str, known: impl Iterator<Item = T>) -> Option<T> {
    known.max_by(|one, other| likeness(typed, one.as_ref()).total_cmp(&likeness(typed, other.as_ref())))
}

/// The same, but `None` if they are so different that most likely something else was meant.
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
