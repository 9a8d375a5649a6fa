//! The scripts as a history plays them.

use redis::{Arg, Cmd};

use super::server::Server;
use crate::store::redis::KEYS;
use crate::store::redis::script::{ACQUIRE, FORGET, LIST, PRUNE, RELEASE, RENEW, RESERVE, REVOKE, Script};

/// The database of a history.
const DATABASE: u32 = 0;

/// The scripts on a server, by their hashes.
pub(super) struct Scripts {
    pub(super) acquire: String,
    pub(super) renew: String,
    pub(super) release: String,
    pub(super) reserve: String,
    pub(super) revoke: String,
    pub(super) list: String,
    pub(super) prune: String,
    pub(super) forget: String,
}

impl Scripts {
    /// Loads them all.
    pub(super) fn load(server: &mut Server) -> Self {
        let mut of_lockrun = |script: &Script| server.load(&with_time_of_history(&text(script)));
        Scripts {
            acquire: of_lockrun(&ACQUIRE),
            renew: of_lockrun(&RENEW),
            release: of_lockrun(&RELEASE),
            reserve: of_lockrun(&RESERVE),
            revoke: of_lockrun(&REVOKE),
            list: of_lockrun(&LIST),
            prune: of_lockrun(&PRUNE),
            forget: of_lockrun(&FORGET),
        }
    }
}

/// Returns the command that runs a script at `now`.
pub(super) fn run(script: &str, args: &[String], now: u64) -> Cmd {
    let mut command = redis::cmd("EVALSHA");
    command.arg(script).arg(KEYS.len()).arg(&KEYS[..]).arg(DATABASE).arg(args).arg(now).take()
}

/// Returns the text that is sent to a server.
fn text(script: &Script) -> String {
    let command = script.command(false, false);
    let Some(Arg::Simple(text)) = command.args_iter().nth(1) else { panic!("EVAL has a text") };
    String::from_utf8(text.to_vec()).expect("is text")
}

fn with_time_of_history(text: &str) -> String {
    let of_server = "local time=C('TIME')\nlocal now=time[1]*1000+math.floor(time[2]/1000)\n";
    assert!(text.contains(of_server), "the prelude reads the time in other words");
    let text = text.replace(of_server, "local now = NOW\n");
    [include_str!("before.lua"), &text, include_str!("after.lua")].join("\n")
}
