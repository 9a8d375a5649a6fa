//! Fuzzing of words: durations, keys, tokens, patterns, and how they are printed.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::time::Duration;

use super::pattern::Pattern;
use super::{duration, escape, shell, wrap};
use crate::fuzz::{PASSWORD, check_harmless, check_secret};
use crate::lock::key::{self, Key};
use crate::lock::token::Token;

/// Fuzzes durations: one that is accepted survives being printed and read again, and no message reveals a URL's
/// password.
pub fn duration(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    match duration::parse(&text) {
        Ok(span) => {
            // Fractions of a millisecond are not printed.
            let whole = Duration::new(span.as_secs(), span.subsec_millis() * 1_000_000);
            assert_eq!(duration::parse(&duration::say_finely(span)), Ok(whole));
            assert_eq!(duration::parse(&duration::say(span)), Ok(Duration::from_secs(span.as_secs())));
        }
        Err(why) => check_message(&why, &text),
    }
    for (at, _) in text.char_indices().take(8) {
        let (before, after) = text.split_at(at);
        if let Err(why) = duration::parse(&format!("{before}redis://u:{PASSWORD}@h{after}")) {
            check_secret(&why);
        }
    }
}

fn check_message(why: &str, text: &str) {
    assert!(why.len() <= 1000 + 24 * text.len(), "a message of {} bytes", why.len());
    check_harmless(&escape::escaped(why));
}

/// Fuzzes a word as a key, a token and a pattern, and how it is printed.
pub fn words(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    match Key::new(OsStr::from_bytes(data)) {
        Ok(key) => assert!((1..=key::MAX_LEN).contains(&key.as_str().len()) && key.as_str().as_bytes() == data),
        Err(why) => check_message(&why, &text),
    }
    match Token::parse(&text) {
        Ok(token) => assert_eq!(Token::parse(token.as_str()), Ok(token)),
        Err(why) => check_message(&why, &text),
    }
    if let Some(pattern) = Pattern::read(&text) {
        let plain = text.replace('*', "").replace('?', "x");
        assert!(pattern.matches(&plain), "{text:?} {plain:?}");
    }
    let shown = escape::escaped(&text);
    assert_eq!(escape::escaped(&shown), shown);
    check_harmless(&escape::escaped_os(OsStr::from_bytes(data)));
    check_harmless(&escape::escaped_lines(&text));
    let json = serde_json::json!({ "x": text });
    let safe = escape::json_for_terminals(&format!("{json:#}"));
    check_harmless(&safe);
    assert_eq!(serde_json::from_str::<serde_json::Value>(&safe).expect("is JSON"), json);
    check_harmless(&shell::word(&escape::escaped(&text)));
    let help = wrap::wrapped(&shown, 80);
    assert_eq!(help.split_whitespace().collect::<String>(), shown.split_whitespace().collect::<String>());
    for (at, _) in text.char_indices().take(8) {
        let (before, after) = text.split_at(at);
        check_secret(&escape::without_secrets(&format!("{before} redis://u:{PASSWORD}@h {after}")));
        check_secret(&escape::without_secrets(&format!("{before} --token={PASSWORD} {after}")));
    }
}
