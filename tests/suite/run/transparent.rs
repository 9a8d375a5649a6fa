//! What the command gets: everything as it was.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use nix::sys::resource::{Resource, getrlimit};
use tempfile::TempDir;

use crate::support::birth::Birth;
use crate::support::processes::MARK;
use crate::support::store::on_files_and_redis;
use crate::support::{Lockrun, Store};

fn call(store: &Store) -> Lockrun {
    Lockrun::new(store).key("transparent")
}

/// Asserts that the command prints the same under the lock as without it.
#[track_caller]
fn is_the_same(call: &Lockrun) {
    let (alone, under) = (call.alone().exited(0), call.run().exited(0).silent());
    assert_eq!(under.stdout(), alone.stdout(), "{under}");
}

// "COMMAND is executed as argv, never joined into a string."
on_files_and_redis!(arguments_arrive_as_they_are, |store| {
    let words: [&[u8]; 12] =
        [b"", b" ", b"a b", b"'\"$HOME`", b"*", b"\n", b"\xff\xfe", b"--", b"-", b"--key", b"\\", b""];
    let mut command = vec![OsStr::new("printf"), OsStr::new("%s\\0")];
    command.extend(words.map(OsStr::from_bytes));
    let output = call(store).command(command).run().exited(0).silent();
    let mut wanted = words.join(&0);
    wanted.push(0);
    assert_eq!(output.stdout, wanted);
});

// "Parsing of options stops at `--` and at the first word that is not an option, so COMMAND's own options are never
// eaten."
on_files_and_redis!(the_commands_options_are_its_own, |store| {
    let run = |words: &[&str]| call(store).args(words).run();
    let own = ["--key", "x", "--help", "-n", "-E", "5", "--wait", "-w", "-c", "--", "--skip", "--frob"];
    let text = format!("{}\n", own.join(" "));
    run(&[&["echo"][..], &own].concat()).exited(0).printed(&text).silent();
    run(&[&["--", "echo"][..], &own].concat()).exited(0).printed(&text).silent();
    run(&["echo", "--", "a"]).exited(0).printed("-- a\n").silent();
    run(&["--skip", "echo", "-v", "--version"]).exited(0).printed("-v --version\n").silent();
    // After `--`, even a command whose name looks like an option.
    run(&["--", "--skip"]).exited(127);
    run(&["--", "generate", "man"]).exited(127);
    run(&["generate", "man"]).exited(127);
});

// "Arguments": the command's own name too.
on_files_and_redis!(the_commands_name_is_as_typed, |store| {
    is_the_same(&call(store).command(["cat", "/proc/self/cmdline"]));
});

// "Standard streams reach COMMAND as they were."
on_files_and_redis!(streams_pass_through, |store| {
    let bytes: Vec<u8> = (0..1_000_000_u32).map(|n| n.to_le_bytes()[0] ^ n.to_le_bytes()[1]).collect();
    let output = call(store).command(["cat"]).stdin(bytes.clone()).run().exited(0).silent();
    assert!(output.stdout == bytes, "standard input comes out as it went in");
    let output = call(store).sh("echo out; echo err >&2; exit 4").run().exited(4).printed("out\n");
    assert_eq!(output.stderr(), "err\n");
});

// "Standard streams": a closed stream stays closed, and its descriptor is not used for something else.
on_files_and_redis!(closed_streams_stay_closed, |store| {
    let script = "for n in 0 1 2; do [ -e /proc/$$/fd/$n ] && open=\"$open $n\"; done; echo \"open:$open\" >&7";
    let directory = TempDir::new().expect("a temporary directory");
    for closed in [vec![0], vec![1], vec![2], vec![0, 1, 2]] {
        let seen = |name: &str, words: Vec<std::ffi::OsString>| {
            let file = directory.path().join(name);
            let redirect = format!("exec 7>{}; exec \"$@\"", file.display());
            let closing: Vec<String> = closed.iter().map(|n| format!("exec {n}>&-; ")).collect();
            let call = Lockrun::bare().command(
                ["sh", "-c", &format!("{}{redirect}", closing.concat()), "sh"]
                    .iter()
                    .map(|word| OsStr::new(word).to_owned())
                    .chain(words),
            );
            call.alone().exited(0);
            fs::read_to_string(file).expect("the command has written")
        };
        let under = call(store).sh(script);
        let alone = ["sh", "-c", script].map(|word| OsStr::new(word).to_owned());
        assert_eq!(seen("under", under.words()), seen("alone", alone.into()), "{closed:?}");
    }
});

// "Working directory."
on_files_and_redis!(the_working_directory_stays, |store| {
    let directory = TempDir::new().expect("a temporary directory");
    is_the_same(&call(store).directory(directory.path()).sh("pwd; readlink /proc/self/cwd"));
    let gone = directory.path().join("gone");
    fs::create_dir(&gone).expect("a directory");
    let script = format!("rmdir {}; exec \"$@\"", gone.display());
    let mut words = vec!["sh".into(), "-c".into(), script.into(), "sh".into()];
    words.extend(call(store).command(["echo", "ran"]).words());
    let output = Lockrun::bare().directory(&gone).command(words).alone();
    output.exited(0).printed("ran\n").silent();
});

// "Umask" and "resource limits" of the command equal those of the same command run alone.
on_files_and_redis!(umask_and_limits_stay, |store| {
    for umask in [0o022, 0o077, 0, 0o027] {
        is_the_same(&call(store).sh("umask").birth(Birth { umask: Some(umask), ..Birth::default() }));
    }
    let (_, files) = getrlimit(Resource::RLIMIT_NOFILE).expect("a limit");
    let limits = vec![
        (Resource::RLIMIT_NOFILE, 100, files.min(1000)),
        (Resource::RLIMIT_CORE, 0, 0),
        (Resource::RLIMIT_STACK, 4 << 20, 16 << 20),
        (Resource::RLIMIT_CPU, 100, 200),
    ];
    let script = call(store).sh("ulimit -Sa; ulimit -Ha; cat /proc/self/limits; nice");
    is_the_same(&script);
    is_the_same(&script.birth(Birth { limits, ..Birth::default() }));
});

// "Environment (section 2 aside)": three variables come, none goes.
on_files_and_redis!(the_environment_gains_three_variables, |store| {
    let odd = OsStr::from_bytes(b"not\xfftext");
    let call = call(store)
        .command(["env", "-0"])
        .env("EMPTY", "")
        .env("ODD", odd)
        .env("LOCKRUN_TTL", "20s")
        .env("LINES_", "a\nb");
    let variables = |bytes: &[u8]| -> Vec<String> {
        let mut all: Vec<String> = bytes
            .split(|byte| *byte == 0)
            .map(|one| one.escape_ascii().to_string())
            .filter(|one| !one.starts_with(MARK))
            .collect();
        all.sort();
        all
    };
    let (alone, under) = (call.alone().exited(0), call.run().exited(0).silent());
    let alone = variables(&alone.stdout);
    let mut under = variables(&under.stdout);
    for name in ["LOCKRUN_FENCE=", "LOCKRUN_KEY=transparent", "LOCKRUN_TOKEN="] {
        let at = under.iter().position(|one| one.starts_with(name));
        under.remove(at.unwrap_or_else(|| panic!("no {name}")));
    }
    assert_eq!(under, alone);
});

// "On stderr, nothing when all is well": and standard output belongs to COMMAND.
on_files_and_redis!(nothing_is_said_when_all_is_well, |store| {
    for options in [&[][..], &["--fail"], &["--skip"], &["--wait"], &["-w", "5"], &["-q"], &["--ttl", "5s"]] {
        call(store).args(options).command(["true"]).run().exited(0).printed("").silent();
        call(store).args(options).command(["false"]).run().exited(1).printed("").silent();
    }
});

/// Prints which descriptors are open, and on what, as seen from outside the process.
const DESCRIPTORS: &str = "find /proc/$$/fd -type l -printf '%f %l\\n'; :";

/// Runs a command with descriptors 7 and 9 open on a directory.
fn with_descriptors(directory: &Path, words: Vec<std::ffi::OsString>) -> Vec<String> {
    let script = format!("exec 7<{0} 9>{0}/nine; exec \"$@\"", directory.display());
    let shell = ["sh", "-c", &script, "sh"].map(|word| OsStr::new(word).to_owned());
    let output = Lockrun::bare().command(shell.into_iter().chain(words)).alone().exited(0).silent();
    let text = output.stdout();
    // The files behind the standard streams differ from run to run.
    let named = text.lines().filter(|line| !line.starts_with("1 ") && !line.starts_with("2 "));
    let mut named: Vec<String> = named.map(str::to_owned).collect();
    named.sort();
    named
}

// "Descriptors of the command equal those of the same command run alone"; on the file store it has one more, so that
// "the kernel's lock passes to the command".
on_files_and_redis!(descriptors_are_the_same, |store| {
    let directory = TempDir::new().expect("a temporary directory");
    let alone = ["sh", "-c", DESCRIPTORS].map(|word| OsStr::new(word).to_owned());
    let alone = with_descriptors(directory.path(), alone.into());
    assert_eq!(alone.len(), 3, "{alone:?}");
    let mut under = with_descriptors(directory.path(), call(store).sh(DESCRIPTORS).words());
    if let Store::File(_) = store {
        let locks = fs::canonicalize(store.locks()).expect("the store");
        let prefix = format!("{}/", locks.display());
        let is_lock = |line: &String| line.split_once(' ').expect("two words").1.starts_with(&prefix);
        let at = under.iter().position(is_lock);
        under.remove(at.unwrap_or_else(|| panic!("no lock file in {under:?}")));
    }
    assert_eq!(under, alone);
});

// "Lockrun's own files are nobody else's": files that it creates are for its user alone. (The sticky bit is for
// systemd-tmpfiles.)
#[test]
fn lock_files_are_private() {
    let store = Store::file();
    let birth = Birth { umask: Some(0), ..Birth::default() };
    call(&store).command(["true"]).birth(birth).run().exited(0);
    let mode = |path: &Path| fs::metadata(path).expect("ours").permissions().mode() & 0o7777;
    assert_eq!(mode(&store.locks()), 0o700);
    for entry in fs::read_dir(store.locks()).expect("the store") {
        assert_eq!(mode(&entry.expect("ours").path()), 0o1600);
    }
}
