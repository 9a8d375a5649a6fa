//! Which directories are refused as a group's, and with which messages.

use std::fs;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::Path;

use nix::sys::stat::Mode;

use super::group::{GROUP, MEMBER, Shared, Who, set};
use crate::support::processes::find_program;
use crate::support::{Lockrun, Output};

/// Returns the command that the message names.
fn advice(output: &Output) -> String {
    let stderr = output.stderr();
    let (_, command) = stderr.split_once("let root ").unwrap_or_else(|| panic!("no command in: {output}"));
    command.split_once(": ").expect("a colon before the command").1.trim_end().to_owned()
}

/// Asserts that the message has no command to paste.
#[track_caller]
fn has_no_command(output: &Output) {
    for word in ["install", "chmod", "chgrp", "let root run"] {
        assert!(!output.stderr().contains(word), "{output}");
    }
}

/// Returns the owner, group, mode and number of entries.
fn look(path: &Path) -> (u32, u32, u32, usize) {
    let metadata = fs::symlink_metadata(path).expect("it is there");
    let entries = fs::read_dir(path).map_or(0, Iterator::count);
    (metadata.uid(), metadata.gid(), metadata.mode(), entries)
}

/// Asserts that both are refused with these words, and that nothing is touched. Returns root's message.
#[track_caller]
fn is_refused(shared: &Shared, words: &str) -> Output {
    let before = look(&shared.locks());
    let mut told = Vec::new();
    for who in [Who::Member, Who::Root] {
        let output = shared.run(who, &[], &["echo", "ran"]).exited(69).printed("");
        told.push(output.said(&shared.locks().display().to_string()).said(words));
        assert_eq!(look(&shared.locks()), before);
    }
    told.pop().expect("two were told")
}

/// Follows the advice, and asserts that it helps.
#[track_caller]
fn is_mended(shared: &Shared, output: &Output) {
    Lockrun::bare().command(["sh", "-c", &advice(output)]).alone().exited(0);
    for who in [Who::Member, Who::Root] {
        shared.run(who, &[], &["echo", "ran"]).exited(0).printed("ran\n").silent();
    }
    assert_eq!(look(&shared.locks()), (0, GROUP, 0o42770, 1));
}

// A group's directory is created by hand: one that a member made would be useless to the others, and a mistyped path
// must not be another lock. The message says what to type.
#[test]
fn a_missing_directory_is_not_made() {
    let shared = Shared::without_directory();
    for who in [Who::Member, Who::Root] {
        let output = shared.run(who, &[], &["echo", "ran"]).exited(69).printed("").said("does not exist");
        let wanted = format!("install -d -o root -g {GROUP} -m 2770 {}", shared.locks().display());
        assert_eq!(advice(&output), wanted);
        shared.other(who, &["status"]).exited(69).said("does not exist");
        assert!(!shared.locks().exists());
    }
    is_mended(&shared, &shared.run(Who::Root, &[], &["true"]));
}

// "2770, owner root or ours": any other mode, owner or group is refused, with what to do. (3770, because the kernel may
// keep root from opening another's file in a sticky directory.)
#[test]
fn any_other_mode_is_refused() {
    for mode in [0o770, 0o2775, 0o2777, 0o2772, 0o3770, 0o700, 0o755, 0o2750] {
        let shared = Shared::new();
        set(&shared.locks(), 0, GROUP, mode);
        let told = is_refused(&shared, &format!("its mode is {mode:04o}; a group's directory has 2770"));
        // A sticky directory is for everyone, as /tmp is.
        if mode & 0o1000 == 0 {
            is_mended(&shared, &told);
        } else {
            has_no_command(&told);
        }
    }
}

// A directory may have another purpose, or be replaced before root has typed the command.
#[test]
fn no_command_spoils_another_directory() {
    let shared = Shared::new();
    fs::write(shared.locks().join("something"), "").expect("a file");
    set(&shared.locks(), 0, 0, 0o755);
    has_no_command(&is_refused(&shared, "it belongs to the group"));
    set(&shared.locks(), 0, GROUP, 0o755);
    has_no_command(&is_refused(&shared, "its mode is 0755; a group's directory has 2770"));
    for path in ["/", "/tmp"] {
        let url = format!("file:{path}?group={GROUP}");
        has_no_command(&Lockrun::at(&url).key("k").command(["echo", "ran"]).run().exited(69).printed(""));
    }
    // Where others can put things.
    fs::remove_file(shared.locks().join("something")).expect("ours");
    set(shared.parent.path(), 0, 0, 0o1777);
    has_no_command(&is_refused(&shared, "its mode is 0755; a group's directory has 2770"));
    fs::remove_dir(shared.locks()).expect("ours");
    for who in [Who::Member, Who::Root] {
        let output = shared.run(who, &[], &["echo", "ran"]).exited(69).printed("");
        has_no_command(&output.said("does not exist").said("others than root can write to "));
    }
}

#[test]
fn another_owner_is_refused() {
    let shared = Shared::new();
    set(&shared.locks(), 65534, GROUP, 0o2770);
    let told = is_refused(&shared, "it belongs to uid 65534, not to root");
    has_no_command(&told.said("have it removed, or name another"));
    // A member's own directory is that member's alone.
    set(&shared.locks(), MEMBER, GROUP, 0o2770);
    shared.run(Who::Member, &[], &["echo", "ran"]).exited(0).printed("ran\n").silent();
    for who in [Who::Another, Who::Root] {
        shared.run(who, &[], &["echo", "ran"]).exited(69).printed("").said(&format!("it belongs to uid {MEMBER}"));
    }
}

#[test]
fn another_group_is_refused() {
    let shared = Shared::new();
    set(&shared.locks(), 0, 65533, 0o2770);
    let told =
        is_refused(&shared, &format!("it belongs to the group with gid 65533, not to the group with gid {GROUP}"));
    is_mended(&shared, &told);
}

// "No symbolic links", and no other files.
#[test]
fn what_is_no_directory_is_refused() {
    let shared = Shared::new();
    let real = shared.parent.path().join("real");
    fs::rename(shared.locks(), &real).expect("ours");
    symlink(&real, shared.locks()).expect("a link");
    is_refused(&shared, "symbolic link");
    let slash = format!("file:{}/?group={GROUP}", shared.locks().display());
    Lockrun::at(&slash).key("k").command(["echo", "ran"]).run().exited(69).printed("").said("symbolic link");
    assert_eq!(look(&real), (0, GROUP, 0o42770, 0));
    fs::remove_file(shared.locks()).expect("ours");
    fs::write(shared.locks(), "here").expect("a file");
    is_refused(&shared, "not a directory");
    assert_eq!(fs::read_to_string(shared.locks()).expect("ours"), "here");
    fs::remove_file(shared.locks()).expect("ours");
    nix::unistd::mkfifo(&shared.locks(), Mode::S_IRUSR).expect("a FIFO");
    is_refused(&shared, "not a directory");
}

// "Nothing else writable": an access control list may let in whom the mode does not show.
#[test]
fn an_access_control_list_is_refused() {
    let python = find_program("python3");
    // Its owner, uid 65534, its group, the mask and others.
    let list = "b'\\2\\0\\0\\0'+b''.join(struct.pack('<HHI', tag, bits, who) for tag, bits, who in \
                [(1, 7, 2**32-1), (2, 7, 65534), (4, 7, 2**32-1), (16, 7, 2**32-1), (32, 0, 2**32-1)])";
    for kind in ["access", "default"] {
        let shared = Shared::new();
        let script = format!(
            "import os, struct; os.setxattr({:?}, 'system.posix_acl_{kind}', {list})",
            shared.locks().display().to_string()
        );
        Lockrun::bare().command([python.as_os_str(), "-c".as_ref(), script.as_ref()]).alone().exited(0);
        is_refused(&shared, "setfacl -b ");
    }
}

// Nobody else may be able to put another directory in its place: every directory on the way is root's (or ours), and
// nobody else can write to it, unless it is sticky as /tmp is.
#[test]
fn a_parent_that_others_can_write_is_refused() {
    let shared = Shared::new();
    let parent = shared.parent.path();
    let name = parent.display().to_string();
    for (gid, mode) in [(0, 0o777), (0, 0o775), (GROUP, 0o775), (GROUP, 0o2770)] {
        set(parent, 0, gid, mode);
        is_refused(&shared, &format!("chmod go-w {name}"));
    }
    set(parent, 0, 0, 0o1777);
    for who in [Who::Member, Who::Root] {
        shared.run(who, &[], &["echo", "ran"]).exited(0).printed("ran\n").silent();
    }
    set(parent, 65534, 0, 0o755);
    is_refused(&shared, &format!("the directory {name} on its path belongs to uid 65534"));
    set(parent, MEMBER, 0, 0o755);
    shared.run(Who::Root, &[], &["echo", "ran"]).exited(69).printed("").said(&format!("{name} on its path belongs to"));
    // Nor is root advised to create it where others can write.
    set(parent, 0, 0, 0o777);
    for missing in ["missing", "not/yet/there"] {
        let url = format!("file:{name}/{missing}?group={GROUP}");
        let output = Lockrun::at(&url).key("k").command(["echo", "ran"]).run().exited(69).printed("");
        let output = output.said(&format!("chmod go-w {name}"));
        assert!(!output.stderr().contains("install"), "{output}");
    }
    // Also in a directory far above.
    set(parent, 0, 0, 0o755);
    let between = parent.join("between");
    fs::create_dir(&between).expect("a directory");
    set(&between, 0, 0, 0o757);
    fs::create_dir(between.join("deep")).expect("a directory");
    set(&between.join("deep"), 0, 0, 0o755);
    fs::rename(shared.locks(), between.join("deep/locks")).expect("ours");
    let url = format!("file:{}/deep/locks?group={GROUP}", between.display());
    let run = Lockrun::at(&url).key("new").command(["echo", "ran"]);
    run.run().exited(69).printed("").said(&format!("chmod go-w {}", between.display()));
    assert!(!between.join("deep/locks/new").exists());
}

// "The same store named once with and once without ?group must not silently be two stores."
#[test]
fn a_group_that_is_not_named_is_refused() {
    let shared = Shared::new();
    let plain = Lockrun::at(&format!("file:{}", shared.locks().display())).key("k").command(["echo", "ran"]);
    for who in [Who::Member, Who::Root] {
        let output = shared.by(who, &plain).alone().exited(69).printed("");
        output.said("shares it").said(&format!("add ?group={GROUP} to the store's URL"));
        assert_eq!(look(&shared.locks()), (0, GROUP, 0o42770, 0));
    }
}
