//! What lockrun says, on standard error: one line at a time, each beginning with `lockrun: `.
//!
//! Standard output is COMMAND's. What came out of a store was written by another machine, so it is escaped before a
//! terminal sees it.

use std::fmt::{self, Write as _};
use std::io::Write as _;
use std::time::Duration;

use crate::duration;
use crate::key::Key;
use crate::store::Held;
use crate::supervise::Finished;

/// How much is said.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verbosity {
    /// Errors alone.
    Quiet,
    /// Also who holds a lock that we did not get.
    Normal,
    /// Also what happens when all is well.
    Verbose,
}

/// Says `text`; every line of it gets the prefix, and all are written at once.
pub fn say(text: &str) {
    let mut lines = String::new();
    for line in text.lines().filter(|line| !line.trim().is_empty()) {
        let _ = writeln!(lines, "lockrun: {line}");
    }
    // There is nobody to tell if standard error is gone.
    let _ = std::io::stderr().write_all(lines.as_bytes());
}

/// Says an error with its causes: what failed, then why.
pub fn error(error: &anyhow::Error) {
    say(&format!("{error:#}"));
}

/// The held message: who has the lock.
pub fn held(key: &Key, held: &Held) -> String {
    format!("lock \"{}\" is held by {held}", escaped(key.as_str()))
}

/// The guardian's last word, when lockrun was killed.
pub fn orphaned(finished: &Finished) {
    say(if finished.stuck {
        "lockrun itself was killed, and some of its command's processes cannot be"
    } else {
        "lockrun itself was killed; its guardian has killed the command"
    });
}

/// Says the holder, as in `web-1 pid 4242 (deploy: ./report.sh) for 3m 12s`.
impl fmt::Display for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(holder) = &self.holder else { return f.write_str("a run that has left no name") };
        let (host, user) = (escaped(&holder.host), escaped(&holder.user));
        write!(f, "{host} pid {} ({user}: {}) for {}", holder.pid, escaped(&holder.command), span(self.since))
    }
}

fn span(since: Option<Duration>) -> String {
    since.map_or_else(|| "an unknown time".into(), duration::say)
}

/// The text with everything escaped that could steer a terminal or deceive its reader: control characters, and the
/// invisible ones that turn the direction of writing or break a line.
pub fn escaped(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for c in text.chars() {
        let deceives = matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{061c}');
        if c.is_control() || deceives {
            safe.extend(c.escape_default());
        } else {
            safe.push(c);
        }
    }
    safe
}

/// The text with whatever could be the user's part of a URL replaced: for words that the user typed in the wrong place.
pub fn without_credentials(text: &str) -> String {
    let mut shown = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("://") {
        let end = after.find([' ', '\'', '"', '\n']).unwrap_or(after.len());
        shown.push_str(before);
        shown.push_str("://");
        match after[..end].rfind('@') {
            Some(at) => {
                shown.push_str("***");
                rest = &after[at..];
            }
            None => rest = after,
        }
    }
    shown + rest
}

/// Like [`escaped`], but for a text of ours of several lines that has somebody else's words in it.
pub fn escaped_lines(text: &str) -> String {
    text.lines().map(escaped).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::holder::Holder;

    #[test]
    fn hostile_text_reaches_no_terminal() {
        assert_eq!(escaped("a\x1b[31mb\nc\u{202e}d\u{9b}"), "a\\u{1b}[31mb\\nc\\u{202e}d\\u{9b}");
        assert_eq!(escaped("ключ 'ok' \"x\""), "ключ 'ok' \"x\"");
    }

    #[test]
    fn credentials_are_not_said_again() {
        let said = "unexpected value 'redis://u:pass@word@host' for '--skip', file:///x";
        assert_eq!(without_credentials(said), "unexpected value 'redis://***@host' for '--skip', file:///x");
    }

    #[test]
    fn the_holder_is_named() {
        let holder = Holder { host: "web-1".into(), pid: 4242, user: "deploy".into(), command: "./report.sh".into() };
        let message = held(
            &Key::new("nightly-report".as_ref()).expect("is a key"),
            &Held { holder: Some(holder), since: Some(Duration::from_secs(192)), ..Held::default() },
        );
        assert_eq!(message, "lock \"nightly-report\" is held by web-1 pid 4242 (deploy: ./report.sh) for 3m 12s");
    }
}
