//! What lockrun looks for among the descriptors of other processes.

use std::fs::{File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;

use nix::libc;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sys::signal::Signal;
use tempfile::TempDir;

use crate::support::namespace::as_first_process;
use crate::support::processes::need_root;
use crate::support::{Holder, Lockrun, Store};

/// A file system whose server never answers, as one on a network may, and a descriptor of ours on it.
struct Hanging {
    place: TempDir,
    _server: File,
    _descriptor: File,
}

impl Hanging {
    fn mount() -> Self {
        need_root("mount a file system");
        let place = TempDir::new().expect("a temporary directory");
        let server = OpenOptions::new().read(true).write(true).open("/dev/fuse").expect("the kernel has FUSE");
        let options = format!("fd={},rootmode=40000,user_id=0,group_id=0", server.as_raw_fd());
        mount(Some("hanging"), place.path(), Some("fuse"), MsFlags::empty(), Some(&*options)).expect("it is mounted");
        // Only a path: to open it for reading would wait for the server.
        let descriptor = OpenOptions::new().read(true).custom_flags(libc::O_PATH).open(place.path()).expect("a path");
        Self { place, _server: server, _descriptor: descriptor }
    }
}

impl Drop for Hanging {
    fn drop(&mut self) {
        let _ = umount2(self.place.path(), MntFlags::MNT_DETACH);
    }
}

// "No request takes longer than the time-out": a descriptor of some process on a file system that hangs keeps neither
// `break` nor the message about a blocked lock from their answer.
#[test]
fn a_hanging_file_system_of_another_process_is_not_asked() {
    let _hanging = Hanging::mount();
    let store = Store::file();
    let holder = Holder::new(&store, "held");
    let call = Lockrun::other("break", &store).args(["--key", "held"]);
    let mut breaking = call.spawn();
    assert!(breaking.comes_to(|run| run.stderr().contains("stop it with kill ")), "break hangs: {}", breaking.stderr());
    breaking.wait().exited(75);
    drop(holder);
    Lockrun::new(&store).key("blocked").command(["true"]).run().exited(0);
    let path = store.locks().join("blocked").display().to_string();
    let script = "echo ready; exec sleep 600";
    let mut flock = Lockrun::bare().command(["flock", "--no-fork", &path, "sh", "-c", script]).spawn_alone();
    flock.wait_for_line("ready");
    let mut blocked = Lockrun::new(&store).key("blocked").command(["echo", "ran"]).spawn();
    let named = format!("pid {} ", flock.pid());
    assert!(blocked.comes_to(|run| run.stderr().contains(&named)), "the run hangs: {}", blocked.stderr());
    blocked.wait().exited(69).printed("");
    flock.signal(Signal::SIGKILL);
}

// A holder in another PID namespace, such as a container's, is not one that "this user may not see": the message names
// the namespace.
#[test]
fn a_holder_in_another_pid_namespace_is_said_to_be_there() {
    need_root("see all processes");
    let store = Store::file();
    let _holder = Holder::new(&store, "held");
    let call = Lockrun::other("break", &store).args(["--key", "held"]);
    let output = call.in_shell(&as_first_process()).alone().exited(75).said("stays with ");
    let output = output.said("it runs outside the PID namespace pid:[");
    assert!(!output.stderr().contains("may not see"), "{output}");
    let own = std::fs::read_link("/proc/self/ns/pid").expect("our own").display().to_string();
    assert!(
        !output.stderr().contains(&own),
        "it names this namespace, not the one from which the holder cannot be seen: {output}"
    );
}
