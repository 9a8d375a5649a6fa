//! Files that a member plants in a group's directory are neither followed nor changed by another user, and hold up no
//! one.

use std::fs::{self, File};
use std::os::unix::fs::{MetadataExt, PermissionsExt, lchown, symlink};
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::sys::resource::Resource;
use nix::sys::stat::Mode;

use super::group::{GROUP, MEMBER, Shared, Who, set};
use crate::support::birth::Birth;
use crate::support::processes::find_program;
use crate::support::{Lockrun, Store};

/// Shorter than the kernel lets the owner of a file delay others that open it (fs.lease-break-time, 45 s).
const NOT_HELD_UP: Duration = Duration::from_secs(30);

/// Plants something at a path, given the path of a file of root's elsewhere.
type Plant = fn(&Path, &Path);

/// What is planted, and part of the message about it.
const PLANTED: [(&str, Plant, &str); 7] = [
    ("a symbolic link", |planted, elsewhere| symlink(elsewhere, planted).expect("a link"), "symbolic link"),
    (
        "a dangling one",
        |planted, elsewhere| symlink(elsewhere.with_extension("x"), planted).expect("a link"),
        "symbolic link",
    ),
    ("a hard link", |planted, elsewhere| fs::hard_link(elsewhere, planted).expect("a link"), "2 names"),
    ("a file from elsewhere", |planted, elsewhere| drop(fs::rename(elsewhere, planted)), "belongs to the group"),
    ("a FIFO", |planted, _| plant_fifo(planted), "not a regular file"),
    ("a socket", |planted, _| plant_socket(planted), "a socket"),
    ("a directory", |planted, _| fs::create_dir(planted).expect("a directory"), "directory"),
];

/// A FIFO that everybody can open.
fn plant_fifo(planted: &Path) {
    nix::unistd::mkfifo(planted, Mode::empty()).expect("a FIFO");
    fs::set_permissions(planted, fs::Permissions::from_mode(0o666)).expect("our own");
}

/// A socket that everybody may use.
fn plant_socket(planted: &Path) {
    drop(std::os::unix::net::UnixListener::bind(planted).expect("a socket"));
    fs::set_permissions(planted, fs::Permissions::from_mode(0o666)).expect("our own");
}

/// Returns all attributes that could have been changed.
fn look(path: &Path) -> Option<(u32, u32, u32, u64, u64, i64, i64)> {
    let it = fs::symlink_metadata(path).ok()?;
    Some((it.mode(), it.uid(), it.gid(), it.ino(), it.len(), it.mtime_nsec(), it.ctime_nsec()))
}

/// Asserts that every command for this key fails quickly with these words, for root and for a member.
#[track_caller]
fn is_refused(shared: &Shared, words: &str) {
    for who in [Who::Root, Who::Another] {
        let output = shared.run(who, &[], &["echo", "ran"]).exited(69).printed("").said(words).said("/locks/k: ");
        let output =
            output.said("make sure that nothing works under the lock, find out who put it there, then remove it");
        assert!(output.took < NOT_HELD_UP, "{output}");
        shared.run(who, &["--wait", "1"], &["echo", "ran"]).exited(69).printed("").said(words);
        for other in [
            &["acquire", "--key", "k"][..],
            &["renew", "--key", "k", "--token", "t"],
            &["release", "--key", "k", "--token", "t"],
            &["break", "--key", "k"],
            &["status", "--key", "k"],
        ] {
            let output = shared.other(who, other).exited(69).printed("").said(words);
            assert!(output.took < NOT_HELD_UP, "{output}");
        }
    }
}

#[test]
fn what_is_planted_is_not_touched() {
    for (what, plant, words) in PLANTED {
        let shared = Shared::new();
        let elsewhere = shared.parent.path().join("elsewhere");
        // Empty and open to all, so that nothing else protects it.
        fs::write(&elsewhere, "").expect("a file");
        set(&elsewhere, 0, 0, 0o666);
        let planted = shared.locks().join("k");
        plant(&planted, &elsewhere);
        if !matches!(what, "a hard link" | "a file from elsewhere") {
            lchown(&planted, Some(MEMBER), None).expect("root may do this");
        }
        let before = (look(&planted), look(&elsewhere));
        is_refused(&shared, words);
        // The other locks still work, and all of them are listed.
        let call = Lockrun::at(&shared.url()).key("other").command(["echo", "ran"]);
        shared.by(Who::Member, &call).alone().exited(0).printed("ran\n").silent();
        let status = shared.other(Who::Root, &["status"]);
        assert!(status.stdout().contains("\nother "), "{what}: {status}");
        let pruned = shared.other(Who::Root, &["prune", "--older-than", "0s"]);
        assert_eq!(pruned.stdout(), "other\n", "{what}: {pruned}");
        for output in [status, pruned] {
            // A regular file could be a lock's, so it is reported.
            let expected = if matches!(what, "a hard link" | "a file from elsewhere") { 69 } else { 0 };
            output.exited(expected);
        }
        assert_eq!((look(&planted), look(&elsewhere)), before, "{what}");
        assert!(!elsewhere.with_extension("x").exists());
    }
}

// "Sizes are bounded": whatever a member writes into a file costs the others little memory and time. The same in a
// directory of one user.
#[test]
fn a_vast_file_is_refused() {
    let shared = Shared::new();
    let store = Store::file();
    Lockrun::new(&store).key("k").command(["true"]).run().exited(0);
    shared.run(Who::Member, &[], &["true"]).exited(0);
    let few = 512 << 20;
    let little_memory = Birth { limits: vec![(Resource::RLIMIT_AS, few, few)], ..Birth::default() };
    // Root is not told to open what a member may have replaced by a symbolic link meanwhile.
    for (locks, url, advice) in
        [(shared.locks(), shared.url(), "then remove the file: rm "), (store.locks(), store.url(), "truncate -s 0 ")]
    {
        File::options().write(true).open(locks.join("k")).expect("ours").set_len(1 << 40).expect("a file with a hole");
        let run = Lockrun::at(&url).key("k").birth(little_memory.clone()).command(["echo", "ran"]);
        let output = run.run().exited(69).printed("").said("longer than any that lockrun writes").said(advice);
        assert!(output.took < NOT_HELD_UP, "{output}");
        let status = Lockrun::bare().args(["status", "--store", &url]).birth(little_memory.clone()).run();
        status.exited(69).said("longer than any that lockrun writes");
        File::options().write(true).open(locks.join("k")).expect("ours").set_len(0).expect("it is emptied");
        run.run().exited(0).printed("ran\n").silent();
    }
}

// A member who has a lease on a file (fcntl(2), F_SETLEASE) could hold up every other user who opens it.
#[test]
fn a_leased_file_delays_no_run() {
    let shared = Shared::new();
    let file = shared.locks().join("k");
    shared.run(Who::Member, &[], &["true"]).exited(0);
    let python = find_program("python3").display().to_string();
    let script = "import fcntl, os, signal, sys; signal.signal(signal.SIGIO, signal.SIG_IGN); \
                  fd = os.open(sys.argv[1], os.O_RDWR); fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_WRLCK); \
                  print('ready', flush=True); sys.stdin.read()";
    let words = [&python, "-c", script, file.to_str().expect("a plain path")].map(str::to_owned);
    let mut lease = Lockrun::bare().command(words).alone_with_open_input();
    lease.run.wait_for_line("ready");
    for who in [Who::Root, Who::Another] {
        let output = shared.run(who, &[], &["echo", "ran"]).exited(69).printed("").said("cannot open the lock file");
        let output =
            output.said("another process holds a lease on it").said("make sure that nothing works under the lock");
        assert!(output.took < NOT_HELD_UP, "{output}");
    }
    lease.finish().exited(0);
    shared.run(Who::Root, &[], &["echo", "ran"]).exited(0).printed("ran\n").silent();
}

// The mode of another's file is never changed, not even by root, who could: whose file it was before is not known.
#[test]
fn no_mode_is_changed() {
    let shared = Shared::new();
    shared.run(Who::Member, &[], &["true"]).exited(0);
    let file = shared.locks().join("k");
    set(&file, MEMBER, GROUP, 0o600);
    let mode = |path: &PathBuf| fs::metadata(path).expect("it is there").permissions().mode() & 0o7777;
    // The file is closed to the group, so no one uses it: others could not see that the lock is held.
    for who in [Who::Root, Who::Member, Who::Another] {
        let output =
            shared.run(who, &[], &["echo", "ran"]).exited(69).printed("").said("its mode is 0600, which does not let");
        output.said("make sure that nothing works under the lock");
    }
    assert_eq!(mode(&file), 0o600);
    // A file that one member closes to the others does not hide the rest from them.
    let call = Lockrun::at(&shared.url()).key("other").command(["true"]);
    shared.by(Who::Member, &call).alone().exited(0);
    let status = shared.other(Who::Another, &["status"]).exited(69).said("its mode is 0600");
    assert!(status.stdout().contains("\nother "), "{status}");
}

// A command in a message may be pasted into root's shell: it contains no file name of a member's choice that is not a
// lock's, and quotes a path that a shell would split.
#[test]
fn no_name_gets_into_a_command() {
    let shared = Shared::new();
    let hostile = "x -rf ~;touch evil;#";
    for name in [hostile, "$(touch evil)", "a~b", "%zz"] {
        let file = shared.locks().join(name);
        fs::write(&file, "x".repeat(100)).expect("ours");
        File::options().write(true).open(&file).expect("ours").set_len(1 << 40).expect("a file with a hole");
        set(&file, MEMBER, GROUP, 0o660);
    }
    for words in [&["status"][..], &["prune", "--older-than", "0s"]] {
        shared.other(Who::Root, words).exited(0).silent();
    }
    let doctor = shared.other(Who::Root, &["doctor"]).silent();
    assert!(!doctor.stdout().contains("evil"), "{doctor}");
    // The directory's name is root's choice.
    let store = Store::file();
    let locks = store.locks().with_file_name("it's here");
    let url = format!("file:{}", locks.display());
    let run = Lockrun::at(&url).key("k").command(["echo", "ran"]);
    run.run().exited(0);
    File::options().write(true).open(locks.join("k")).expect("ours").set_len(1 << 40).expect("a file with a hole");
    let output = run.run().exited(69).printed("");
    let stderr = output.stderr();
    let from = stderr.find("truncate ").expect("a command");
    let to = stderr[from..].find(" (its sequence").expect("its end") + from;
    Lockrun::bare().command(["sh", "-c", &stderr[from..to]]).alone().exited(0);
    run.run().exited(0).printed("ran\n").silent();
}

// Root has the rights of a member as long as it has its capabilities. Without them, as in some containers and services,
// root cannot use the file, but the others can, so it must stay.
#[test]
fn root_without_its_capabilities() {
    let shared = Shared::new();
    shared.run(Who::Member, &[], &["true"]).exited(0);
    let call = Lockrun::at(&shared.url()).key("k").command(["echo", "ran"]);
    let weak = |groups: &str| {
        let drop = "--bounding-set -dac_override,-dac_read_search --inh-caps -dac_override,-dac_read_search";
        call.in_shell(&format!("exec setpriv {drop} {groups} \"$@\"")).alone()
    };
    let output = weak("--clear-groups")
        .exited(69)
        .printed("")
        .said("this user (uid 0) may not open it")
        .said("must be in the group");
    assert!(!output.stderr().contains("remove"), "{output}");
    weak(&format!("--groups {GROUP}")).exited(0).printed("ran\n").silent();
}
