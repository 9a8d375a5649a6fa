//! Whose configuration and store files lockrun reads.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use nix::sys::stat::Mode;
use nix::unistd::{Uid, chown};
use tempfile::TempDir;

use crate::support::config::{System, UserConfig};
use crate::support::lockrun::program_for_all;
use crate::support::processes::need_root;
use crate::support::{Lockrun, Store};

/// Returns the files that a run would obey, each with a call that reads it: the user's configuration, and one that
/// `--store-file` names.
fn obeyed() -> [(TempDir, PathBuf, Lockrun); 2] {
    let user = UserConfig::with("command = 'echo obeyed'");
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

/// Asserts that the call does not obey the file, and says what is wrong and what to do.
#[track_caller]
fn is_not_obeyed(call: &Lockrun, file: &Path, what: &str) {
    let output = call.run().exited(64).printed("").said(&format!("cannot read {}: ", file.display())).said(what);
    assert_eq!(output.stderr().lines().count(), 1, "{output}");
}

// "A configuration or store file is read only if ... nobody else can write to it; else 64", nor to a directory on the
// way.
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
        // In a sticky directory, such as /tmp, no one else can replace our files.
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

// "... only if its owner is the user or root": root with another user's HOME, as after `sudo -E`, does not run what
// that user's file says. Nor may a directory or a symbolic link on the way be another user's.
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
    // Other users obey root's files as well.
    let (_program, program) = program_for_all();
    let home = TempDir::new().expect("a temporary directory");
    fs::set_permissions(home.path(), fs::Permissions::from_mode(0o755)).expect("our own");
    fs::create_dir(home.path().join("lockrun")).expect("a directory");
    fs::write(home.path().join("lockrun/config.toml"), "ttl = 'roots'").expect("a file");
    let words = ["setpriv", "--reuid", "65534", "--clear-groups", &program, "--key", "k", "--", "true"];
    let output = Lockrun::bare().env("XDG_CONFIG_HOME", home.path()).command(words).alone();
    output.exited(64).said(":1: ttl: \"roots\" is not a duration");
}

// "It may also be a pipe": a pipe that the caller has opened is obeyed, even if others can write to it; a FIFO that is
// given by name is treated like a file.
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
