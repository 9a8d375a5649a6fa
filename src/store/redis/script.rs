//! The scripts, and how a server is asked to run one: by its text, or by its hash if the server knows the text already.
//!
//! The text is long, and a server remembers the hash of each text that it is sent. A run that waits has found earlier
//! runs there, so the server most likely knows the scripts. A server that does not says so, and is then sent the text.

use std::sync::LazyLock;

use redis::{Arg, Cmd};

/// What the scripts say when they fail on purpose.
pub(super) const HOLDER_LOST: &str = "nothing is known of a holder but its lease";
pub(super) const NO_FENCE: &str = "the fence is no number";
/// What the server says when they cannot increment the fence.
pub(super) const FENCE_ENDS: &str = "increment or decrement would overflow";
pub(super) const FENCE_NOT_INTEGER: &str = "value is not an integer or out of range";

/// Short names sent in place of the words that occur most often in the scripts, and in none of their strings.
const SHORT: [(&str, &str); 10] = [
    ("redis.call(", "C("),
    ("TOKEN", "T"),
    ("PLACES", "P"),
    ("MAILBOX", "M"),
    ("HOLDERS", "H"),
    ("QUEUE", "Q"),
    ("FAILOVER", "F"),
    ("info_of", "I"),
    ("ends_of", "E"),
    ("set_info", "G"),
];

/// A script made of these parts, after the prelude.
macro_rules! script {
    ($($part:literal)*) => {{
        static ALONE: LazyLock<String> =
            LazyLock::new(|| compact(&[include_str!("prelude.lua"), $(include_str!($part)),*]));
        static WITH_FAILOVER: LazyLock<String> =
            LazyLock::new(|| compact(&[include_str!("prelude.lua"), include_str!("failover.lua"), $(include_str!($part)),*]));
        Script {
            alone: Variant { text: &ALONE, hash: LazyLock::new(|| hash(&ALONE)) },
            with_failover: Variant { text: &WITH_FAILOVER, hash: LazyLock::new(|| hash(&WITH_FAILOVER)) },
        }
    }};
}

pub(super) static ACQUIRE: Script = script!("queue.lua" "acquire.lua");
pub(super) static RENEW: Script = script!("changes.lua" "queue.lua" "renew.lua");
pub(super) static RELEASE: Script = script!("changes.lua" "note.lua" "queue.lua" "release.lua");
pub(super) static RESERVE: Script = script!("queue.lua" "reserve.lua");
pub(super) static LIST: Script = script!("list.lua");
pub(super) static REVOKE: Script = script!("changes.lua" "note.lua" "queue.lua" "revoke.lua");
pub(super) static PRUNE: Script = script!("prune.lua");
pub(super) static FORGET: Script = script!("forget.lua");

static ALL: [&Script; 8] = [&ACQUIRE, &RENEW, &RELEASE, &RESERVE, &LIST, &REVOKE, &PRUNE, &FORGET];

pub(super) struct Script {
    /// For a server that no other one can replace.
    alone: Variant,
    /// For a server that another one can replace.
    with_failover: Variant,
}

struct Variant {
    text: &'static LazyLock<String>,
    hash: LazyLock<String>,
}

impl Script {
    fn variant(&self, with_failover: bool) -> &Variant {
        if with_failover { &self.with_failover } else { &self.alone }
    }

    /// Returns the beginning of a command that runs the script.
    pub(super) fn command(&self, by_hash: bool, with_failover: bool) -> Cmd {
        let variant = self.variant(with_failover);
        if by_hash {
            redis::cmd("EVALSHA").arg(&*variant.hash).take()
        } else {
            redis::cmd("EVAL").arg(&**variant.text).take()
        }
    }
}

/// Computes the hashes that a waiter will need, while it has time.
pub(super) fn compute_hashes(with_failover: bool) {
    for script in [&ACQUIRE, &RENEW, &RELEASE] {
        LazyLock::force(&script.variant(with_failover).hash);
    }
}

/// Returns the same command with the text of its script, if it has the hash and the server rejected it for that: it
/// does not know the script, does not let us run one by hash, or has no such command.
pub(super) fn in_full(command: &Cmd, error: &str) -> Option<Cmd> {
    let is_for_that =
        matches!(error.split(' ').next(), Some("NOSCRIPT" | "NOPERM")) || error.contains("unknown command");
    if !is_for_that {
        return None;
    }
    let mut words = command.args_iter();
    let (Some(Arg::Simple(b"EVALSHA")), Some(Arg::Simple(hash))) = (words.next(), words.next()) else { return None };
    let mut variants = ALL.into_iter().flat_map(|script| [(script, false), (script, true)]);
    let (script, with_failover) =
        variants.find(|(script, with_failover)| script.variant(*with_failover).hash.as_bytes() == hash)?;
    let mut full = script.command(false, with_failover);
    for word in words {
        if let Arg::Simple(word) = word {
            full.arg(word);
        }
    }
    Some(full)
}

/// Returns the script without comments, indentation and unnecessary blanks, and with the short names: what is sent
/// first must fit into a connection's first flight, or it costs another round trip.
fn compact(parts: &[&str]) -> String {
    let mut compact = String::with_capacity(parts.iter().map(|part| part.len()).sum());
    for line in parts
        .iter()
        .flat_map(|part| part.lines())
        .map(str::trim)
        .filter(|line| !line.is_empty() && !line.starts_with("--"))
    {
        // Between an odd quotation mark and the next is a string, which stays as it is.
        let line = SHORT.iter().fold(line.to_owned(), |line, (word, short)| line.replace(word, short));
        for (number, part) in line.split('\'').enumerate() {
            let is_text = number % 2 == 1;
            compact.push_str(if number == 0 { "" } else { "'" });
            compact.push_str(&if is_text { part.to_owned() } else { without_blanks(part) });
        }
        compact.push('\n');
    }
    compact
}

/// Returns a part of a line without the blanks that Lua does not need; it needs those between two words. The scripts
/// nowhere have two minus signs with a blank between them, or a number before two dots, whose meaning would change.
fn without_blanks(part: &str) -> String {
    let is_word = |character: Option<char>| character.is_some_and(|it| it.is_ascii_alphanumeric() || it == '_');
    let mut kept = String::with_capacity(part.len());
    let mut rest = part.chars().peekable();
    while let Some(character) = rest.next() {
        if character != ' ' || is_word(kept.chars().next_back()) && is_word(rest.peek().copied()) {
            kept.push(character);
        }
    }
    kept
}

/// Returns the hash by which a server knows a script: its SHA-1.
fn hash(text: &str) -> String {
    sha1_smol::Sha1::from(text).digest().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_script_fits_into_the_first_flight() {
        // Ten segments of 1,400 bytes, enough for any path; with an ordinary key and command, some 550 bytes come with
        // the script.
        for script in ALL {
            let length = script.alone.text.len();
            assert!(length <= 10 * 1400 - 800, "{length} bytes");
        }
        let spaced = "-- a\n\n  local b, c = redis.call('TI, ME', TOKEN) or (e and 'f g')\n";
        assert_eq!(compact(&[spaced]), "local b,c=C('TI, ME',T)or(e and'f g')\n");
    }

    #[test]
    fn the_scripts_fail_in_these_words() {
        assert!(ACQUIRE.alone.text.contains(HOLDER_LOST) && LIST.alone.text.contains(NO_FENCE));
    }

    #[test]
    fn a_hash_becomes_the_text_again() {
        let finish = |mut command: Cmd| command.arg(1).arg("key").arg("").take().get_packed_command();
        let by_hash = RELEASE.command(true, true).arg(1).arg("key").arg("").take();
        let full = in_full(&by_hash, "NOSCRIPT No matching script.").expect("is ours");
        assert_eq!(full.get_packed_command(), finish(RELEASE.command(false, true)));
        assert!(in_full(&full, "NOPERM this user has no permissions").is_none(), "it is in full");
        assert!(in_full(&by_hash, "OOM command not allowed").is_none(), "the text would not help");
        assert_eq!(hash(""), "da39a3ee5e6b4b0d3255bfef95601890afd80709");
    }
}
