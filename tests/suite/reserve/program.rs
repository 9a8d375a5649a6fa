//! Sequences whose next value a program prints.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use nix::sys::signal::Signal;
use tempfile::TempDir;

use crate::support::birth::Birth;
use crate::support::holder::write_script;
use crate::support::processes::find_program;
use crate::support::pty::Terminal;
use crate::support::sequence::{Reserver, at, next, reserve, reserved, status};
use crate::support::store::{on_every_lease_store, on_every_store};
use crate::support::{LONG, Lockrun, eventually};

/// A program for `--next`, and a file for its notes.
struct Program {
    path: String,
    notes: PathBuf,
    _directory: TempDir,
}

impl Program {
    /// A shell script; `$notes` is the file.
    fn new(script: &str) -> Self {
        let directory = TempDir::new().expect("a temporary directory");
        let notes = directory.path().join("notes");
        let text = format!("#!/bin/sh\nnotes={}\n{script}\n", notes.display());
        let path = write_script(directory.path(), "next", &text);
        Self { path, notes, _directory: directory }
    }

    /// Prints the letter after its argument, and records its arguments.
    fn letters() -> Self {
        Self::new("printf '%s:%s\\n' $# \"$1\" >>$notes; printf %s \"$1\" | tr A-Y B-Z; echo")
    }

    fn of(&self, call: Lockrun) -> Lockrun {
        call.args(["--next", &self.path])
    }

    fn notes(&self) -> String {
        fs::read_to_string(&self.notes).unwrap_or_default()
    }
}

// "Long work shows where it is on a terminal: `reserve --next` over many candidates"; it leaves nothing behind, and
// appears only on a terminal.
on_every_store!(a_long_search_shows_how_far_it_is, |store| {
    let slow = Program::new("sleep 0.4; printf %s \"$1\" | tr A-Y B-Z; echo");
    let letters = Program::letters();
    let others: Vec<Reserver> = (0..4).map(|_| Reserver::begin(&letters.of(reserve(store, "A")))).collect();
    let call = slow.of(reserve(store, "A")).command(["printenv", "LOCKRUN_VALUE"]);
    let on_a_terminal = |call: &Lockrun, status| {
        let words = call.words();
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]);
        let mut terminal = Terminal::start(command, &[]);
        assert_eq!(terminal.wait().code(), Some(status));
        terminal.watch(LONG)
    };
    let quiet = call.clone().args(["-q", "--on-failure", "free"]).sh("echo $LOCKRUN_VALUE; exit 3");
    assert_eq!(on_a_terminal(&quiet, 3), "E\r\n");
    let seen = on_a_terminal(&call, 0);
    assert!(
        seen.contains("\rlockrun: looking for a free value, tried: ") && seen.ends_with("\r\x1b[KE\r\n"),
        "{seen:?}"
    );
    call.run().exited(0).printed("F\n").silent();
    drop(others);
});

// The same on a terminal that Ctrl-S has stopped: that holds up neither the value nor the command.
on_every_store!(a_long_search_does_not_wait_for_its_terminal, |store| {
    let slow = Program::new("sleep 0.4; printf %s \"$1\" | tr A-Y B-Z; echo");
    let letters = Program::letters();
    let others: Vec<Reserver> = (0..4).map(|_| Reserver::begin(&letters.of(reserve(store, "A")))).collect();
    let call = slow
        .of(reserve(store, "A"))
        .args(["--ttl", "60s"])
        .sh(&format!("echo $LOCKRUN_VALUE >{}", slow.notes.display()));
    let words = call.words();
    let mut command = Command::new("sh");
    command.args(["-c", "read line; exec \"$@\"", "sh"]).args(&words);
    let mut terminal = Terminal::start(command, &[]);
    terminal.type_keys("\x13go\n");
    eventually(LONG, "the command has run", || slow.notes() == "E\n");
    assert!(terminal.wait().success());
    drop(others);
});

// "The first value is VALUE; then what PROGRAM prints when called with the previous value as its only argument."
on_every_store!(the_program_is_called_with_the_previous_value, |store| {
    let letters = Program::letters();
    let call = letters.of(reserve(store, "A"));
    assert_eq!(next(&call), "A");
    assert_eq!(letters.notes(), "", "there was nothing to follow");
    assert_eq!(next(&call), "B");
    assert_eq!(next(&call), "C");
    assert_eq!(letters.notes(), "1:A\n1:B\n");
});

// "Trimmed line": blanks around it and at its end are no part of the value, those in it are. Any text will do.
on_every_store!(the_line_is_trimmed, |store| {
    let program = Program::new("printf '\\n  \\t a  \"b\" \\\\ $x \\303\\251 \\t \\r\\n\\n'");
    let call = program.of(reserve(store, "-- $(x) '"));
    assert_eq!(next(&call), "-- $(x) '");
    assert_eq!(next(&call), "a  \"b\" \\ $x \u{e9}");
    assert_eq!(status(store)["last_value"], "a  \"b\" \\ $x \u{e9}");
    let longest = "x".repeat(512);
    assert_eq!(next(&Program::new("printf %0512d | tr 0 x").of(reserve(store, "1"))), longest);
});

// "An empty line, more than one line, or a non-zero status is an error: exit 125, nothing reserved." So is text that
// cannot be a value.
on_every_store!(what_is_no_value_is_an_error, |store| {
    assert_eq!(next(&reserve(store, "7")), "7");
    for (script, why) in [
        (":", "empty"),
        ("echo", "empty"),
        ("echo '   '", "empty"),
        ("echo a; echo b", "one line"),
        ("echo a; exit 3", "exit status: 3"),
        ("echo a; kill -KILL $$", "signal: 9"),
        ("printf 'a\\033[31m\\n'", "control"),
        ("printf 'a\\tb\\n'", "control"),
        ("printf 'a\\0b\\n'", "control"),
        ("printf '\\377\\n'", "UTF-8"),
        ("printf %0513d | tr 0 x", "513"),
        ("exec yes", "512"),
    ] {
        let program = Program::new(script);
        let output = program.of(reserve(store, "7")).command(["echo", "ran"]).run().exited(125).printed("");
        let output = output.said("cannot reserve a value of the sequence \"seq\"").said(why).said("called with \"7\"");
        assert!(output.stderr().lines().count() == 1 && !output.stderr().contains('\x1b'), "{output}");
    }
    for program in ["/no/such/program", "no-such-program", "/etc", "/dev/null"] {
        let output = reserve(store, "7").args(["--next", program]).command(["echo", "ran"]).run();
        output.exited(125).printed("").said(&format!("cannot run {program}"));
    }
    assert_eq!(reserved(store), Vec::<String>::new());
    assert_eq!(next(&reserve(store, "7")), "8");
});

// "A value that another run has reserved is passed over": PROGRAM is called once for each candidate.
on_every_store!(a_reserved_candidate_is_passed_over, |store| {
    let letters = Program::letters();
    let call = letters.of(reserve(store, "A"));
    let held = [Reserver::begin(&call), Reserver::begin(&call), Reserver::begin(&call)];
    assert_eq!(held.each_ref().map(|run| run.value.as_str()), ["A", "B", "C"]);
    assert_eq!(letters.notes(), "1:A\n1:A\n1:B\n");
    let [a, b, c] = held;
    b.end(0);
    fs::remove_file(&letters.notes).expect("it is there");
    // C is reserved, and PROGRAM is not called for A again.
    let d = Reserver::begin(&call);
    assert_eq!(d.value, "D");
    assert_eq!(letters.notes(), "1:B\n1:C\n");
    d.end(0);
    c.end(0);
    a.end(0);
    assert_eq!(next(&call), "E");
});

// "With `--next`, one round trip for each candidate", and one to learn the last value.
on_every_lease_store!(a_round_trip_for_each_candidate, |store| {
    let server = store.server();
    let letters = Program::letters();
    let call = letters.of(at(&store.url(), "A"));
    assert_eq!(next(&call), "A");
    let _passed_over = [Reserver::begin(&call), Reserver::begin(&call)];
    let scripts = server.requests();
    let run = Reserver::begin(&call);
    assert_eq!(run.value, "D");
    assert_eq!(server.requests() - scripts, server.requests_of(3, 1));
    run.end(0);
    assert_eq!(server.requests() - scripts, server.requests_of(3, 2));
});

// "A wait that is cut short" leaves nothing: a PROGRAM that hangs is ended with lockrun, and so is what it has started;
// also if it has closed its output.
on_every_store!(a_program_that_hangs_ends_with_lockrun, |store| {
    assert_eq!(next(&reserve(store, "1")), "1");
    for script in ["echo x; sleep 600", "sleep 600 & echo y; exec sleep 600", "echo 5; exec >&-; sleep 600"] {
        for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP] {
            let program = Program::new(&format!("echo called >>$notes; {script}"));
            let mut run = program.of(reserve(store, "1")).command(["echo", "ran"]).spawn();
            eventually(LONG, "the program has been called", || program.notes() == "called\n");
            run.signal(signal);
            eventually(LONG, "lockrun has ended", || run.has_ended());
            eventually(LONG, "nothing is left", || run.processes().is_empty());
            run.wait().died_of(signal).printed("").silent();
        }
    }
    assert_eq!(reserved(store), Vec::<String>::new());
    assert_eq!(next(&reserve(store, "1")), "2");
});

// "Nothing outlives lockrun": not even PROGRAM, if lockrun is killed.
on_every_store!(a_program_dies_with_lockrun, |store| {
    assert_eq!(next(&reserve(store, "1")), "1");
    let program = Program::new("echo called >>$notes; exec sleep 600");
    let mut run = program.of(reserve(store, "1")).command(["echo", "ran"]).spawn();
    eventually(LONG, "the program has been called", || program.notes() == "called\n");
    run.signal(Signal::SIGKILL);
    eventually(LONG, "lockrun is dead", || run.has_ended());
    eventually(LONG, "nothing is left", || run.processes().is_empty());
    run.wait().died_of(Signal::SIGKILL).printed("");
    assert_eq!(next(&reserve(store, "1")), "2");
});

// "Standard streams reach COMMAND as they were": PROGRAM reads none of COMMAND's input.
on_every_store!(the_input_is_the_commands, |store| {
    let program = Program::new("cat >$notes; echo B");
    let call = program.of(reserve(store, "A"));
    assert_eq!(next(&call), "A");
    call.stdin("for the command\n").command(["cat"]).run().exited(0).printed("for the command\n").silent();
    assert_eq!(program.notes(), "");
});

// PROGRAM begins as COMMAND would: with no signal blocked, the same ones ignored, and no descriptor of lockrun's.
on_every_store!(the_program_begins_as_usual, |store| {
    let python = find_program("python3");
    // The C library keeps the signals 32 and 33 for itself.
    let script = "import os\n\
                  for line in open('/proc/self/status'):\n \
                  if line[:6] in ('SigBlk', 'SigIgn'): print('%x' % (int(line[8:], 16) & ~(3 << 31)), end=' ')\n\
                  print(sorted(os.listdir('/proc/self/fd')))\n";
    let directory = TempDir::new().expect("a temporary directory");
    let program = write_script(directory.path(), "next", &format!("#!{}\n{script}", python.display()));
    let birth = || Birth { ignored: vec![Signal::SIGHUP as i32], ..Birth::default() };
    let alone = Lockrun::bare().birth(birth()).command([&program, "1"]).alone().exited(0).stdout();
    assert_eq!(next(&reserve(store, "1")), "1");
    let call = reserve(store, "1").args(["--next", &program]).birth(birth());
    assert_eq!(next(&call), alone.trim());
});
