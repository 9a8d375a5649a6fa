//! The rights that a user of the server needs, and which of them are missing.
//!
//! lockrun finds out by using them: that needs no right to query rights, and works on every server.

use redis::Cmd;

use super::failure::Failure;
use super::keys;
use crate::store::diagnostic::Diagnostic;
use crate::store::redis::url::Server;

/// Stands for the scratch key in a harmless call.
const KEY: &str = "KEY";

/// Each command that lockrun or one of its scripts uses, with the arguments of a harmless call. In this order, the
/// calls leave nothing behind. Of the commands that introduce us, AUTH is allowed to everybody, and SELECT is needed
/// only where the URL names a database.
const COMMANDS: [(&str, &[&str]); 27] = [
    ("time", &[]),
    ("eval", &["return 1", "1", KEY]),
    ("evalsha", &["0000000000000000000000000000000000000000", "1", KEY]),
    ("scan", &["0", "COUNT", "1"]),
    ("get", &[KEY]),
    ("set", &[KEY, "", "XX"]),
    ("zadd", &[KEY, "XX", "0", "member"]),
    ("zcount", &[KEY, "0", "0"]),
    ("zrange", &[KEY, "0", "0"]),
    ("zrangebyscore", &[KEY, "0", "0"]),
    ("zrank", &[KEY, "member"]),
    ("zrem", &[KEY, "member"]),
    ("zrevrange", &[KEY, "0", "0"]),
    ("zscore", &[KEY, "member"]),
    ("hset", &[KEY, "field", "value"]),
    ("hget", &[KEY, "field"]),
    ("hgetall", &[KEY]),
    ("hincrby", &[KEY, "number", "1"]),
    // The key is a hash here: this fails with WRONGTYPE, and changes nothing.
    ("incr", &[KEY]),
    ("hdel", &[KEY, "field", "number"]),
    ("rpush", &[KEY, "letter"]),
    ("lindex", &[KEY, "0"]),
    ("persist", &[KEY]),
    ("pexpireat", &[KEY, "99999999999999"]),
    ("blpop", &[KEY, "0.01"]),
    // Where DEL is not allowed, what the calls above have created expires.
    ("pexpire", &[KEY, "1000"]),
    ("del", &[KEY]),
];

/// The commands without which locks work, and what does not.
const OPTIONAL: [(&str, &str); 2] = [
    ("evalsha", "without it a run that has waited needs another round trip for each request"),
    ("scan", "without it lockrun status lists no locks, and lockrun prune removes none"),
];

/// What a user lacks.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Missing {
    /// Commands that it may not run, in lower case.
    commands: Vec<String>,
    /// Commands that the server does not have, or has under another name.
    unknown: Vec<String>,
    /// Whether it may not access our keys, or may not write to them.
    keys: bool,
}

impl Missing {
    /// Tries every command with `ask`, on the scratch key `key`. Fails if the server does not answer.
    pub(super) fn find(key: &str, mut ask: impl FnMut(&Cmd) -> Result<(), Failure>) -> Result<Self, Failure> {
        let mut missing = Missing::default();
        for (name, words) in COMMANDS {
            let mut command = redis::cmd(name);
            for word in words {
                command.arg(if *word == KEY { key } else { word });
            }
            match ask(&command) {
                Err(Failure::Rejected(rejection)) => missing.note(name, &rejection.error),
                other => other?,
            }
        }
        Ok(missing)
    }

    /// Notes that the server rejected `command` with this `error`. Ignores errors that do not concern rights.
    pub(super) fn note(&mut self, command: &str, error: &str) {
        let noperm = error.starts_with("NOPERM");
        if error.contains("unknown command") {
            self.unknown.push(command.into());
        } else if noperm && error.contains("permissions to access") {
            self.keys = true;
        } else if noperm {
            self.commands.push(command.into());
        }
    }

    /// Returns one diagnostic for each kind of missing right, or one that says that nothing is missing.
    pub(super) fn diagnostics(&self, server: &Server) -> Vec<Diagnostic> {
        let user = server.user.as_deref().unwrap_or("default");
        let mut diagnostics = Vec::new();
        diagnostics.extend(each_need(&self.unknown, |names, need| {
            let text = format!("{server} has no command {}", names.join(", ").to_uppercase());
            (text, format!("{need}; take back a rename-command, or use Redis 6 or newer"))
        }));
        diagnostics.extend(each_need(&self.commands, |names, need| {
            let text = format!("user \"{user}\" may not run {}", names.join(", ").to_uppercase());
            (text, format!("{need}; grant it with ACL SETUSER {user} +{}", names.join(" +")))
        }));
        if self.keys {
            let pattern = pattern(&server.prefix);
            let text = format!("user \"{user}\" may not read and write all keys that match {pattern}");
            diagnostics.push(Diagnostic::unusable(
                text,
                format!("locks are there; grant it with ACL SETUSER {user} ~{pattern}"),
            ));
        }
        if diagnostics.is_empty() {
            diagnostics.push(Diagnostic::ok(format!("user \"{user}\" may do all that a lock needs")));
        }
        diagnostics
    }

    /// Returns whether anything is missing that a lock needs.
    pub(super) fn prevents_locks(&self) -> bool {
        self.keys || self.unknown.iter().chain(&self.commands).any(|name| !is_optional(name))
    }
}

fn is_optional(name: &str) -> bool {
    OPTIONAL.iter().any(|(optional, _)| *optional == name)
}

/// Judges missing commands: those that locks need together, each optional one by itself. `describe` returns the text
/// and the advice for these names, given what they are needed for.
fn each_need(missing: &[String], describe: impl Fn(&[&str], &str) -> (String, String)) -> Vec<Diagnostic> {
    let mut diagnostics = Vec::new();
    let needed: Vec<&str> = missing.iter().map(String::as_str).filter(|name| !is_optional(name)).collect();
    if !needed.is_empty() {
        let (text, advice) = describe(&needed, "locks need it");
        diagnostics.push(Diagnostic::unusable(text, advice));
    }
    for (name, need) in OPTIONAL.iter().filter(|(name, _)| missing.iter().any(|missing| missing == name)) {
        let (text, advice) = describe(&[name], need);
        diagnostics.push(Diagnostic::warn(text, advice));
    }
    diagnostics
}

/// Returns the ACL pattern that our keys match.
fn pattern(prefix: &str) -> String {
    keys::glob(prefix) + ":*"
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use std::fs;
    use std::path::{Path, PathBuf};

    /// Returns the files with this extension in `src/store/redis`, not below it.
    fn sources(extension: &str) -> Vec<PathBuf> {
        let store = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/store/redis");
        let files = fs::read_dir(store).expect("our own sources").map(|entry| entry.expect("ours").path());
        files.filter(|file| file.extension().is_some_and(|found| found == extension)).collect()
    }

    /// Returns the quoted words that follow `calls` anywhere in these files.
    fn called(files: &[PathBuf], calls: &[&str]) -> BTreeSet<String> {
        let mut names = BTreeSet::new();
        for file in files {
            let text = fs::read_to_string(file).expect("our own source");
            for call in calls {
                let found = text.split(call).skip(1).filter_map(|rest| rest.split(['\'', '"']).next());
                names.extend(found.map(str::to_lowercase));
            }
        }
        names
    }

    // The list has exactly the commands that the scripts call and the code sends.
    #[test]
    fn the_list_is_what_the_sources_call() {
        let scripts = sources("lua");
        assert!(scripts.len() >= 5, "{scripts:?}");
        let mut used = called(&scripts, &["redis.call('", "redis.pcall('", "redis.call(\"", "redis.pcall(\""]);
        let code: Vec<PathBuf> = sources("rs").into_iter().filter(|file| !file.ends_with("redis/rights.rs")).collect();
        used.extend(called(&code, &["redis::cmd(\""]));
        // AUTH is allowed to everybody; the others are needed only where the URL has a database or a grace.
        for at_times in ["auth", "select", "info"] {
            assert!(used.remove(at_times), "{at_times}");
        }
        let listed: BTreeSet<String> = COMMANDS.iter().map(|(name, _)| (*name).to_owned()).collect();
        assert_eq!(listed, used);
    }

    // The documentation tells people to grant exactly this list.
    #[test]
    fn the_manual_grants_the_list() {
        let page = include_str!("../../../docs/redis.md");
        let rule = page.split_once("\nACL SETUSER ").expect("tells how").1.split_once("```").expect("ends").0;
        let granted: BTreeSet<String> =
            rule.split_whitespace().filter_map(|word| word.strip_prefix('+')).map(str::to_owned).collect();
        let mut listed: BTreeSet<String> = COMMANDS.iter().map(|(name, _)| (*name).to_owned()).collect();
        listed.insert("select".into());
        assert_eq!(granted, listed);
    }

    #[test]
    fn rejections_are_told_apart() {
        let mut missing = Missing::default();
        missing.note("get", "WRONGTYPE Operation against a key holding the wrong kind of value");
        missing.note("set", "READONLY You can't write against a read only replica.");
        assert!(!missing.prevents_locks());
        missing.note("scan", "NOPERM this user has no permissions to run the 'scan' command");
        assert!(!missing.prevents_locks());
        missing.note("zadd", "NOPERM this user has no permissions to run the 'zadd' command");
        missing.note("zrem", "NOPERM User access has no permissions to run the 'zrem' command");
        missing.note("eval", "ERR unknown command 'eval', with args beginning with: ");
        assert_eq!(
            (missing.commands.join(" "), missing.unknown.join(" "), missing.keys),
            ("scan zadd zrem".into(), "eval".into(), false)
        );
        assert!(missing.prevents_locks());
        for words in [
            "NOPERM this user has no permissions to access one of the keys used as arguments",
            "NOPERM No permissions to access a key",
        ] {
            missing.keys = false;
            missing.note("get", words);
            assert!(missing.keys, "{words}");
        }
    }

    #[test]
    fn a_pattern_matches_the_prefix_alone() {
        assert_eq!(pattern("lockrun"), "lockrun:*");
        assert_eq!(pattern("a*b[c]"), r"a\*b\[c\]:*");
    }
}
