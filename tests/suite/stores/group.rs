//! `file:/dir?group=NAME`: locks that root and the members of a group share.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};

use nix::sys::signal::Signal;
use serde_json::Value;
use tempfile::TempDir;

use crate::support::birth::Birth;
use crate::support::lockrun::Open;
use crate::support::namespace::with_mounts;
use crate::support::processes::state;
use crate::support::user::User;
use crate::support::{LONG, Lockrun, Output, eventually};

/// The ids of a group and of users that no machine has.
pub(super) const GROUP: u32 = 424_250;
pub(super) const MEMBER: u32 = 424_243;
const ANOTHER: u32 = 424_244;
const OUTSIDER: u32 = 424_245;

/// A directory that a group shares, and two of its members.
pub(super) struct Shared {
    pub(super) member: User,
    another: User,
    pub(super) parent: TempDir,
}

/// Who runs lockrun.
#[derive(Clone, Copy)]
pub(super) enum Who {
    Root,
    Member,
    Another,
}

/// Pairs of them.
const PAIRS: [(Who, Who); 4] =
    [(Who::Root, Who::Member), (Who::Member, Who::Root), (Who::Member, Who::Another), (Who::Root, Who::Root)];

impl Shared {
    /// Creates one as the documents say.
    #[track_caller]
    pub(super) fn new() -> Self {
        let shared = Self::without_directory();
        fs::create_dir(shared.locks()).expect("a directory");
        set(&shared.locks(), 0, GROUP, 0o2770);
        shared
    }

    /// The same before the directory was created.
    #[track_caller]
    pub(super) fn without_directory() -> Self {
        let member = User::new(MEMBER, &[GROUP]);
        let another = User::new(ANOTHER, &[GROUP]);
        // In a place where only root can write, as on a server.
        let parent = TempDir::new_in("/var/lib").expect("a temporary directory");
        set(parent.path(), 0, 0, 0o755);
        Self { member, another, parent }
    }

    pub(super) fn locks(&self) -> PathBuf {
        self.parent.path().join("locks")
    }

    pub(super) fn url(&self) -> String {
        format!("file:{}?group={GROUP}", self.locks().display())
    }

    /// Returns this call, made by one of them.
    pub(super) fn by(&self, who: Who, call: &Lockrun) -> Lockrun {
        match who {
            Who::Root => call.in_shell("exec \"$@\""),
            Who::Member => self.member.call(call),
            Who::Another => self.another.call(call),
        }
    }

    /// Carries out a run by one of them, to its end.
    #[track_caller]
    pub(super) fn run(&self, who: Who, options: &[&str], command: &[&str]) -> Output {
        self.by(who, &Lockrun::at(&self.url()).key("k").args(options).command(command)).alone()
    }

    /// Starts a run by one of them that holds the lock until its input is closed.
    #[track_caller]
    fn hold(&self, who: Who, options: &[&str]) -> Open {
        let call = Lockrun::at(&self.url()).key("k").args(options).sh("echo ready; read line || :");
        let mut run = self.by(who, &call).alone_with_open_input();
        run.run.wait_for_line("ready");
        run
    }

    /// Runs one of lockrun's other commands as one of them.
    #[track_caller]
    pub(super) fn other(&self, who: Who, words: &[&str]) -> Output {
        let (word, options) = words.split_first().expect("a command");
        self.by(who, &Lockrun::bare().args([word, "--store", &*self.url()]).args(options)).alone()
    }

    /// Returns what one of them sees of the lock.
    #[track_caller]
    fn status(&self, who: Who) -> Value {
        let output = self.other(who, &["status", "--json", "--key", "k"]).silent();
        let mut keys: Vec<Value> = serde_json::from_slice(&output.stdout).expect("an array in JSON");
        assert_eq!(keys.len(), 1, "{output}");
        keys.remove(0)
    }

    #[track_caller]
    fn until_waiting(&self, who: Who, count: usize) {
        eventually(LONG, &format!("{count} wait"), || {
            self.status(who)["waiters"].as_array().expect("an array").len() == count
        });
    }
}

/// Sets the owner, the group and the mode of a file or directory.
#[track_caller]
pub(super) fn set(path: &Path, uid: u32, gid: u32, mode: u32) {
    chown(path, Some(uid), Some(gid)).expect("root may do this");
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("root may do this");
}

// "Shared by the users of a group, so that a deploy user and root can keep out of each other's way": both ways, by
// commands and by hand; each of them sees who holds the lock.
#[test]
fn root_and_members_exclude_each_other() {
    let shared = Shared::new();
    for (first, second) in PAIRS {
        let held = shared.hold(first, &[]);
        let name = match first {
            Who::Root => "root: ".to_owned(),
            _ => format!("uid {MEMBER}: "),
        };
        shared.run(second, &[], &["echo", "ran"]).exited(75).printed("").said("is held by").said(&name);
        assert_eq!(shared.status(second)["holders"][0]["pid"], held.run.pid());
        held.finish().exited(0);
        shared.run(second, &[], &["echo", "ran"]).exited(0).printed("ran\n").silent();

        let token = shared.other(first, &["acquire", "--key", "k", "--ttl", "none"]).exited(0).silent().stdout();
        shared.run(second, &[], &["echo", "ran"]).exited(75).printed("").said("is held by");
        shared.other(second, &["acquire", "--key", "k"]).exited(75);
        shared.other(first, &["release", "--key", "k", "--token", token.trim()]).exited(0).silent();
        shared.run(second, &[], &["echo", "ran"]).exited(0).printed("ran\n").silent();
    }
}

// "While such a waiter keeps a free lock, a run that does not wait fails (status 69) and names it": also another
// user's, whose descriptors only root may inspect.
#[test]
fn a_stopped_waiter_of_another_member_is_named() {
    let shared = Shared::new();
    let held = shared.hold(Who::Member, &[]);
    let call = Lockrun::at(&shared.url()).key("k").arg("--wait").command(["echo", "my turn"]);
    let waiter = shared.by(Who::Member, &call).spawn_alone();
    shared.until_waiting(Who::Root, 1);
    waiter.signal(Signal::SIGSTOP);
    eventually(LONG, "the waiter is stopped", || state(waiter.pid()) == Some('T'));
    held.finish().exited(0);
    for options in [&[][..], &["--skip"]] {
        let run = shared.run(Who::Another, options, &["echo", "ran"]).exited(69).printed("");
        run.said(&format!("pid {} (uid {MEMBER}: echo 'my turn')", waiter.pid())).said("kill -CONT");
    }
    waiter.signal(Signal::SIGCONT);
    waiter.wait().exited(0).printed("my turn\n").silent();
}

// Fences grow and a sequence goes on, whichever user had the lock last.
#[test]
fn records_are_shared_by_the_group() {
    let shared = Shared::new();
    let mut last = 0;
    for who in [Who::Root, Who::Member, Who::Another, Who::Root] {
        let fence = shared.run(who, &[], &["sh", "-c", "echo $LOCKRUN_FENCE"]).exited(0).silent().stdout();
        let fence: u64 = fence.trim().parse().expect("a number");
        assert!(fence > last, "{fence} after {last}");
        last = fence;
    }
    for (count, who) in [Who::Member, Who::Root, Who::Another].into_iter().enumerate() {
        let call = Lockrun::bare().args(["reserve", "--store", &shared.url()]).key("s").args(["--from", "0"]);
        let call = call.sh("echo $LOCKRUN_VALUE");
        shared.by(who, &call).alone().exited(0).printed(&format!("{count}\n"));
    }
    // Slots, too.
    let held = shared.hold(Who::Member, &["--slots", "2"]);
    let slot = ["sh", "-c", "echo $LOCKRUN_SLOT"];
    shared.run(Who::Root, &["--slots", "2"], &slot).exited(0).printed("1\n");
    held.finish().exited(0);
}

// "Wait in turn": a waiter gets the lock as soon as it is free, and before a newcomer.
#[test]
fn they_wait_in_turn() {
    let shared = Shared::new();
    let log = shared.parent.path().join("log");
    fs::write(&log, "").expect("a file");
    set(&log, 0, GROUP, 0o660);
    for (first, second) in PAIRS {
        fs::write(&log, "").expect("ours");
        let held = shared.hold(first, &[]);
        let mut waiters = Vec::new();
        for (count, who) in [second, first].into_iter().enumerate() {
            let script = format!("echo {count} >>{}", log.display());
            let call = Lockrun::at(&shared.url()).key("k").args(["--wait", "60"]).sh(&script);
            waiters.push(shared.by(who, &call).spawn_alone());
            shared.until_waiting(second, count + 1);
        }
        held.finish().exited(0);
        for waiter in waiters {
            waiter.wait().exited(0).silent();
        }
        assert_eq!(fs::read_to_string(&log).expect("ours"), "0\n1\n");
    }
}

// "A crash frees it at once", and if lockrun alone is killed, the command keeps the lock for as long as it lives.
// Another user cannot break that, nor see all of it.
#[test]
fn a_crash_frees_it_for_the_others() {
    let shared = Shared::new();
    for (first, second) in PAIRS {
        let mut held = shared.hold(first, &[]);
        held.run.kill_everything();
        shared.run(second, &[], &["echo", "ran"]).exited(0).printed("ran\n").silent();

        let mut held = shared.hold(first, &[]);
        held.run.signal(Signal::SIGKILL);
        eventually(LONG, "lockrun is dead", || held.run.has_ended());
        shared.run(second, &[], &["echo", "ran"]).exited(75).printed("").said("is held by");
        let broken = shared.other(second, &["break", "--key", "k"]).exited(75).said("stays with");
        match second {
            Who::Root => broken.said("stop it with kill "),
            _ => broken.said("this user may not see which"),
        };
        held.run.kill_everything();
        shared.run(second, &[], &["echo", "ran"]).exited(0).printed("ran\n").silent();
    }
}

// "Files 0660", and with the sticky bit, which keeps systemd-tmpfiles(8) from removing them: at once, whatever the
// umask is, which the command gets as it was.
#[test]
fn no_umask_keeps_the_others_out() {
    let shared = Shared::new();
    for (key, who, mask) in [("a", Who::Root, 0o077), ("b", Who::Member, 0o777), ("c", Who::Another, 0o002)] {
        let call = Lockrun::at(&shared.url()).key(key).birth(Birth { umask: Some(mask), ..Birth::default() });
        let output = shared.by(who, &call.clone().sh("umask; echo made >/dev/null")).alone().exited(0).silent();
        output.printed(&format!("{mask:04o}\n"));
        let file = fs::metadata(shared.locks().join(key)).expect("a lock leaves its file");
        assert_eq!((file.mode() & 0o7777, file.gid()), (0o1660, GROUP), "{key}");
        for who in [Who::Root, Who::Member, Who::Another] {
            let call = Lockrun::at(&shared.url()).key(key).command(["echo", "ran"]);
            shared.by(who, &call).alone().exited(0).printed("ran\n").silent();
        }
    }
}

// Every command reports to a user who is not in the group that this is why it fails, and does nothing.
#[test]
fn a_user_outside_the_group_is_refused() {
    let shared = Shared::new();
    let outsider = User::new(OUTSIDER, &[]);
    let run = Lockrun::at(&shared.url()).key("k").command(["echo", "ran"]);
    let refused = outsider.call(&run).alone().exited(69).printed("");
    refused.said(&format!("uid {OUTSIDER} is not a member of the group with gid {GROUP}; let root add the user"));
    for words in
        [&["status"][..], &["prune", "--older-than", "0s"], &["acquire", "--key", "k"], &["break", "--key", "k"]]
    {
        let call = Lockrun::bare().args([words[0], "--store", &shared.url()]).args(&words[1..]);
        outsider.call(&call).alone().exited(69).printed("").said("is not a member");
    }
    let doctor = outsider.call(&Lockrun::bare().args(["doctor", "--store", &shared.url()])).alone().exited(69);
    assert!(doctor.stdout().contains("is not a member"), "{doctor}");
    assert_eq!(fs::read_dir(shared.locks()).expect("ours").count(), 0);
}

// "NAME": the name of a group in /etc/group, or its number.
#[test]
fn a_group_by_its_name() {
    let group = fs::read_to_string("/etc/group").expect("every machine has groups");
    let daemon = group.lines().find_map(|line| line.strip_prefix("daemon:")).expect("every machine has this one");
    let gid: u32 = daemon.split(':').nth(1).expect("a number").parse().expect("a number");
    let shared = Shared::new();
    set(&shared.locks(), 0, gid, 0o2770);
    let member = User::new(MEMBER, &[gid]);
    for named in ["daemon", &gid.to_string(), "daem%6Fn"] {
        let url = format!("file:{}?group={named}", shared.locks().display());
        let run = Lockrun::at(&url).key("k").command(["echo", "ran"]);
        member.call(&run).alone().exited(0).printed("ran\n").silent();
        run.run().exited(0).printed("ran\n").silent();
        let refused = shared.by(Who::Another, &run).alone().exited(69).printed("");
        refused.said(&format!("the group \"daemon\" (gid {gid})"));
    }
    let another = Lockrun::at(&shared.url()).key("k").command(["echo", "ran"]).run().exited(69).printed("");
    another.said(&format!("it belongs to the group \"daemon\" (gid {gid}), not to the group with gid {GROUP}"));
}

// "What the members can do to each other is said": each of them can look at, prune and break what the others have left.
#[test]
fn members_see_and_prune_what_others_left() {
    let shared = Shared::new();
    for (first, second) in PAIRS {
        shared.run(first, &[], &["true"]).exited(0).silent();
        shared.other(first, &["acquire", "--key", "other", "--ttl", "none"]).exited(0).silent();
        let seen = shared.other(second, &["status"]).exited(0).silent().stdout();
        assert!(seen.contains("\nk ") && seen.contains("\nother "), "{seen}");
        shared.other(second, &["break", "--key", "other"]).exited(0).said("was taken from");
        shared.other(second, &["prune", "--older-than", "0s"]).exited(0).printed("k\nother\n").silent();
        assert_eq!(fs::read_dir(shared.locks()).expect("ours").count(), 0);
    }
}

// `doctor` names the group, finds nothing wrong, and leaves nothing behind.
#[test]
fn doctor_names_the_group() {
    let shared = Shared::new();
    shared.run(Who::Root, &[], &["true"]).exited(0);
    for who in [Who::Root, Who::Member] {
        let output = shared.other(who, &["doctor"]).silent();
        let text = output.stdout();
        let first = text.lines().next().expect("a line");
        assert!(
            first.starts_with("ok    ") && first.contains(&format!("shared by the group with gid {GROUP}")),
            "{output}"
        );
        // The directory may lie in /tmp.
        let wrong = text.lines().find(|line| !line.starts_with("ok    ") && !line.contains("PrivateTmp"));
        assert_eq!(wrong, None, "{output}");
        assert!(text.lines().count() >= 7, "{output}");
        assert_eq!(fs::read_dir(shared.locks()).expect("ours").count(), 1, "what was tried is gone");
    }
}

// The kernel knows who holds the lock and who waits, so it does not matter whether a member may look at another's
// processes.
#[test]
fn hidden_processes_hold_and_wait() {
    let shared = Shared::new();
    let held = shared.hold(Who::Root, &[]);
    let call = Lockrun::at(&shared.url()).key("k").arg("--wait").command(["echo", "ran"]);
    let waiter = shared.by(Who::Root, &call).spawn_alone();
    shared.until_waiting(Who::Root, 1);
    let hidden = with_mounts("mount -t proc -o hidepid=2 proc /proc");
    let look = |words: &[&str]| {
        let own = words.iter().map(|&word| word.to_owned());
        let words =
            ["sh", "-c", &hidden, "sh"].map(str::to_owned).into_iter().chain(shared.member.words(&[])).chain(own);
        Lockrun::bare().command(words).alone()
    };
    let url = shared.url();
    let output = look(&["status", "--store", &url, "--json", "--key", "k"]).exited(75).silent();
    let seen: Value = serde_json::from_slice(&output.stdout).expect("an array in JSON");
    assert_eq!(seen[0]["holders"][0]["pid"], held.run.pid(), "{output}");
    assert_eq!(seen[0]["waiters"][0]["pid"], waiter.pid(), "{output}");
    look(&["--store", &url, "--key", "k", "--", "echo", "ran"]).exited(75).printed("").said("(root: sh -c");
    held.finish().exited(0);
    waiter.wait().exited(0).printed("ran\n").silent();
}
