//! Where the file store keeps its locks, and which directories it refuses.

use std::fs::{self, File};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};

use nix::unistd::Uid;
use tempfile::TempDir;

use crate::support::birth::Birth;
use crate::support::namespace::with_mounts;
use crate::support::processes::find_program;
use crate::support::user::User;
use crate::support::{Holder, Lockrun, Output};

fn at(directory: &Path) -> Lockrun {
    Lockrun::at(&format!("file:{}", directory.display())).key("dir")
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("our own directory");
}

/// Asserts that the directory was refused by name, and that nothing was created there.
#[track_caller]
fn is_refused(directory: &Path) -> Output {
    let before = fs::read_dir(directory).map_or(0, Iterator::count);
    let output = at(directory).command(["echo", "ran"]).run();
    assert!(matches!(output.status, Some(64 | 69)), "{output}");
    let name = directory.display().to_string();
    assert_eq!(fs::read_dir(directory).map_or(0, Iterator::count), before);
    output.printed("").said(&name)
}

// "Ours, mode 0700, no symbolic links, or refused": a missing one is created so.
#[test]
fn a_missing_directory_is_made() {
    let parent = TempDir::new().expect("a temporary directory");
    let directory = parent.path().join("locks");
    at(&directory).command(["true"]).run().exited(0).silent();
    let made = fs::symlink_metadata(&directory).expect("it was made");
    assert!(made.is_dir());
    assert_eq!(made.mode() & 0o7777, 0o700);
    assert_eq!(made.uid(), Uid::effective().as_raw());
    at(&directory).command(["true"]).run().exited(0).silent();
}

/// A directory, what it is called, and a symbolic link to it.
fn a_link() -> (TempDir, PathBuf, PathBuf) {
    let parent = TempDir::new().expect("a temporary directory");
    let real = parent.path().join("real");
    fs::create_dir(&real).expect("a directory");
    set_mode(&real, 0o700);
    let link = parent.path().join("link");
    symlink(&real, &link).expect("a link");
    (parent, real, link)
}

// "No symbolic links, or refused."
#[test]
fn a_symbolic_link_is_refused() {
    let (parent, real, link) = a_link();
    is_refused(&link);
    assert_eq!(fs::read_dir(&real).expect("ours").count(), 0);
    let dangling = parent.path().join("dangling");
    symlink(parent.path().join("nowhere"), &dangling).expect("a link");
    is_refused(&dangling);
    assert!(!parent.path().join("nowhere").exists());
    at(&real).command(["true"]).run().exited(0).silent();
}

// "Mode 0700, or refused": no one else may write there, or plant or remove a lock.
#[test]
fn a_directory_that_others_can_write_is_refused() {
    for mode in [0o770, 0o720, 0o702, 0o777, 0o1777] {
        let parent = TempDir::new().expect("a temporary directory");
        let directory = parent.path().join("open");
        fs::create_dir(&directory).expect("a directory");
        set_mode(&directory, mode);
        is_refused(&directory);
    }
}

// "Ours, or refused."
#[test]
fn a_directory_of_another_user_is_refused() {
    if Uid::effective().is_root() {
        let parent = TempDir::new().expect("a temporary directory");
        let directory = parent.path().join("theirs");
        fs::create_dir(&directory).expect("a directory");
        set_mode(&directory, 0o700);
        chown(&directory, Some(65534), Some(65534)).expect("root may do this");
        is_refused(&directory);
    } else {
        is_refused(Path::new("/etc"));
    }
}

// "An unreachable store is an error": anything that is no directory, or cannot be created, is refused.
#[test]
fn what_is_no_directory_is_refused() {
    let parent = TempDir::new().expect("a temporary directory");
    let file = parent.path().join("file");
    fs::write(&file, "here").expect("a file");
    is_refused(&file);
    assert_eq!(fs::read_to_string(&file).expect("ours"), "here");
    is_refused(&file.join("below"));
    is_refused(Path::new("/proc/locks-of-mine"));
}

/// Returns the default directory of the user who runs the tests.
fn default_directory() -> PathBuf {
    let user = Uid::effective();
    if user.is_root() { "/run/lockrun".into() } else { format!("/run/lock/lockrun-{user}").into() }
}

// "The default directory: `/run/lockrun` for root, `/run/lock/lockrun-UID` for others", the same from cron and from a
// shell.
#[test]
fn the_default_directory_is_the_same_for_all() {
    let uid = Uid::effective().as_raw();
    let key = format!("suite-{}", std::process::id());
    let home = TempDir::new().expect("a temporary directory");
    let from_cron = Lockrun::bare().key(&key);
    let from_shell = from_cron
        .clone()
        .env("TMPDIR", home.path())
        .env("XDG_RUNTIME_DIR", home.path())
        .env("XDG_STATE_HOME", home.path())
        .env("HOME", home.path())
        .directory(home.path());
    let holder = Holder::with(&from_cron, &[]);
    for call in [&from_cron, &from_shell, &from_cron.clone().args(["--store", "file:"])] {
        let output = call.clone().command(["echo", "ran"]).run();
        output.exited(75).printed("").said("is held by");
    }
    let made = fs::symlink_metadata(default_directory()).expect("it was made");
    assert!(made.is_dir());
    assert_eq!((made.mode() & 0o7777, made.uid()), (0o700, uid));
    holder.end();
    assert_eq!(fs::read_dir(home.path()).expect("ours").count(), 0);
}

// "`file:/dir`": a name is percent-encoded as in any URL, or taken literally; it never means another directory.
#[test]
fn a_directory_with_a_space() {
    let parent = TempDir::new().expect("a temporary directory");
    let url = format!("file:{}/a%20b", parent.path().display());
    Lockrun::at(&url).key("dir").command(["true"]).run().exited(0).silent();
    assert!(parent.path().join("a b").is_dir());
}

// "No symbolic links, or refused": also with a suffix that would make the kernel follow the link.
#[test]
fn a_symbolic_link_with_a_slash_is_refused() {
    let (_parent, real, link) = a_link();
    for end in ["/", "//", "/.", "/./"] {
        let url = format!("file:{}{end}", link.display());
        let output = Lockrun::at(&url).key("dir").command(["echo", "ran"]).run();
        output.exited(69).printed("").said(&link.display().to_string());
        assert_eq!(fs::read_dir(&real).expect("ours").count(), 0);
        let url = format!("file:{}{end}", real.display());
        Lockrun::at(&url).key("other").command(["true"]).run().exited(0).silent();
        fs::remove_dir_all(&real).expect("ours");
        fs::create_dir(&real).expect("a directory");
        set_mode(&real, 0o700);
    }
}

// "No weaker lock by accident": if the first choice is full, that is an error, and no reason to lock elsewhere than
// others do.
#[test]
fn a_full_file_system_is_no_other_directory() {
    let full = with_mounts("mount -t tmpfs -o nr_inodes=1 none /run");
    let call = Lockrun::bare().key("full").command(["echo", "ran"]);
    call.in_shell(&full).alone().exited(69).printed("").said("/run/lockrun");
}

/// The ids of two users that no machine has.
const NOBODY: u32 = 424_242;
const ANOTHER: u32 = 424_243;

/// Where the first user's locks are only if there is no /run/lock.
const ELSEWHERE: &str = "/tmp/lockrun-424242";

/// Runs `echo ran` under a lock as a user, with these mounts.
fn run_by(user: &User, mounts: &str) -> Output {
    let run = ["--key", "k", "--", "echo", "ran"].map(str::to_owned);
    let words: Vec<_> = user.words(&[]).into_iter().chain(run).collect();
    Lockrun::bare()
        .command(["sh", "-c", &with_mounts(mounts), "sh"].map(str::to_owned).into_iter().chain(words))
        .alone()
}

// "Nor is the default directory swapped for another one because it cannot be written": a read-only /run/lock (as with
// `ProtectSystem=strict`), one that only root can write to, and one in which another user has the name, are errors that
// say what to do.
#[test]
fn no_other_default_directory() {
    let nobody = User::new(ANOTHER, &[]);
    let directory = format!("/run/lock/lockrun-{ANOTHER}");
    let elsewhere = format!("/tmp/lockrun-{ANOTHER}");
    for (mounts, why) in [
        ("mount -t tmpfs -o ro,mode=1777 none /run/lock", "ReadWritePaths=/run/lock"),
        ("mount -t tmpfs -o mode=755 none /run/lock", &*format!("\"d {directory} 0700 {ANOTHER}\"")),
        (
            &*format!("mount -t tmpfs -o mode=1777 none /run/lock && install -d -o 65534 -m 700 {directory}"),
            "belongs to nobody",
        ),
    ] {
        run_by(&nobody, mounts).exited(69).printed("").said(&directory).said(why).said("--store file:/DIR");
        assert!(!Path::new(&elsewhere).exists(), "{mounts}");
    }
    // An existing directory, on a file system that has become read-only.
    let frozen = format!(
        "mount -t tmpfs -o mode=1777 none /run/lock && install -d -o {ANOTHER} -m 700 {directory} && \
         mount -o remount,ro /run/lock"
    );
    run_by(&nobody, &frozen).exited(69).printed("").said(&directory).said(&format!("ReadWritePaths={directory}"));
    let read_only = with_mounts("mount -t tmpfs -o ro none /run");
    let output = Lockrun::bare().key("k").command(["echo", "ran"]).in_shell(&read_only).alone();
    output.exited(69).printed("").said("/run/lockrun").said("ReadWritePaths=/run").said("--store file:/DIR");
}

// "`/tmp/lockrun-UID` serves only where there is no `/run/lock` at all", and `doctor` warns of it.
#[test]
fn where_there_is_no_run_lock() {
    let nobody = User::new(NOBODY, &[]);
    let bare = "mount -t tmpfs -o mode=755 none /run";
    run_by(&nobody, bare).exited(0).printed("ran\n").silent();
    let made = fs::symlink_metadata(ELSEWHERE).expect("it was made");
    assert_eq!((made.mode() & 0o7777, made.uid()), (0o700, NOBODY));
    let words = ["sh", "-c", &with_mounts(bare), "sh"].map(str::to_owned).into_iter();
    let doctor = Lockrun::bare().command(words.chain(nobody.words(&[])).chain(["doctor".to_owned()])).alone();
    fs::remove_dir_all(ELSEWHERE).expect("it was made");
    let line = doctor.stdout().lines().find(|line| line.contains("PrivateTmp")).map(str::to_owned);
    assert!(line.is_some_and(|line| line.starts_with("warn ") && line.contains(ELSEWHERE)), "{doctor}");
    // Also of a directory that was given.
    let locks = TempDir::new_in("/var/tmp").expect("a temporary directory");
    let doctor = Lockrun::bare().args(["doctor", "--store", &format!("file:{}", locks.path().display())]).run();
    assert!(doctor.stdout().contains("PrivateTmp"), "{doctor}");
}

// "Root's default directory is one that no other user can make": whatever is in /run/lock; nor can the root of a user
// namespace.
#[test]
fn no_user_keeps_root_out() {
    let nobody = User::new(NOBODY, &[]);
    let planted = "mount -t tmpfs -o mode=755 none /run && install -d -m 1777 /run/lock && \
                   install -d -o 65534 -m 700 /run/lock/lockrun-0 /run/lock/lockrun";
    let call = Lockrun::bare().key("k").command(["echo", "ran"]);
    call.in_shell(&with_mounts(planted)).alone().exited(0).printed("ran\n").silent();
    let run = ["--key", "k", "--", "echo", "ran"].map(str::to_owned);
    let words: Vec<_> = nobody.words(&["unshare", "-Ur"]).into_iter().chain(run).collect();
    Lockrun::bare().command(words).alone().exited(69).printed("").said("/run/lockrun").said("--store file:/DIR");
}

// "Anything else with a lock file's name, such as a directory, is a warning": also a directory of another user, who
// keeps others out.
#[test]
fn doctor_names_a_directory_that_may_not_be_opened() {
    let nobody = User::new(NOBODY, &[]);
    let locks = TempDir::new_in("/var/tmp").expect("a temporary directory");
    let sub = locks.path().join("sub");
    fs::create_dir(&sub).expect("a directory");
    set_mode(&sub, 0o700);
    chown(locks.path(), Some(NOBODY), None).expect("we are root");
    let call = Lockrun::bare().args(["doctor", "--store", &format!("file:{}", locks.path().display())]);
    let doctor = nobody.call(&call).alone();
    let line = doctor.stdout().lines().find(|line| line.contains("/sub")).map(str::to_owned);
    assert!(line.is_some_and(|line| line.starts_with("warn ") && line.contains("it is a directory")), "{doctor}");
    assert!(!doctor.stdout().contains("ReadWritePaths"), "{doctor}");
}

// "Mode 0700", whatever the umask: a directory that is created on first use can be used again.
#[test]
fn no_umask_spoils_the_directory() {
    let parent = TempDir::new().expect("a temporary directory");
    let directory = parent.path().join("locks");
    let call = at(&directory).birth(Birth { umask: Some(0o777), ..Birth::default() }).command(["true"]);
    call.run().exited(0).silent();
    assert_eq!(fs::symlink_metadata(&directory).expect("it was made").mode() & 0o7777, 0o700);
    let files: Vec<_> = fs::read_dir(&directory).expect("ours").map(|entry| entry.expect("ours").path()).collect();
    assert!(!files.is_empty(), "a lock leaves its file");
    for file in files {
        assert_eq!(fs::metadata(&file).expect("ours").mode() & 0o7777, 0o1600, "{}", file.display());
    }
    call.run().exited(0).silent();
}

// "systemd-tmpfiles, which removes old files, leaves lock files alone", also in a directory that the user gave, and
// also a file that still lacks the sticky bit, from its next use on.
#[test]
fn no_cleaner_removes_a_lock() {
    let cleaner = find_program("systemd-tmpfiles");
    let parent = TempDir::new().expect("a temporary directory");
    let locks = parent.path().join("tmp/locks");
    fs::create_dir_all(&locks).expect("a directory");
    set_mode(&locks, 0o700);
    File::create(locks.join("dir")).expect("a file");
    set_mode(&locks.join("dir"), 0o600);
    // An age of 0: everything is old.
    let config = parent.path().join("clean.conf");
    fs::write(&config, format!("d {} - - - 0\n", parent.path().join("tmp").display())).expect("a file");
    let clean = || {
        let stray = locks.join("stray");
        File::create(&stray).expect("a file");
        Lockrun::bare().command([cleaner.as_os_str(), "--clean".as_ref(), config.as_os_str()]).alone().exited(0);
        assert!(!stray.exists(), "nothing was cleaned");
    };
    let holder = Holder::with(&at(&locks), &[]);
    clean();
    at(&locks).command(["echo", "ran"]).run().exited(75).printed("").said("is held by");
    holder.end();
    clean();
    assert!(locks.join("dir").exists(), "what the record says about the last run stays");
}
