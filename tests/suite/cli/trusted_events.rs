//! To which files lockrun appends its events.

use std::fs::{self, File, OpenOptions};
use std::io::Read;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt, chown, lchown, symlink};
use std::path::{Path, PathBuf};

use nix::fcntl::{AT_FDCWD, AtFlags};
use nix::sys::stat::Mode;
use tempfile::TempDir;

use crate::support::config::UserConfig;
use crate::support::processes::need_root;
use crate::support::user::User;
use crate::support::{Lockrun, Output, Store};

/// The second user.
const OTHER: u32 = 65534;

/// A directory with a file that only root can write, and a directory that everybody can use, as /tmp.
struct Scene {
    place: TempDir,
    store: Store,
}

impl Scene {
    fn make() -> Self {
        let scene = Self { place: TempDir::new().expect("a temporary directory"), store: Store::file() };
        mode(scene.place.path(), 0o755);
        fs::create_dir(scene.shared()).expect("a directory");
        mode(&scene.shared(), 0o1777);
        fs::write(scene.victim(), "root's own\n").expect("a file");
        scene
    }

    fn shared(&self) -> PathBuf {
        self.place.path().join("shared")
    }

    fn victim(&self) -> PathBuf {
        self.place.path().join("victim")
    }

    /// Runs a command whose events go to this file.
    fn run(&self, events: &Path) -> Output {
        Lockrun::new(&self.store).key("k").arg("--events").arg(events).command(["echo", "ran"]).run()
    }

    /// Asserts that the run is refused with this reason before anything is touched, wherever the file is named.
    #[track_caller]
    fn is_refused(&self, events: &Path, why: &str) {
        let user = UserConfig::with(&format!("events = \"{}\"", events.display()));
        let locks = self.place.path().join("untouched");
        let call = || Lockrun::at(&format!("file:{}", locks.display())).key("k").command(["echo", "ran"]);
        for (call, source) in [
            (call().arg("--events").arg(events), "--events: "),
            (call().env("LOCKRUN_EVENTS", events), "LOCKRUN_EVENTS: "),
            (user.of(call()), &format!("{}events: ", user.line(1))),
        ] {
            let output = call.run().exited(64).printed("");
            let output =
                output.said(&format!("lockrun: {source}cannot append events to {}: ", events.display())).said(why);
            assert_eq!(output.stderr().lines().count(), 1, "{output}");
        }
        assert!(!locks.exists(), "the store was touched");
        assert_eq!(fs::read_to_string(self.victim()).expect("it is there"), "root's own\n");
    }

    /// Asserts that the events of a run are appended to this file.
    #[track_caller]
    fn is_used(&self, events: &Path) {
        self.run(events).exited(0).printed("ran\n").silent();
        let text = fs::read_to_string(events).expect("it is there");
        assert!(text.contains("\"event\":\"acquired\"") && text.ends_with("}\n"), "{text}");
    }
}

fn mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("our own");
}

// "Never trust a path component that another user could plant": root's events are not appended through another user's
// link, neither to a file that is there nor to one that the run would create.
#[test]
fn no_link_of_another_user_leads_to_the_events() {
    need_root("give files away");
    let scene = Scene::make();
    let (link, created) = (scene.shared().join("events"), scene.place.path().join("created"));
    for target in [scene.victim(), created.clone()] {
        symlink(&target, &link).expect("a link");
        lchown(&link, Some(OTHER), None).expect("it is given away");
        scene.is_refused(&link, "belongs to uid 65534");
        // Behind a link of our own, and a directory that is a link.
        let ours = scene.place.path().join("ours");
        symlink(&link, &ours).expect("a link");
        scene.is_refused(&ours, "belongs to uid 65534");
        fs::remove_file(&ours).expect("ours");
        fs::remove_file(&link).expect("in our directory");
        symlink(scene.place.path(), &link).expect("a link");
        lchown(&link, Some(OTHER), None).expect("it is given away");
        scene.is_refused(&link.join(target.file_name().expect("a name")), "belongs to uid 65534");
        fs::remove_file(&link).expect("in our directory");
    }
    assert!(!created.exists(), "a file was created where another user wanted it");
    // Our own links and root's lead where they lead, in a directory of our own.
    let ours = scene.place.path().join("ours");
    symlink(&created, &ours).expect("a link");
    scene.is_used(&ours);
}

// ... nor through root's own link, to which another user has given the name of the events: by a hard link, or by
// renaming it, both of which keep its owner. Whether the directory is everybody's and sticky, or a group's, no link in
// it is followed.
#[test]
fn no_link_is_followed_where_others_can_name_it() {
    need_root("be another user");
    let scene = Scene::make();
    let group = scene.place.path().join("group");
    fs::create_dir(&group).expect("a directory");
    chown(&group, Some(0), Some(OTHER)).expect("a group's");
    mode(&group, 0o2775);
    let roots = group.join("latest");
    for directory in [scene.shared(), group.clone()] {
        let events = directory.join("events");
        symlink(scene.victim(), &roots).expect("a link of root's");
        nix::unistd::linkat(AT_FDCWD, &roots, AT_FDCWD, &events, AtFlags::empty()).expect("a second name");
        scene.is_refused(&events, "is a symbolic link in a directory that others can write to; name the file itself");
        fs::remove_file(&events).expect("in our directory");
        fs::rename(&roots, &events).expect("renamed");
        scene.is_refused(&events, "is a symbolic link in a directory that others can write to; name the file itself");
        fs::remove_file(&events).expect("in our directory");
        symlink(scene.place.path(), &events).expect("a link of root's");
        scene.is_refused(&events.join("victim"), "is a symbolic link in a directory that others can write to");
        fs::remove_file(&events).expect("in our directory");
    }
    scene.is_used(&group.join("events"));
}

// What /proc leads to without a path is not found by the text of its link, which names another file.
#[test]
fn no_path_leads_through_a_link_of_proc() {
    let scene = Scene::make();
    for through in ["/proc/self/cwd", "/proc/self/root", "/proc/thread-self/cwd"] {
        let events = PathBuf::from(format!("{through}{}", scene.victim().display()));
        scene.is_refused(&events, "its path leads through /proc/");
    }
}

// ... nor in another user's directory, or one that everybody can change, nor to another user's file or FIFO, nor to a
// file that has a second name where others can make one.
#[test]
fn no_other_user_chooses_the_file_of_events() {
    need_root("give files away");
    let scene = Scene::make();
    let directory = scene.place.path().join("directory");
    fs::create_dir(&directory).expect("a directory");
    let events = directory.join("events");
    chown(&directory, Some(OTHER), None).expect("it is given away");
    scene.is_refused(&events, "belongs to uid 65534");
    fs::create_dir(directory.join("below")).expect("a directory");
    scene.is_refused(&directory.join("below/events"), "belongs to uid 65534");
    chown(&directory, Some(0), None).expect("it is taken back");
    mode(&directory, 0o777);
    scene.is_refused(&events, "others can write to ");
    scene.is_refused(&events, "; or open the file for lockrun, for example with --events /dev/fd/3 3>>FILE");
    scene.is_refused(&directory.join("below/events"), "others can write to ");
    let file = scene.shared().join("file");
    File::create(&file).expect("a file");
    chown(&file, Some(OTHER), None).expect("it is given away");
    scene.is_refused(&file, "belongs to uid 65534");
    scene.is_refused(&file, "; or open the file for lockrun, for example with --events /dev/fd/3 3>>FILE");
    let fifo = scene.shared().join("fifo");
    nix::unistd::mkfifo(&fifo, Mode::S_IRWXU).expect("a FIFO");
    chown(&fifo, Some(OTHER), None).expect("it is given away");
    scene.is_refused(&fifo, "belongs to uid 65534");
    let second = scene.shared().join("second");
    fs::hard_link(scene.victim(), &second).expect("a second name");
    scene.is_refused(&second, "has another name");
    assert!(!directory.join("below/events").exists());
}

// What is safe stays usable: a directory of one's own, /tmp, a log directory of a group, and whatever the caller has
// opened.
#[test]
fn usual_files_of_events_are_used() {
    need_root("run as another user");
    let scene = Scene::make();
    scene.is_used(&scene.place.path().join("events"));
    scene.is_used(&scene.shared().join("events"));
    let logs = scene.place.path().join("logs");
    fs::create_dir(&logs).expect("a directory");
    chown(&logs, Some(0), Some(4)).expect("a group's");
    mode(&logs, 0o2775);
    scene.is_used(&logs.join("events"));
    // Another name in a directory that only root can write to, as of a backup.
    fs::hard_link(scene.place.path().join("events"), scene.place.path().join("backup")).expect("a second name");
    scene.is_used(&scene.place.path().join("events"));
    // Devices, descriptors and FIFOs.
    for (path, script) in [
        ("/dev/null", "exec \"$@\""),
        ("/dev/stderr", "exec \"$@\" 2>\"$FILE\""),
        ("/dev/fd/3", "exec \"$@\" 3>\"$FILE\""),
        ("/proc/self/fd/3", "\"$@\" 3>&1 >/dev/null | cat >\"$FILE\""),
        ("link", "exec \"$@\" 2>\"$FILE\""),
    ] {
        let file = scene.place.path().join("caught");
        let link = scene.place.path().join("link");
        if path == "link" {
            symlink("/dev/stderr", &link).expect("a link");
        }
        let path = if path == "link" { &link } else { Path::new(path) };
        let call = Lockrun::new(&scene.store).key("k").arg("--events").arg(path).command(["true"]);
        call.env("FILE", &file).in_shell(script).alone().exited(0).silent();
        if path != Path::new("/dev/null") {
            let text = fs::read_to_string(&file).expect("it is there");
            assert!(text.contains("\"event\":\"acquired\""), "{}: {text}", path.display());
        }
        let _ = fs::remove_file(&file);
    }
    let fifo = scene.place.path().join("fifo");
    nix::unistd::mkfifo(&fifo, Mode::S_IRWXU).expect("a FIFO");
    let mut reader = OpenOptions::new().read(true).custom_flags(nix::libc::O_NONBLOCK).open(&fifo).expect("it opens");
    // A log shipper's own, and a log that belongs to a service, as after logrotate's `create 0640 syslog adm`.
    for owner in [0, OTHER] {
        chown(&fifo, Some(owner), None).expect("root's or given away");
        scene.run(&fifo).exited(0).printed("ran\n").silent();
        let mut text = String::new();
        reader.read_to_string(&mut text).expect("it is text");
        assert!(text.contains("\"event\":\"acquired\""), "{text}");
    }
    let log = scene.place.path().join("log");
    File::create(&log).expect("a file");
    mode(&log, 0o640);
    chown(&log, Some(OTHER), None).expect("it is given away");
    scene.is_used(&log);
    // A user in a directory of its own, and root's file for all.
    let user = User::new(OTHER, &[]);
    let home = scene.place.path().join("home");
    fs::create_dir(&home).expect("a directory");
    chown(&home, Some(OTHER), None).expect("it is given away");
    File::create(scene.place.path().join("all")).expect("a file");
    mode(&scene.place.path().join("all"), 0o666);
    for file in ["home/events", "all"] {
        let events = scene.place.path().join(file);
        let locks = format!("file:{}", home.join("locks").display());
        let call = Lockrun::at(&locks).key("k").arg("--events").arg(&events).command(["true"]);
        user.call(&call).alone().exited(0).silent();
        assert!(fs::read_to_string(&events).expect("it is there").contains("\"event\":\"acquired\""));
    }
}
