//! Values as the text that PostgreSQL takes.

use std::io;

use serde::Serialize;
use serde_json::Serializer;
use serde_json::ser::Formatter;

/// Returns the JSON that is stored for a lock or a waiter, neither of which can fail to be written as JSON. It has only
/// ASCII characters, which every database can store whatever its encoding.
pub(super) fn json(value: &impl Serialize) -> String {
    let mut text = Vec::new();
    match value.serialize(&mut Serializer::with_formatter(&mut text, Ascii)) {
        Ok(()) => String::from_utf8(text).unwrap_or_default(),
        Err(_) => String::new(),
    }
}

/// Writes JSON with all non-ASCII characters escaped.
struct Ascii;

impl Formatter for Ascii {
    fn write_string_fragment<W: io::Write + ?Sized>(&mut self, writer: &mut W, fragment: &str) -> io::Result<()> {
        for character in fragment.chars() {
            if character.is_ascii() {
                write!(writer, "{character}")?;
                continue;
            }
            for unit in character.encode_utf16(&mut [0; 2]) {
                write!(writer, "\\u{unit:04x}")?;
            }
        }
        Ok(())
    }
}

/// Returns a PostgreSQL array of numbers, or of words that consist of letters, digits and underscores.
pub(super) fn array<T: ToString>(items: impl IntoIterator<Item = T>) -> String {
    let words: Vec<String> = items.into_iter().map(|item| item.to_string()).collect();
    format!("{{{}}}", words.join(","))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_stored_is_ascii() {
        for text in ["plain \"quoted\" \\ \n", "é", "ł €", "日本", "a😀b\u{10ffff}"] {
            let stored = json(&text);
            assert!(stored.is_ascii(), "{stored}");
            assert_eq!(serde_json::from_str::<String>(&stored).expect("is JSON"), text);
        }
    }
}
