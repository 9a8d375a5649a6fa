//! Control groups: another's are left alone, and ours are left as they were.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use nix::sys::signal::Signal;
use tempfile::TempDir;

use crate::support::calm::late;
use crate::support::control_group::ControlGroup;
use crate::support::processes::{find_program, is_alive, need_root};
use crate::support::store::{on_every_lease_store, on_every_store};
use crate::support::{LONG, Lockrun, eventually};

/// A control group that is marked as delegated.
struct Delegated(ControlGroup);

impl Delegated {
    #[track_caller]
    fn make(name: &str) -> Self {
        need_root("mark a control group as delegated");
        let made = Self(ControlGroup::need(name));
        let mark = "import os, sys; os.setxattr(sys.argv[1], 'trusted.delegate', b'1')";
        let marked = Command::new(find_program("python3")).args(["-c", mark]).arg(made.0.path()).output();
        let marked = marked.expect("python3 starts");
        assert!(marked.status.success(), "this test needs to mark {}: {marked:?}", made.0.path().display());
        made
    }

    /// Returns a shell script that executes its arguments in this group.
    fn entering(&self) -> String {
        self.0.entering()
    }

    /// Returns the groups below this one.
    fn below(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(self.0.path()).expect("our own group");
        entries.map(|entry| entry.expect("our own group").path()).filter(|path| path.is_dir()).collect()
    }

    /// Asserts that no group is left below this one. A process that gets no processor, and so does not exit, keeps its group.
    #[track_caller]
    fn has_none_below(&self) {
        let below = self.below();
        if !below.is_empty() {
            late(&format!("{below:?} is left"));
        }
    }
}

// "Transparent": the command is in the control groups in which it would be without lockrun.
on_every_store!(the_command_stays_in_its_control_groups, |store| {
    let call = Lockrun::new(store).key("cgroup").command(["cat", "/proc/self/cgroup"]);
    let (alone, under) = (call.alone().exited(0), call.run().exited(0).silent());
    assert_eq!(under.stdout(), alone.stdout());
});

/// Several lines of processes, in sessions of their own, each of which keeps replacing itself by a child.
const FORKS: &str = "
import os, time
def line():
    while True:
        time.sleep(0.005)
        if os.fork() != 0:
            os._exit(0)
        os.setsid()
for _ in range(4):
    if os.fork() == 0:
        line()
print('ready', flush=True)
time.sleep(600)
";

// "If lockrun is killed, the command's processes are dead before the lease can pass on": also those that keep replacing themselves, and
// their control group is gone.
on_every_lease_store!(what_forks_fast_is_dead_too, |store| {
    let group = Delegated::make(&format!("forks-{}", store.name()));
    let python = find_program("python3");
    let words = [python.to_str().expect("a plain path"), "-c", FORKS];
    let call = Lockrun::new(store).key("cgroup").args(["--ttl", "3s"]).command(words);
    let mut run = call.in_shell(&group.entering()).spawn_alone();
    run.wait_for_line("ready");
    let below = group.below();
    assert_eq!(below.len(), 1, "the command has a group of its own");
    let inside = fs::read_to_string(below[0].join("cgroup.procs")).expect("our own group");
    assert!(inside.lines().count() >= 2, "the command and its children are in it: {inside:?}");
    run.signal(Signal::SIGKILL);
    eventually(LONG, "everything is dead", || run.has_ended() && run.processes().is_empty());
    eventually(LONG, "the group is gone", || group.below().is_empty());
    let output = Lockrun::new(store).key("cgroup").args(["--wait", "20s"]).command(["echo", "ran"]).run();
    output.exited(0).printed("ran\n").silent();
});

// "`--max-runtime DURATION`: then TERM, KILL, exit 124": also processes that fork fast, on every store, and the group is gone.
on_every_store!(what_forks_fast_is_ended_in_time, |store| {
    let group = Delegated::make(&format!("limit-{}", store.name()));
    let python = find_program("python3");
    let words = [python.to_str().expect("a plain path"), "-c", FORKS];
    let call = Lockrun::new(store).key("cgroup").args(["--max-runtime", "1s", "--kill-after", "0.5s"]);
    let mut run = call.command(words).in_shell(&group.entering()).spawn_alone();
    eventually(LONG, "the run has ended", || run.has_ended());
    assert_eq!(run.processes(), Vec::<i32>::new());
    run.wait().exited(124);
    assert_eq!(group.below(), Vec::<PathBuf>::new());
});

// "`--descendants leave`: release anyway": a daemon that was left behind lives on in the group that it would be in
// without lockrun.
on_every_store!(a_daemon_goes_back_to_its_group, |store| {
    let group = Delegated::make(&format!("daemon-{}", store.name()));
    let directory = TempDir::new().expect("a temporary directory");
    let id = directory.path().join("id");
    let script = format!(
        "setsid sh -c 'echo $$ >{0}.new; mv {0}.new {0}; exec sleep 600' & while ! [ -e {0} ]; do sleep 0.01; done",
        id.display()
    );
    let call = Lockrun::new(store).key("cgroup").sh(&script);
    let run = call.in_shell(&group.entering()).spawn_alone();
    run.wait_and_leave(|output| {
        output.exited(0).silent();
        let text = fs::read_to_string(&id).expect("it was written");
        let daemon: i32 = text.trim().parse().expect("a number");
        assert!(is_alive(daemon), "the daemon is left alone");
        let cgroup = fs::read_to_string(format!("/proc/{daemon}/cgroup")).expect("it lives");
        let name = group.0.path().file_name().and_then(|name| name.to_str()).expect("a plain name");
        assert!(cgroup.lines().any(|line| line.starts_with("0::") && line.ends_with(name)), "{cgroup}");
        group.has_none_below();
    });
});

// The group is removed even while processes in it are exiting, which cannot be moved out.
on_every_store!(a_group_is_removed_under_what_is_exiting, |store| {
    let group = Delegated::make(&format!("exiting-{}", store.name()));
    let script = "i=0; while [ $i -lt 40 ]; do setsid sleep 0.0$i & i=$((i + 1)); done";
    let call = Lockrun::new(store).key("cgroup").sh(script);
    for _ in 0..5 {
        let run = call.clone().in_shell(&group.entering()).spawn_alone();
        run.wait_and_leave(|output| {
            output.exited(0).silent();
        });
        group.has_none_below();
    }
});
