//! Control groups of the tests' own, in version 2: to freeze processes, or to kill them at the same moment.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use nix::errno::Errno;

use super::deadline::{LONG, eventually, happens_within};

/// A control group below that of the tests. What is left in it is killed, and it is removed, when this is dropped.
pub(crate) struct ControlGroup(PathBuf);

impl ControlGroup {
    /// Makes one. This needs version 2 of control groups, Linux 5.14, and usually root; the error says what is missing.
    pub(crate) fn make(name: &str) -> Result<Self, String> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let own = own_control_group().ok_or("version 2 of control groups is not mounted")?;
        let path = own.join(format!("suite-{}-{number}-{name}", std::process::id()));
        fs::create_dir(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        let group = Self(path);
        if group.0.join("cgroup.kill").exists() {
            Ok(group)
        } else {
            Err("there is no cgroup.kill, which Linux has since 5.14".into())
        }
    }

    /// Makes one. Fails the test if that is impossible.
    #[track_caller]
    pub(crate) fn need(name: &str) -> Self {
        Self::make(name).unwrap_or_else(|why| panic!("this test needs a control group: {why}"))
    }

    /// Returns a shell script that executes its arguments in this group.
    pub(crate) fn entering(&self) -> String {
        format!("echo 0 >'{}/cgroup.procs' && exec \"$@\"", self.0.display())
    }

    /// Kills these processes at the same moment.
    pub(crate) fn kill(&self, pids: &[i32]) {
        for pid in pids {
            // A process that has ended meanwhile cannot be moved.
            let _ = fs::write(self.0.join("cgroup.procs"), pid.to_string());
        }
        self.write("cgroup.kill", "1");
    }

    /// Freezes its processes. They get no processor until they are thawed, but can be killed.
    #[track_caller]
    pub(crate) fn freeze(&self) {
        self.write("cgroup.freeze", "1");
        eventually(LONG, "the processes are frozen", || {
            let events = fs::read_to_string(self.0.join("cgroup.events")).expect("our own control group");
            events.lines().any(|line| line == "frozen 1")
        });
    }

    pub(crate) fn thaw(&self) {
        self.write("cgroup.freeze", "0");
    }

    fn write(&self, file: &str, value: &str) {
        fs::write(self.0.join(file), value).expect("our own control group");
    }
}

impl Drop for ControlGroup {
    fn drop(&mut self) {
        let _ = fs::write(self.0.join("cgroup.kill"), "1");
        // It cannot be removed until its last process has been reaped.
        happens_within(Duration::from_secs(2), || {
            for below in fs::read_dir(&self.0).into_iter().flatten().flatten() {
                let _ = fs::remove_dir(below.path());
            }
            !matches!(fs::remove_dir(&self.0), Err(error) if error.raw_os_error() == Some(Errno::EBUSY as i32))
        });
    }
}

/// Returns the directory of this process's control group, in version 2.
fn own_control_group() -> Option<PathBuf> {
    let cgroups = fs::read_to_string("/proc/self/cgroup").ok()?;
    let ours = cgroups.lines().find_map(|line| line.strip_prefix("0::/"))?;
    let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
    let mount = mounts.lines().find(|line| line.contains(" - cgroup2 ") && line.split(' ').nth(3) == Some("/"))?;
    Some(Path::new(mount.split(' ').nth(4)?).join(ours))
}
