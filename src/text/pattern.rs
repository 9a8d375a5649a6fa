//! Patterns of keys, as in `status 'backup-*'`.

/// A pattern: `*` matches any number of characters, `?` exactly one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pattern(Vec<char>);

impl Pattern {
    /// Reads `text` as a pattern; `None` if it has neither `*` nor `?`, and so is a plain name.
    pub fn read(text: &str) -> Option<Self> {
        text.contains(['*', '?']).then(|| Pattern(text.chars().collect()))
    }

    /// Returns whether the pattern matches the whole of `text`.
    pub fn matches(&self, text: &str) -> bool {
        let (pattern, text) = (&self.0, text.chars().collect::<Vec<_>>());
        let (mut at, mut from) = (0, 0);
        // The position after the last `*`, and where its match ends: the match grows by one character whenever the rest
        // does not fit.
        let mut star = None;
        while from < text.len() {
            match pattern.get(at) {
                Some('*') => {
                    at += 1;
                    star = Some((at, from));
                }
                Some(c) if *c == '?' || *c == text[from] => (at, from) = (at + 1, from + 1),
                _ => {
                    let Some((behind, end)) = star else { return false };
                    star = Some((behind, end + 1));
                    (at, from) = (behind, end + 1);
                }
            }
        }
        pattern[at..].iter().all(|c| *c == '*')
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stars_and_question_marks_stand_for_characters() {
        for (pattern, yes, no) in [
            ("backup-*", &["backup-", "backup-db"][..], &["backup", "my-backup-db"][..]),
            ("*-db", &["-db", "a-db", "a-db-db"], &["a-dbx"]),
            ("a*b*c", &["abc", "axbxc", "abcbc"], &["ab", "acb"]),
            ("tenant-??", &["tenant-01", "tenant-äö"], &["tenant-1", "tenant-001"]),
            ("*", &["", "anything"], &[]),
        ] {
            let read = Pattern::read(pattern).expect("is a pattern");
            assert!(yes.iter().all(|text| read.matches(text)), "{pattern}");
            assert!(!no.iter().any(|text| read.matches(text)), "{pattern}");
        }
        assert_eq!(Pattern::read("[plain]"), None);
        let hard = Pattern::read(&"*a".repeat(100)).expect("is a pattern");
        assert!(!hard.matches(&("a".repeat(99) + "b")), "in little time");
    }
}
