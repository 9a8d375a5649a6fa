//! Makes foreign text safe to print: text that comes from another machine through a store, or that the user typed in
//! the wrong place.

use std::borrow::Cow;
use std::ffi::OsStr;
use std::fmt::Write as _;
use std::path::Path;

use crate::lock::token::is_of_token;

/// Escapes all characters that could control a terminal or deceive its reader: control characters, and invisible ones
/// that change the direction of writing or break a line.
pub fn escaped(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for c in text.chars() {
        if is_hostile(c) {
            safe.extend(c.escape_default());
        } else {
            safe.push(c);
        }
    }
    safe
}

/// Escapes a path in the same way.
pub fn escaped_path(path: &Path) -> String {
    escaped(&path.to_string_lossy())
}

/// Escapes the same characters in JSON, which may also be printed on a terminal. The JSON's value stays the same.
pub fn json_for_terminals(json: &str) -> String {
    let mut safe = String::with_capacity(json.len());
    for c in json.chars() {
        // Outside strings, the only such character is the newline.
        if c != '\n' && is_hostile(c) {
            let _ = write!(safe, "\\u{:04x}", u32::from(c));
        } else {
            safe.push(c);
        }
    }
    safe
}

/// Returns whether a character could control a terminal or deceive its reader. All of these have at most four
/// hexadecimal digits.
fn is_hostile(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{061c}')
}

/// Escapes an OS string in the same way, and each byte that is not UTF-8 as in `\xff`.
pub fn escaped_os(text: &OsStr) -> String {
    let mut safe = String::new();
    for chunk in text.as_encoded_bytes().utf8_chunks() {
        safe.push_str(&escaped(chunk.valid()));
        for byte in chunk.invalid() {
            let _ = write!(safe, "\\x{byte:02x}");
        }
    }
    safe
}

/// Masks everything in `text` that could be the user part of a URL, which the user may have typed in the wrong place,
/// and the passwords in the parameters of URLs. A URL ends at a blank or a quotation mark.
pub fn without_credentials(text: &str) -> String {
    without_credentials_up_to(&[' ', '\'', '"', '\n'], text)
}

/// Masks the same in a word of a command line. If it is one word for a shell, too, a URL in it ends with it, whatever
/// characters its password has.
pub fn word_without_credentials(word: &str) -> String {
    if word.contains(char::is_whitespace) { without_credentials(word) } else { without_credentials_up_to(&[], word) }
}

/// Masks the same in URLs that end at one of these characters.
fn without_credentials_up_to(ends: &[char], text: &str) -> String {
    let mut shown = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("://") {
        let (url, after) = after.split_at(after.find(ends).unwrap_or(after.len()));
        shown.push_str(before);
        shown.push_str("://");
        // The query first: an `@` in a password does not end a user part.
        let url = without_query_passwords(url);
        match url.rsplit_once('@') {
            Some((_, place)) => shown.extend(["***@", place]),
            None => shown.push_str(&url),
        }
        rest = after;
    }
    shown + rest
}

/// Masks the passwords in the query of a URL.
fn without_query_passwords(url: &str) -> Cow<'_, str> {
    let Some((place, query)) = url.split_once('?') else { return url.into() };
    let mask =
        |parameter| password_parameter(parameter).map_or(parameter.to_owned(), |(name, _)| format!("{name}=***"));
    let query: Vec<_> = query.split('&').map(mask).collect();
    format!("{place}?{}", query.join("&")).into()
}

/// Returns whether a URL contains a password: in its user part, or in a parameter of its query.
pub fn has_password(url: &str) -> bool {
    let user = url.split_once("://").and_then(|(_, rest)| rest.rsplit_once('@')).map(|(user, _)| user);
    let query = url.split_once('?').map_or("", |(_, query)| query);
    user.and_then(|user| user.split_once(':')).is_some_and(|(_, password)| !password.is_empty())
        || query.split('&').any(|parameter| password_parameter(parameter).is_some())
}

/// Returns the name and the value of a parameter in a URL's query if the value is a password, as in
/// `sentinel_password=secret`.
fn password_parameter(parameter: &str) -> Option<(&str, &str)> {
    let (name, value) = parameter.split_once('=')?;
    (name.to_ascii_lowercase().ends_with("password") && !value.is_empty()).then_some((name, value))
}

/// Returns whether a message may repeat a word that the user has typed in the wrong place: it has the form of a name, a
/// path, a number or a duration. Anything else may be the address of a store, in whatever form, and have a password in
/// it.
pub fn is_plain_word(word: &str) -> bool {
    let is_of_word = |c: char| c.is_alphanumeric() || matches!(c, '.' | '_' | '-' | '+' | '/' | '~');
    let is_duration = || {
        // As in `1h 5M`, `2 months` and `5:30`.
        word.len() <= 16
            && word.starts_with(|first: char| first.is_ascii_digit())
            && word.chars().all(|c| c.is_ascii_digit() || matches!(c, ' ' | '.' | ':') || c.is_ascii_alphabetic())
            && word.split([' ', ':']).all(|part| {
                part.starts_with(|first: char| first.is_ascii_digit()) || part.chars().all(char::is_alphabetic)
            })
    };
    word.chars().all(is_of_word) || is_duration()
}

/// Returns `message` with `***` for everything in quotation marks if it may repeat `value`, or parts of it, and `value`
/// may not be repeated, see [`is_plain_word`].
pub fn without_value(value: &str, message: &str) -> String {
    if is_plain_word(value.trim()) {
        return message.to_owned();
    }
    let mut shown = String::new();
    let mut rest = message;
    while let Some((before, quoted)) = rest.split_once('"') {
        let mut is_escaped = false;
        let end = quoted.find(|c| {
            let is_end = c == '"' && !is_escaped;
            is_escaped = c == '\\' && !is_escaped;
            is_end
        });
        shown.extend([before, "***"]);
        rest = end.map_or("", |end| &quoted[end + 1..]);
    }
    shown + rest
}

/// Formats a path that the user has typed for a message, in which it follows a verb. What is more likely the address of
/// a store is not repeated.
pub fn typed_path(path: &Path) -> String {
    let text = path.to_string_lossy();
    let is_address = text.contains('@') && text.contains(':')
        || !text.starts_with('/') && text.contains([' ', '\n', ',', ':', ';', '@', '='])
        || text.contains("://");
    if is_address {
        "its file, which is not shown because its name may contain a password".into()
    } else {
        escaped(&text)
    }
}

/// Returns `value`, for use in a message, without what could be the user part of a URL typed in the wrong place. An `@`
/// without a `:` before it is part of a name or a path, not of a URL.
pub fn without_user(value: &str) -> Cow<'_, str> {
    match value.rsplit_once('@') {
        Some((user, rest)) if user.contains(':') => format!("***@{rest}").into(),
        _ => value.into(),
    }
}

/// Masks lockrun's secrets in a command line: tokens, and passwords in URLs.
pub fn without_secrets(command: &str) -> String {
    /// What a token follows.
    const NAMES: [&str; 2] = ["--token", "LOCKRUN_TOKEN="];
    let mut shown = String::new();
    let command = without_credentials(command);
    let mut rest = command.as_str();
    while let Some((at, name)) = NAMES.into_iter().filter_map(|name| Some((rest.find(name)?, name))).min() {
        let (before, after) = rest.split_at(at + name.len());
        let value = after.trim_start_matches(['=', ' ', '\'', '"']);
        shown.push_str(before);
        shown.push_str(&after[..after.len() - value.len()]);
        let is_name = NAMES.iter().any(|name| value.starts_with(name));
        rest = if is_name { value } else { value.trim_start_matches(is_of_token) };
        if rest.len() < value.len() {
            shown.push_str("***");
        }
    }
    shown + rest
}

/// Escapes foreign text in a message of several lines.
pub fn escaped_lines(text: &str) -> String {
    text.lines().map(escaped).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hostile_text_reaches_no_terminal() {
        assert_eq!(escaped("a\x1b[31mb\nc\u{202e}d\u{9b}"), "a\\u{1b}[31mb\\nc\\u{202e}d\\u{9b}");
        assert_eq!(escaped("ключ 'ok' \"x\""), "ключ 'ok' \"x\"");
    }

    #[test]
    fn json_stays_what_it_is() {
        let text = "a\u{9b}b\u{202e}c\n\x7fж";
        let json = serde_json::json!({ "x": text });
        let safe = json_for_terminals(&format!("{json:#}\n"));
        assert!(!safe.contains(['\u{9b}', '\u{202e}', '\x7f']), "{safe}");
        assert_eq!(serde_json::from_str::<serde_json::Value>(&safe).expect("is JSON"), json);
    }

    #[test]
    fn tokens_are_not_said_again() {
        let said = "sh -c 'A=redis://u:p@h LOCKRUN_TOKEN=a.b lockrun renew --token \"c-d\"; \
                    x --token=e --token --token=f --token $T' --token";
        let safe = "sh -c 'A=redis://***@h LOCKRUN_TOKEN=*** lockrun renew --token \"***\"; \
                    x --token=*** --token --token=*** --token $T' --token";
        assert_eq!(without_secrets(said), safe);
    }

    #[test]
    fn a_value_that_may_be_an_address_is_not_said_again() {
        for value in ["5", "1M", "1h 5M", "5:30", "soon", "./x", "/etc/lockrun.toml", "-1", "ключ"] {
            assert_eq!(without_value(value, &format!("{value:?} is no number")), format!("{value:?} is no number"));
        }
        for value in [
            "u:p@h",
            "h:6379,password=s",
            "host=h password=s",
            "redis-cli -a s",
            "redis://u:s\"e@h",
            "a\nb",
            "5 s3cret",
            "10.0.0.1:6379,s",
        ] {
            let message = format!("{value:?} is no number: there is no unit {value:?}; write 5");
            assert_eq!(without_value(value, &message), "*** is no number: there is no unit ***; write 5");
        }
    }

    #[test]
    fn a_path_is_shown_unless_it_may_be_an_address() {
        for path in ["/var/log/a=b", "/srv/12:30.log", "/etc/web@2.pem", "events.json", "./x"] {
            assert_eq!(typed_path(path.as_ref()), path);
        }
        for path in ["u:s3cret", "//u:s3cret@h", "h,password=s3cret", "/x://s3cret", "redis-cli -a s3cret"] {
            assert!(!typed_path(path.as_ref()).contains("s3cret"), "{path}");
        }
    }

    #[test]
    fn a_value_is_said_without_a_users_password() {
        for (value, shown) in
            [("u:p@w@h", "***@h"), ("{redis://u:pw@h/", "***@h/"), ("/etc/web@2.pem", "/etc/web@2.pem"), ("a:b", "a:b")]
        {
            assert_eq!(without_user(value), shown);
        }
    }

    #[test]
    fn credentials_are_not_said_again() {
        let said = "unexpected value 'redis://u:pass@word@host' for '--skip', file:///x";
        assert_eq!(without_credentials(said), "unexpected value 'redis://***@host' for '--skip', file:///x");
    }

    #[test]
    fn a_password_with_quotation_marks_is_not_said_again() {
        for (word, shown) in [
            ("--store=redis://u:pa'ss\"w@h", "--store=redis://***@h"),
            ("redis://h?sentinel_password=se'cret&db=1", "redis://h?sentinel_password=***&db=1"),
            ("x='redis://u:p@h'; echo 'a@b'", "x='redis://***@h'; echo 'a@b'"),
        ] {
            assert_eq!(word_without_credentials(word), shown);
        }
    }

    #[test]
    fn passwords_in_a_query_are_not_said_again() {
        for (url, shown, has) in [
            (
                "redis+sentinel://h/m?sentinel_password=a@b&db=1",
                "redis+sentinel://h/m?sentinel_password=***&db=1",
                true,
            ),
            ("redis+sentinel://:p@h/m?sentinel_password=a@b", "redis+sentinel://***@h/m?sentinel_password=***", true),
            ("postgres://h/d?sslmode=require&PASSWORD=s", "postgres://h/d?sslmode=require&PASSWORD=***", true),
            ("postgres://u@h/d?password=", "postgres://***@h/d?password=", false),
            ("redis://u:p?w@h", "redis://***@h", true),
        ] {
            assert_eq!(without_credentials(&format!("x '{url}' y")), format!("x '{shown}' y"));
            assert_eq!(has_password(url), has, "{url}");
        }
    }
}
