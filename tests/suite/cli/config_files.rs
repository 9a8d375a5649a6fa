//! Configuration files: which are read, and which errors a wrong one causes.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use nix::unistd::Uid;
use tempfile::TempDir;

use crate::support::config::{System, UserConfig};
use crate::support::fake::{Fake, Manner};
use crate::support::lockrun::program_for_all;
use crate::support::processes::need_root;
use crate::support::{Lockrun, Store};

// "An unknown key is an error (exit 64) that names file and line; so is a wrong type or value; a syntax error
// likewise", before anything is touched, also by lockrun's other commands.
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
        ("fail = 'true'", 1, "fail: "),
        ("skip = 'later'", 1, "skip: "),
        ("events = ''", 1, "events: "),
        ("\n\nttl 30", 3, ""),
        ("ttl = 30\nttl = 31", 2, ""),
        ("ttl = \"30", 1, ""),
        ("\x1b[31m = 1", 1, ""),
        ("\"\\u001b[31m\" = 1", 1, "not an option"),
    ] {
        let user = UserConfig::with(text);
        let server = Fake::start(Manner::Silent);
        let call = user.of(Lockrun::at(&server.url())).key("k").command(["echo", "ran"]);
        let output = call.run().exited(64).printed("").said(&format!("lockrun: {}", user.line(line))).said(wanted);
        assert_eq!(output.stderr().lines().count(), 1, "{output}");
        assert!(!output.stderr().contains('\x1b'), "{output}");
        assert_eq!(server.connections(), 0, "the store was asked");
    }
    let user = UserConfig::with("frobnicate = 1");
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
    let user = UserConfig::new();
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

// "Else ~/.config/lockrun/config.toml; HOME unset or relative: there is no user's file."
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
    // XDG_CONFIG_HOME replaces ~/.config even if nothing is in it.
    call().env("XDG_CONFIG_HOME", "/nonexistent").run().exited(64).said("no command");
    call().env("HOME", "").run().exited(64).said("no command");
    call().env("HOME", ".").run().exited(64).said("no command");
    // A HOME that is not there is no error, even as a link; a link below it is meant to lead to the file.
    let link = home.path().join("link");
    std::os::unix::fs::symlink("nowhere", &link).expect("a link");
    call().env("HOME", &link).run().exited(64).said("no command");
    call().env("HOME", link.join("below")).run().exited(64).said("no command");
    fs::rename(home.path().join(".config"), home.path().join("moved")).expect("our own");
    std::os::unix::fs::symlink("nowhere", home.path().join(".config")).expect("a link");
    call().run().exited(64).said("/.config leads nowhere");
}

// "An unreadable configuration is an error, never another store": `XDG_CONFIG_HOME` is set on purpose, so what cannot
// be read below it is not a missing file.
#[test]
fn a_named_directory_that_cannot_be_read_is_an_error() {
    let (_place, program) = program_for_all();
    let home = TempDir::new().expect("a temporary directory");
    fs::set_permissions(home.path(), fs::Permissions::from_mode(0o755)).expect("our own");
    let directory = home.path().join("config");
    let words = ["setpriv", "--reuid", "65534", "--clear-groups", &program, "--key", "k", "--ttl", "soon", "true"];
    let call = || Lockrun::bare().env("HOME", home.path());
    let other = |config: &Path| call().env("XDG_CONFIG_HOME", config).command(words).alone();
    let is_refused = |config: &Path, why: &str| {
        let output = other(config).exited(64).printed("").said(why);
        assert!(!output.stderr().contains("soon"), "the run went on: {output}");
    };
    // Nothing there is no configuration, as the specification says.
    other(&directory).exited(64).said("soon");
    fs::create_dir_all(directory.join("lockrun")).expect("directories");
    other(&directory).exited(64).said("soon");
    for closed in [&directory, &directory.join("lockrun")] {
        need_root("close a directory to another user");
        fs::set_permissions(closed, fs::Permissions::from_mode(0o700)).expect("our own");
        is_refused(&directory, "Permission denied");
        fs::set_permissions(closed, fs::Permissions::from_mode(0o755)).expect("our own");
    }
    let file = home.path().join("file");
    fs::write(&file, "").expect("a file");
    is_refused(&file, "Not a directory");
    is_refused(&file.join("below"), "Not a directory");
    for relative in [".", ".config", "~/.config"] {
        is_refused(Path::new(relative), "not an absolute path");
    }
    let link = directory.join("lockrun/config.toml");
    std::os::unix::fs::symlink("nowhere", &link).expect("a link");
    is_refused(&directory, "leads nowhere");
    fs::remove_file(&link).expect("ours");
    std::os::unix::fs::symlink("config.toml", &link).expect("a link");
    is_refused(&directory, "symbolic link");
    fs::remove_file(&link).expect("ours");
    fs::create_dir(&link).expect("a directory");
    is_refused(&directory, "it is a directory");
}

// A service that has changed its user but not HOME ignores the other user's file, which it cannot even see.
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
    // If our own directory shuts us out, that is an error: no one knows what the file says.
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
        let user = UserConfig::new();
        user.write(&text, mode);
        let local = Store::file();
        // Also if another store is used, and with `--quiet`.
        let call = user.of(Lockrun::new(&local)).key("k").arg("--quiet").command(["echo", "ran"]);
        let output = call.run().exited(0).printed("ran\n");
        assert_eq!(output.stderr().lines().count(), usize::from(warns), "{mode:o}: {output}");
        if warns {
            let output = output.said(&format!("warning: {}", user.file().display())).said(":2 contains a password");
            assert!(!output.stderr().contains("hushhush"), "{output}");
        }
    }
    let harmless = UserConfig::new();
    harmless.write(&format!("store = '{}'", Store::file().url()), 0o644);
    harmless.of(Lockrun::new(&Store::file())).key("k").command(["true"]).run().exited(0).silent();
}
