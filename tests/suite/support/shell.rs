//! An interactive shell on a terminal, and runs that are started there.

use std::path::Path;
use std::process::Command;

use tempfile::TempDir;

use super::deadline::{LONG, eventually, eventually_some};
use super::lockrun::{Lockrun, PROGRAM, Running};
use super::processes::find_program;
use super::pty::Terminal;
use super::store::Store;
use super::witness;

pub(crate) const PROMPT: &str = "prompt$ ";

/// Starts an interactive shell on a terminal, with an alias for `lockrun`.
pub(crate) fn shell(store: &Store) -> Terminal {
    let mut command = Command::new(find_program("bash"));
    command.args(["--norc", "--noprofile", "--noediting", "-i"]);
    let url = store.url();
    let env = [("PS1", PROMPT), ("LOCKRUN_STORE", url.as_str()), ("HISTFILE", "/dev/null")];
    let mut terminal = Terminal::start(command, &env);
    terminal.wait_for(PROMPT);
    let program = PROGRAM;
    enter(&mut terminal, &format!("stty -echo; alias lockrun={program}"));
    terminal.wait_for(PROMPT);
    terminal
}

pub(crate) fn enter(terminal: &mut Terminal, line: &str) {
    terminal.type_keys(&format!("{line}\r"));
}

/// Waits for the process id that the command writes into this file, and returns it.
#[track_caller]
pub(crate) fn written(file: &Path) -> i32 {
    eventually_some(LONG, "the command has written its id", || {
        let text = std::fs::read_to_string(file).unwrap_or_default();
        text.strip_suffix('\n').and_then(|text| text.parse().ok())
    })
}

/// A run in the foreground of a terminal whose command is hard to end, and another run that waits for the same lock.
pub(crate) struct OldAndNext {
    pub(crate) terminal: Terminal,
    pub(crate) next: Running,
    directory: TempDir,
}

impl OldAndNext {
    /// Starts both. The old command has these `children` (see [`witness::command`]). Returns when the next run waits.
    #[track_caller]
    pub(crate) fn new(store: &Store, children: &[&str]) -> Self {
        let directory = TempDir::new().expect("a temporary directory");
        let record = directory.path().join("record");
        let mut terminal = shell(store);
        let words = witness::command(&record, "old", children);
        enter(&mut terminal, &format!("lockrun -k tty --ttl 5s --kill-after 500ms {}", words.join(" ")));
        terminal.wait_for("ready");
        eventually(LONG, "all of it stamps", || witness::lives(&record)[0].processes == 1 + children.len());
        let call = Lockrun::new(store).key("tty").args(["--wait", "-v", "--ttl", "10m"]);
        let mut next = call.command(witness::command(&record, "next", &[])).spawn();
        next.wait_for_stderr("waiting");
        Self { terminal, next, directory }
    }

    /// Asserts that the old command had so many processes, and that all were dead when the next command began.
    #[track_caller]
    pub(crate) fn the_old_one_was_dead(&mut self, processes: usize) {
        let record = self.directory.path().join("record");
        eventually(LONG, "the next one stamps", || witness::lives(&record).len() == 2);
        // Time for the old command to stamp, too, if it still lives: until the next one has stamped for another 100 ms.
        let last_stamp = || witness::lives(&record)[1].last;
        let until = last_stamp() + 100_000_000;
        eventually(LONG, "the next one stamps on", || last_stamp() >= until);
        self.next.kill_everything();
        let lives = witness::lives(&record);
        assert_eq!(lives[0].processes, processes);
        assert!(witness::smallest_margin(&lives) > Some(0), "{lives:?}");
    }
}
