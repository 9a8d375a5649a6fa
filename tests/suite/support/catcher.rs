//! A command that reports the signals that it catches.
//!
//! Not a shell's trap: a shell can lose a signal that comes during the trap, and `read -t` of bash 5.2 leaves an
//! undefined signal mask behind if its time is over before it begins to read.

use std::fs;
use std::path::PathBuf;

use tempfile::TempDir;

use super::processes::find_program;

/// Reports each signal named in its arguments, and each line of its input, until the line is `last`. With `stop`, also
/// stops itself some time after each signal.
const SCRIPT: &str = "
import os, select, signal, sys, time
pid_file, then, *names = sys.argv[1:]
def report(number, frame):
    os.write(1, b'caught %s\\n' % signal.Signals(number).name.encode())
    if then == 'stop':
        time.sleep(0.1)
        os.kill(os.getpid(), signal.SIGSTOP)
for name in names:
    signal.signal(signal.Signals[name], report)
with open(pid_file, 'w') as file:
    print(os.getpid(), file=file)
os.write(1, b'ready\\n')
word = ''
while word != 'last':
    # A signal that comes just before is reported when the time is over.
    if select.select([0], [], [], 0.05)[0]:
        word = sys.stdin.readline().strip()
        os.write(1, b'got %s\\n' % word.encode())
sys.exit(3)
";

/// The files of one such command.
pub(crate) struct Catcher(TempDir);

impl Catcher {
    pub(crate) fn new() -> Self {
        let directory = TempDir::new().expect("a temporary directory");
        fs::write(directory.path().join("script"), SCRIPT).expect("our own directory");
        Self(directory)
    }

    /// Returns the command in a form that a shell takes: it prints `ready`, `caught NAME` and `got WORD`, and ends with
    /// status 3 after the word `last`.
    pub(crate) fn of(&self, signals: &[&str]) -> String {
        self.command("go on", signals)
    }

    /// The same, but it also stops itself by SIGSTOP some time after each signal, as sudo and top do.
    pub(crate) fn that_stops_itself(&self, signals: &[&str]) -> String {
        self.command("stop", signals)
    }

    /// Returns the file into which the command writes its process id.
    pub(crate) fn pid_file(&self) -> PathBuf {
        self.0.path().join("pid")
    }

    fn command(&self, then: &str, signals: &[&str]) -> String {
        let (python, script) = (find_program("python3"), self.0.path().join("script"));
        let (python, script, pid_file) = (python.display(), script.display(), self.pid_file());
        format!("{python} {script} {} '{then}' {}", pid_file.display(), signals.join(" "))
    }
}
