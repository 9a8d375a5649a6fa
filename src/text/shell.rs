//! Quotes text for a shell, in commands that lockrun prints for users to type.

use std::path::Path;

use super::escape::escaped_path;

/// Quotes the text as one word of a shell.
pub fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

/// Returns the text as one word of a shell, quoted only if it has characters that a shell may interpret.
pub fn word(text: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "_./:@%+,=-".contains(c);
    if !text.is_empty() && text.chars().all(is_plain) { text.to_owned() } else { quoted(text) }
}

/// Returns a path as one word of a shell, in a message.
pub fn path_word(path: &Path) -> String {
    word(&escaped_path(path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shell_reads_a_key_as_one_word() {
        assert_eq!(quoted("it's $(reboot) \"x\""), r#"'it'\''s $(reboot) "x"'"#);
    }

    #[test]
    fn only_what_a_shell_may_read_otherwise_is_quoted() {
        for plain in ["/var/lib/a-b_c.d", "/x/a%20b", "deploy"] {
            assert_eq!(word(plain), plain);
        }
        for (text, quoted) in
            [("", "''"), ("/a b", "'/a b'"), ("/x;reboot", "'/x;reboot'"), ("~", "'~'"), ("/ж", "'/ж'")]
        {
            assert_eq!(word(text), quoted);
        }
        assert_eq!(path_word(Path::new("/x\n'")), r"'/x\n'\'''");
    }
}
