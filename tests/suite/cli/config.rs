//! Configuration files: which counts, and what is said of one that is wrong.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use nix::sys::stat::Mode;
use nix::unistd::{Uid, chown};
use tempfile::TempDir;

use crate::support::fake::{Fake, Manner};
use crate::support::lockrun::program_for_all;
use crate::support::namespace::with_mounts;
use crate::support::processes::need_root;
use crate::support::{Holder, Lockrun, Store};

/// A place for configuration that is the test's own.
struct Place(TempDir);

impl Place {
    fn new() -> Self {
        Self(TempDir::new().expect("a temporary directory"))
    }

    /// With this text in the user's file.
    fn with(text: &str) -> Self {
        let place = Self::new();
        place.write(text, 0o600);
        place
    }

    fn file(&self) -> PathBuf {
        self.0.path().join("lockrun/config.toml")
    }

    fn write(&self, text: &str, mode: u32) {
        let file = self.file();
        fs::create_dir_all(file.parent().expect("a directory")).expect("it is made");
        fs::write(&file, text).expect("it is written");
        fs::set_permissions(&file, fs::Permissions::from_mode(mode)).expect("our own file");
    }

    /// The file and a line of it, as messages name them.
    fn line(&self, line: usize) -> String {
        format!("{}:{line}: ", self.file().display())
    }

    /// The call with this place as the user's.
    fn of(&self, call: Lockrun) -> Lockrun {
        call.env("XDG_CONFIG_HOME", self.0.path())
    }

    fn bare(&self) -> Lockrun {
        self.of(Lockrun::bare())
    }
}

/// Calls that see another /etc, with a `lockrun.toml` in it.
struct System {
    entering: String,
    etc: TempDir,
}

impl System {
    #[track_caller]
    fn with(text: &str) -> Self {
        need_root("have an /etc of its own: to a user namespace, the way there belongs to another user");
        let etc = TempDir::new().expect("a temporary directory");
        fs::write(etc.path().join("lockrun.toml"), text).expect("a file");
        fs::copy("/etc/passwd", etc.path().join("passwd")).expect("there are users");
        Self { entering: with_mounts(&format!("mount --bind '{}' /etc", etc.path().display())), etc }
    }

    /// What comes of `call` with these words added.
    fn run(&self, call: &Lockrun, words: &[&str]) -> crate::support::Output {
        call.clone().args(words).in_shell(&self.entering).alone()
    }
}

// "The command line wins over the environment, it over the user's file, it over the system's."
#[test]
fn the_strongest_place_wins() {
    let store = Store::file();
    let user = Place::with("command = 'echo user'");
    let url = store.url();
    let words = ["--key", "k", "--store", &url];
    let call = user.of(Lockrun::bare());
    call.clone().args(words).run().exited(0).printed("user\n").silent();
    let call = call.env("LOCKRUN_COMMAND", "echo environment");
    call.clone().args(words).run().exited(0).printed("environment\n").silent();
    call.args(words).args(["-c", "echo typed"]).run().exited(0).printed("typed\n").silent();

    let system = System::with("command = 'echo system'\nttl = '77s'");
    let nobody = Lockrun::bare();
    system.run(&nobody, &words).exited(0).printed("system\n").silent();
    system.run(&user.bare(), &words).exited(0).printed("user\n").silent();
    let environment = user.bare().env("LOCKRUN_COMMAND", "echo environment");
    system.run(&environment, &words).exited(0).printed("environment\n").silent();
    // What the stronger places do not say, the weaker one does.
    let bad = ["--key", "k", "--store", &url, "--renew-every", "80s"];
    system.run(&user.bare(), &bad).exited(64).said("1m 17s");
}

// The same of options that exclude each other: the strongest place that says anything decides, and can take back.
#[test]
fn what_excludes_each_other_is_decided_by_the_strongest_place() {
    let store = Store::file();
    let _holder = Holder::new(&store, "held");
    let user = Place::with("skip = true");
    let attempt = |call: Lockrun| call.args(["--store", &store.url()]).key("held").command(["echo", "ran"]).run();
    attempt(user.bare()).exited(0).silent();
    attempt(user.bare().arg("--fail")).exited(75);
    attempt(user.bare().env("LOCKRUN_WAIT", "0.1")).exited(75);
    attempt(user.bare().env("LOCKRUN_SKIP", "false")).exited(75);
    attempt(user.bare().env("LOCKRUN_FAIL", "true")).exited(75);
    user.write("wait = 0.1\nconflict-exit-code = 9", 0o600);
    attempt(user.bare()).exited(9);
    attempt(user.bare().arg("-E8")).exited(8);
    attempt(user.bare().arg("--skip")).exited(0).silent();
    user.write("skip = true\n\nwait = true", 0o600);
    let output = attempt(user.bare()).exited(64);
    output.said(&format!("{}skip", user.line(1))).said(&format!("{}wait", user.line(3)));

    let system = System::with("wait = true\nquiet = true");
    let url = store.url();
    let words = ["--key", "held", "--store", &url, "--", "echo", "ran"];
    user.write("wait = false", 0o600);
    system.run(&user.bare(), &words).exited(75).silent();
    user.write("verbose = true\nwait = '50ms'", 0o600);
    system.run(&user.bare(), &words).exited(75).said("is held by");
}

// A script that takes a lock by hand must not go on without it because of a setting that it knows nothing of.
#[test]
fn acquire_is_not_told_elsewhere_to_go_on_without_the_lock() {
    let store = Store::file();
    let _holder = Holder::new(&store, "held");
    let user = Place::new();
    let attempt = |call: Lockrun| user.of(call).args(["acquire", "--key", "held", "--store", &store.url()]);
    for text in ["skip = true", "conflict-exit-code = 0"] {
        user.write(text, 0o600);
        attempt(Lockrun::bare()).run().exited(75).printed("");
    }
    let told = || Lockrun::bare().env("LOCKRUN_SKIP", "true").env("LOCKRUN_CONFLICT_EXIT_CODE", "0");
    attempt(told()).run().exited(75).printed("");
    attempt(told()).arg("--skip").run().exited(0).printed("");
    attempt(told()).arg("-E0").run().exited(0).printed("");
    // What does no harm can be told anywhere.
    user.write("wait = '0.1'\nquiet = true", 0o600);
    attempt(told()).run().exited(75).printed("").silent();
}

/// Options of a run that are for locks alone, with a value that it refuses.
const OF_LOCKS: [(&str, &str); 6] = [
    ("slots", "0"),
    ("wait", "later"),
    ("skip", "maybe"),
    ("conflict-exit-code", "256"),
    ("min-hold", "later"),
    ("keep", "maybe"),
];

/// The same of options that are for its command.
const OF_COMMANDS: [(&str, &str); 6] = [
    ("renew-every", "0"),
    ("on-lost", "explode"),
    ("max-runtime", "0"),
    ("kill-after", "later"),
    ("descendants", "adopt"),
    ("events", ""),
];

// An option that a command does not have concerns it nowhere: not in a variable, and not in a file that others read too.
#[test]
fn what_a_command_does_not_have_does_not_end_it() {
    let store = Store::file();
    let words = |words: &[&'static str]| [words, &["--store"]].concat();
    let variable = |name: &str| format!("LOCKRUN_{}", name.to_ascii_uppercase().replace('-', "_"));
    let reserve = words(&["reserve", "--key", "seq", "--from", "1"]);
    for (name, value) in OF_LOCKS {
        let told = || Lockrun::bare().env(&variable(name), value);
        told().key("k").command(["true"]).run().exited(64).said(&variable(name));
        told().args(&reserve).arg(store.url()).command(["true"]).run().exited(0).silent();
    }
    let others: [&[&'static str]; 4] =
        [&["status"], &["break", "--key", "k"], &["prune", "--older-than", "1h"], &["doctor"]];
    for (name, value) in OF_LOCKS.into_iter().chain(OF_COMMANDS).chain([("ttl", "soon"), ("verbose", "maybe")]) {
        for command in others {
            let output = Lockrun::bare().env(&variable(name), value).args(words(command)).arg(store.url()).run();
            assert!(output.status != Some(64) && !output.stderr().contains(name), "{name}: {output}");
        }
    }
    for (name, value) in OF_COMMANDS.into_iter().chain([("min-hold", "later"), ("keep", "maybe")]) {
        let call = Lockrun::bare().env(&variable(name), value).args(words(&["acquire", "--key", "k"])).arg(store.url());
        let output = call.run().exited(0).silent();
        let token = output.stdout();
        let call = Lockrun::bare().env(&variable(name), value).args(words(&["release", "--key", "k"])).arg(store.url());
        call.args(["--token", token.trim()]).run().exited(0).silent();
    }
    // Two that exclude each other in one place are refused only where they are asked for.
    let both = || Lockrun::bare().env("LOCKRUN_SKIP", "true").env("LOCKRUN_WAIT", "5");
    both().key("k").command(["true"]).run().exited(64).said("exclude each other");
    both().args(&reserve).arg(store.url()).command(["true"]).run().exited(0).silent();
    for text in
        ["skip = true\nwait = true", "slots = 0", "wait = 'later'", "conflict-exit-code = 256", "min-hold = 'x'"]
    {
        let user = Place::with(text);
        user.bare().key("k").command(["true"]).run().exited(64);
        user.bare().args(&reserve).arg(store.url()).command(["true"]).run().exited(0).silent();
    }
}

/// One of two options that exclude each other: its name and value, and the status and whether something is said under it alone.
type Way<'a> = (&'a str, &'a str, (i32, bool));

// "The command line wins over the environment, it over the user's file": of all that exclude each other, in each pair of places.
#[test]
fn a_stronger_place_replaces_what_excludes_it_below() {
    let store = Store::file();
    let _holder = Holder::new(&store, "held");
    let (other, file) = (Store::file(), TempDir::new().expect("a temporary directory"));
    let named = file.path().join("url");
    fs::write(&named, other.url()).expect("a file");
    let (url, named) = (store.url(), named.to_str().expect("a plain path").to_owned());
    let pairs: [[Way<'_>; 2]; 5] = [
        [("fail", "", (75, true)), ("skip", "", (0, false))],
        [("fail", "", (75, true)), ("wait", "0.05", (75, true))],
        [("skip", "", (0, false)), ("wait", "0.05", (75, true))],
        [("verbose", "", (75, true)), ("quiet", "", (75, false))],
        [("store", &url, (75, true)), ("store-file", &named, (0, false))],
    ];
    for [one, two] in pairs {
        for (strong, weak) in [(one, two), (two, one)] {
            let value = |way: Way<'_>| if way.1.is_empty() { "true".to_owned() } else { way.1.to_owned() };
            let typed = |call: Lockrun, way: Way<'_>| {
                call.arg(if way.1.is_empty() { format!("--{}", way.0) } else { format!("--{}={}", way.0, way.1) })
            };
            let variable = |way: Way<'_>| format!("LOCKRUN_{}", way.0.to_ascii_uppercase().replace('-', "_"));
            let line = |way: Way<'_>| {
                if way.1.is_empty() { format!("{} = true", way.0) } else { format!("{} = '{}'", way.0, way.1) }
            };
            let user = Place::with(&line(weak));
            let calls = [
                typed(Lockrun::bare().env(&variable(weak), value(weak)), strong),
                typed(user.bare(), strong),
                user.bare().env(&variable(strong), value(strong)),
            ];
            for call in calls {
                let call = if strong.0.starts_with("store") { call } else { call.arg("--store").arg(&url) };
                let output = call.key("held").command(["true"]).run();
                let seen = (output.status.unwrap_or(-1), !output.stderr().is_empty());
                assert_eq!(seen, strong.2, "{} over {}: {output}", strong.0, weak.0);
            }
        }
        // In one place they are refused.
        let (one, two) = (one.0, two.0);
        let set = |name: &str| format!("LOCKRUN_{}", name.to_ascii_uppercase().replace('-', "_"));
        let call = Lockrun::bare().env(&set(one), "true").env(&set(two), "true").key("held").command(["true"]);
        call.run().exited(64).said("exclude each other");
    }
}

// "`store = "redis://..."`, `store-file = "..."`": a store in a stronger place wins over either in a weaker one.
#[test]
fn the_store_is_one_setting_however_it_is_named() {
    let (one, other) = (Store::file(), Store::file());
    let user = Place::with(&format!("store = {:?}", one.url()));
    user.bare().key("k").command(["true"]).run().exited(0).silent();
    assert!(one.locks().exists());
    let named = user.0.path().join("store");
    fs::write(&named, other.url()).expect("a file");
    let call = user.bare().key("k").env("LOCKRUN_STORE_FILE", &named);
    call.clone().command(["true"]).run().exited(0).silent();
    assert!(other.locks().exists());
    user.write(&format!("store-file = {:?}", named.display().to_string()), 0o644);
    user.bare().key("k").command(["true"]).run().exited(0).silent();
}

// "An unknown key is an error (exit 64) that names file and line; so is a wrong type or value; a syntax error likewise",
// before anything is touched, also by lockrun's other commands.
#[test]
fn what_is_wrong_is_named_by_file_and_line() {
    for (text, line, wanted) in [
        ("ttl = 30\nfrobnicate = 1", 2, "frobnicate"),
        ("renew_every = 1", 1, "renew-every is"),
        ("key = 'k'", 1, "key"),
        ("\n[run]\nttl = 30", 2, "run"),
        ("# a comment\n\nttl = true", 3, "ttl: "),
        ("ttl = 'soon'", 1, "ttl: \"soon\""),
        ("ttl = 0.5", 1, "ttl: "),
        ("ttl = -5", 1, "ttl: "),
        ("renew-every = 0", 1, "renew-every: "),
        ("wait = 'later'", 1, "wait: "),
        ("slots = 0", 1, "slots: "),
        ("conflict-exit-code = 256", 1, "conflict-exit-code: "),
        ("on-lost = 'explode'", 1, "on-lost: "),
        ("descendants = 'adopt'", 1, "descendants: "),
        ("skip = 'true'", 1, "skip: "),
        ("events = ''", 1, "events: "),
        ("\n\nttl 30", 3, ""),
        ("ttl = 30\nttl = 31", 2, ""),
        ("ttl = \"30", 1, ""),
        ("\x1b[31m = 1", 1, ""),
        ("\"\\u001b[31m\" = 1", 1, "not an option"),
    ] {
        let user = Place::with(text);
        let server = Fake::start(Manner::Silent);
        let call = user.of(Lockrun::at(&server.url())).key("k").command(["echo", "ran"]);
        let output = call.run().exited(64).printed("").said(&format!("lockrun: {}", user.line(line))).said(wanted);
        assert_eq!(output.stderr().lines().count(), 1, "{output}");
        assert!(!output.stderr().contains('\x1b'), "{output}");
        assert_eq!(server.connections(), 0, "the store was asked");
    }
    let user = Place::with("frobnicate = 1");
    user.bare().args(["status"]).run().exited(64).said(&user.line(1));
    user.bare().arg("--help").run().exited(0).silent();
    user.bare().args(["help", "status"]).run().exited(0).silent();
}

// "`/etc/lockrun.toml:3: ttl: ...`"
#[test]
fn the_systems_file_is_named_too() {
    let system = System::with("# ours\n\nttl = 'soon'\n");
    let words = ["--key", "k", "--", "echo", "ran"];
    let output = system.run(&Lockrun::bare(), &words).exited(64);
    output.printed("").said("lockrun: /etc/lockrun.toml:3: ttl: \"soon\" is not a duration");
}

// "A file that is there but cannot be read is an error too."
#[test]
fn what_cannot_be_read_is_an_error() {
    let user = Place::new();
    let attempt = || user.bare().key("k").args(["--store", "file:/nonexistent/x"]).command(["echo", "ran"]).run();
    fs::create_dir_all(user.file()).expect("a directory in its place");
    attempt().exited(64).said(&user.file().display().to_string());
    fs::remove_dir(user.file()).expect("our own");
    fs::write(user.file(), b"ttl = '\xff'").expect("a file");
    attempt().exited(64).said(&user.file().display().to_string());
    fs::remove_file(user.file()).expect("our own");
    std::os::unix::fs::symlink(user.file(), user.file()).expect("a link to itself");
    attempt().exited(64).said(&user.file().display().to_string());
}

// "Else ~/.config/lockrun/config.toml; HOME unset or relative XDG: ignored as the spec says."
#[test]
fn the_users_file_is_found() {
    let store = Store::file();
    let home = TempDir::new().expect("a temporary directory");
    let directory = home.path().join(".config/lockrun");
    fs::create_dir_all(&directory).expect("a directory");
    fs::write(directory.join("config.toml"), "command = 'echo home'").expect("a file");
    let call = || Lockrun::new(&store).key("k").env("HOME", home.path()).directory(home.path());
    call().run().exited(0).printed("home\n").silent();
    call().env("XDG_CONFIG_HOME", "").run().exited(0).printed("home\n");
    call().env("XDG_CONFIG_HOME", ".config").run().exited(0).printed("home\n");
    // A directory of its own takes the place of ~/.config, also if there is nothing in it.
    call().env("XDG_CONFIG_HOME", "/nonexistent").run().exited(64).said("no command");
    call().env("HOME", "").run().exited(64).said("no command");
    call().env("HOME", ".").run().exited(64).said("no command");
}

// A service that has changed its user but not HOME: the file of somebody else, which it cannot even see, is not its own.
#[test]
fn the_home_of_another_user_is_not_ours() {
    need_root("become another user");
    let home = TempDir::new().expect("a temporary directory, of mode 0700");
    let (_place, program) = program_for_all();
    let other = |home: &str| {
        let words = ["setpriv", "--reuid", "65534", "--clear-groups", &program, "--key", "k", "--ttl", "soon", "true"];
        Lockrun::bare().env("HOME", home).command(words).alone()
    };
    let path = home.path().to_str().expect("a plain path");
    other(path).exited(64).said("soon");
    // Our own directory that shuts us out is another matter: nobody knows what it says.
    nix::unistd::chown(home.path(), Some(Uid::from_raw(65534)), None).expect("it is given away");
    fs::set_permissions(home.path(), fs::Permissions::from_mode(0o000)).expect("it is closed");
    other(path).exited(64).said("cannot read ");
}

// "A file with a password in it that group or others can read draws a warning on stderr", once, and the run goes on.
#[test]
fn a_password_that_others_can_read_is_warned_of() {
    let server = Fake::start(Manner::Silent);
    let text = format!("ttl = 6\nstore = '{}'", server.url().replace("://", "://user:hushhush@"));
    for (mode, warns) in [(0o600, false), (0o640, true), (0o604, true)] {
        let user = Place::new();
        user.write(&text, mode);
        let local = Store::file();
        // Also when another store is used, and nothing but errors is to be said.
        let call = user.of(Lockrun::new(&local)).key("k").arg("--quiet").command(["echo", "ran"]);
        let output = call.run().exited(0).printed("ran\n");
        assert_eq!(output.stderr().lines().count(), usize::from(warns), "{mode:o}: {output}");
        if warns {
            let output = output.said(&format!("warning: {}", user.file().display())).said(":2 contains a password");
            assert!(!output.stderr().contains("hushhush"), "{output}");
        }
    }
    let harmless = Place::new();
    harmless.write(&format!("store = '{}'", Store::file().url()), 0o644);
    harmless.of(Lockrun::new(&Store::file())).key("k").command(["true"]).run().exited(0).silent();
}

/// A file that a run would obey, and a call that reads it: the user's configuration, or one that `--store-file` names.
fn obeyed() -> [(TempDir, PathBuf, Lockrun); 2] {
    let user = Place::with("command = 'echo obeyed'");
    let file = user.file();
    let locks = format!("file:{}", user.0.path().join("locks").display());
    let configured = user.bare().args(["--store", &locks, "--key", "k"]);
    let place = TempDir::new().expect("a temporary directory");
    let named = place.path().join("lockrun/url");
    fs::create_dir(place.path().join("lockrun")).expect("a directory");
    fs::write(&named, format!("file:{}", place.path().join("locks").display())).expect("a file");
    fs::set_permissions(&named, fs::Permissions::from_mode(0o600)).expect("our own");
    let stored = Lockrun::bare().key("k").arg("--store-file").arg(&named).command(["echo", "obeyed"]);
    [(user.0, file, configured), (place, named, stored)]
}

/// The call does not obey the file, and says what to do about what.
#[track_caller]
fn is_not_obeyed(call: &Lockrun, file: &Path, what: &str) {
    let output = call.run().exited(64).printed("").said(&format!("cannot read {}: ", file.display())).said(what);
    assert_eq!(output.stderr().lines().count(), 1, "{output}");
}

// "A configuration or store file is read only if ... nobody else can write to it; else 64", nor to a directory on the way.
#[test]
fn a_file_that_others_can_write_is_not_obeyed() {
    for (place, file, call) in obeyed() {
        let parent = file.parent().expect("a directory");
        call.run().exited(0).printed("obeyed\n");
        for (path, private, open) in
            [(&*file, 0o600, [0o620, 0o602]), (parent, 0o755, [0o775, 0o757]), (place.path(), 0o700, [0o720, 0o777])]
        {
            let mode = |mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("our own");
            for bits in open {
                mode(bits);
                is_not_obeyed(&call, &file, &format!("chmod go-w {}", path.display()));
            }
            mode(private);
            call.run().exited(0).printed("obeyed\n");
        }
        // In a sticky directory, such as /tmp, nobody else can replace what is ours.
        fs::set_permissions(parent, fs::Permissions::from_mode(0o1777)).expect("our own");
        call.run().exited(0).printed("obeyed\n");
    }
    let system = System::with("command = 'echo obeyed'");
    let store = Store::file();
    let url = store.url();
    system.run(&Lockrun::bare(), &["--key", "k", "--store", &url]).exited(0).printed("obeyed\n");
    fs::set_permissions(system.etc.path().join("lockrun.toml"), fs::Permissions::from_mode(0o666)).expect("our own");
    let output = system.run(&Lockrun::bare(), &["--key", "k", "--store", &url]).exited(64);
    output.printed("").said("cannot read /etc/lockrun.toml: ").said("chmod go-w /etc/lockrun.toml");
}

// "... only if its owner is the user or root": root with the HOME of another user, as after `sudo -E`, does not run what that user
// says. Nor may a directory or a symbolic link on the way be another user's.
#[test]
fn a_file_of_another_user_is_not_obeyed() {
    need_root("give files away");
    let other = Some(Uid::from_raw(65534));
    for (place, file, call) in obeyed() {
        let parent = file.parent().expect("a directory");
        for path in [&*file, parent, place.path()] {
            chown(path, other, None).expect("it is given away");
            is_not_obeyed(&call, &file, "belongs to uid 65534");
            chown(path, Some(Uid::from_raw(0)), None).expect("it is taken back");
        }
        let moved = place.path().join("moved");
        fs::rename(parent, &moved).expect("our own");
        symlink(&moved, parent).expect("a link");
        call.run().exited(0).printed("obeyed\n");
        std::os::unix::fs::lchown(parent, Some(65534), None).expect("it is given away");
        is_not_obeyed(&call, &file, "belongs to uid 65534");
    }
    // What is root's, another user obeys as well.
    let (_program, program) = program_for_all();
    let home = TempDir::new().expect("a temporary directory");
    fs::set_permissions(home.path(), fs::Permissions::from_mode(0o755)).expect("our own");
    fs::create_dir(home.path().join("lockrun")).expect("a directory");
    fs::write(home.path().join("lockrun/config.toml"), "ttl = 'of root'").expect("a file");
    let words = ["setpriv", "--reuid", "65534", "--clear-groups", &program, "--key", "k", "--", "true"];
    let output = Lockrun::bare().env("XDG_CONFIG_HOME", home.path()).command(words).alone();
    output.exited(64).said(":1: ttl: \"of root\" is not a duration");
}

// "It may also be a pipe": what the caller has opened is obeyed, even if others can write to it; a FIFO by its name is like a file.
#[test]
fn what_the_caller_has_opened_is_obeyed() {
    need_root("give files away");
    let locks = Store::file();
    let place = TempDir::new().expect("a temporary directory");
    let (file, fifo) = (place.path().join("url"), place.path().join("fifo"));
    fs::write(&file, locks.url()).expect("a file");
    nix::unistd::mkfifo(&fifo, Mode::S_IRUSR | Mode::S_IWUSR).expect("a FIFO");
    for path in [&file, &fifo] {
        chown(path.as_path(), Some(Uid::from_raw(65534)), None).expect("it is given away");
    }
    let call = Lockrun::bare().key("k").env("FILE", &file).command(["echo", "ran"]);
    let opened = call.clone().args(["--store-file", "/dev/stdin"]).in_shell("exec \"$@\" <\"$FILE\"");
    opened.alone().exited(0).printed("ran\n").silent();
    let detour = format!("/dev/fd/../../..{}", file.display());
    is_not_obeyed(&call.clone().arg("--store-file").arg(&detour), Path::new(&detour), "belongs to uid 65534");
    let given = call.clone().args(["--store-file", "/dev/fd/3"]).in_shell("exec \"$@\" 3<\"$FILE\"");
    given.alone().exited(0).printed("ran\n").silent();
    is_not_obeyed(&call.clone().arg("--store-file").arg(&fifo), &fifo, "belongs to uid 65534");
    // A pipe without a name is the caller's, whatever path leads to it.
    let link = place.path().join("link");
    std::os::unix::fs::symlink("/dev/stdin", &link).expect("a link");
    let piped = call.clone().arg("--store-file").arg(&link).in_shell("cat \"$FILE\" | \"$@\"");
    piped.alone().exited(0).printed("ran\n").silent();
}
