//! Control groups of the tests' own, in version 2: to freeze processes, or to kill them at the same moment.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use super::deadline::happens_within;
use super::processes::need_root;

/// A control group below that of the tests. What is left in it is killed, and it is removed, when this is dropped.
pub(crate) struct ControlGroup(PathBuf);

impl ControlGroup {
    /// Makes one. `None` if that is impossible: it needs version 2 of control groups, Linux 5.14, and usually root.
    pub(crate) fn make(name: &str) -> Option<Self> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = own_control_group()?.join(format!("suite-{}-{number}-{name}", std::process::id()));
        fs::create_dir(&path).ok()?;
        let group = Self(path);
        group.0.join("cgroup.kill").exists().then_some(group)
    }

    /// Makes one. Fails the test if that is impossible.
    #[track_caller]
    pub(crate) fn need(name: &str) -> Self {
        need_root("make a control group");
        Self::make(name)
            .expect("this test needs version 2 of control groups, and cgroup.kill, which Linux has since 5.14")
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    /// Returns a shell script that executes its arguments in this group.
    pub(crate) fn entering(&self) -> String {
        format!("echo 0 >{}/cgroup.procs && exec \"$@\"", self.0.display())
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
    pub(crate) fn freeze(&self) {
        self.write("cgroup.freeze", "1");
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
        // It cannot be removed until its last process has been reaped. After a failure it may stay.
        happens_within(Duration::from_secs(2), || {
            for below in fs::read_dir(&self.0).into_iter().flatten().flatten() {
                let _ = fs::remove_dir(below.path());
            }
            fs::remove_dir(&self.0).is_ok()
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
