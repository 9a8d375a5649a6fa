//! Finding and ending the processes that a run has left, however they are related to it.

use std::fs::{self, File};
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, Uid};

use super::deadline::happens_within;

/// The directories in which programs are looked for, also those that the tested program starts.
pub(crate) const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// The variable by which the processes of one run know each other: it reaches children, orphans and those
/// that went off into another session.
pub(crate) const MARK: &str = "SUITE_RUN";

/// Where a program lies. The tests need it: without it they fail.
pub(crate) fn find_program(name: &str) -> PathBuf {
    let others = std::env::var("PATH").unwrap_or_default();
    PATH.split(':')
        .chain(others.split(':'))
        .map(|directory| Path::new(directory).join(name))
        .find(|path| path.is_file())
        .unwrap_or_else(|| panic!("these tests need {name}, which is not installed"))
}

/// Fails the test if it does not run as root, which it needs in order to do `what`.
#[track_caller]
pub(crate) fn need_root(what: &str) {
    assert!(Uid::effective().is_root(), "this test needs root to {what}: run the tests as root");
}

/// The first process of a run, and when it was started.
#[derive(Clone, Copy)]
pub(crate) struct First {
    pub(crate) pid: i32,
    pub(crate) started: Instant,
}

/// So soon no machine has given all its process ids.
const SOON: Duration = Duration::from_secs(10);

impl First {
    /// Tells the processes that are not older than this one: ids are given in turn, and from the beginning after the greatest. `None` if
    /// that may have come about since.
    fn and_newer(self) -> Option<impl Fn(i32) -> bool> {
        let load = fs::read_to_string("/proc/loadavg").expect("/proc is mounted");
        let last: i32 = load.trim_end().rsplit(' ').next()?.parse().ok()?;
        let is_newer =
            move |pid| if self.pid <= last { (self.pid..=last).contains(&pid) } else { pid >= self.pid || pid <= last };
        (self.started.elapsed() < SOON).then_some(is_newer)
    }
}

/// The living processes (no zombies) that carry this mark. Which is the first of them spares a look at all older ones: to read the
/// environment of every process again and again costs more than what is tested.
pub(crate) fn marked(mark: &str, first: Option<First>) -> Vec<i32> {
    let wanted = format!("{MARK}={mark}");
    let all = fs::read_dir("/proc").expect("/proc is mounted");
    let pids: Vec<i32> = all.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect();
    // After the list was made, so that none in it is newer.
    let may = first.and_then(First::and_newer);
    pids.into_iter()
        .filter(|pid| may.as_ref().is_none_or(|may| may(*pid)))
        .filter(|pid| carries(*pid, wanted.as_bytes()) && is_alive(*pid))
        .collect()
}

fn carries(pid: i32, wanted: &[u8]) -> bool {
    fs::read(format!("/proc/{pid}/environ")).is_ok_and(|all| all.split(|byte| *byte == 0).any(|one| one == wanted))
}

/// Kills all that carry this mark, until none is left. All at once, as a power cut does: none of them is to see another one's end, release
/// a lock in its name, and die only then. A loop over kill(2) is too slow for that even if all are stopped first, because the kernel
/// continues a stopped process at some of these ends.
pub(crate) fn kill_marked(mark: &str, first: Option<First>) {
    let found = marked(mark, first);
    if found.is_empty() {
        return;
    }
    for pid in found {
        send(pid, Signal::SIGSTOP);
    }
    let group = ControlGroup::make();
    happens_within(Duration::from_secs(2), || {
        let left = marked(mark, first);
        match &group {
            _ if left.is_empty() => return true,
            Some(group) => group.kill(&left),
            // Without control groups, or without the right to make one, as well as it can be done.
            None => left.into_iter().for_each(|pid| send(pid, Signal::SIGKILL)),
        }
        false
    });
}

/// The number of a user who runs no process, and whom no other test uses: the limit of processes counts all of a user's.
pub(crate) fn a_user_without_processes() -> u32 {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let number = COUNT.fetch_add(1, Ordering::Relaxed);
    // Below 65536, which is all that a container may have. Far from those of another run of these tests.
    40_000 + std::process::id().wrapping_mul(100).wrapping_add(number) % 20_000
}

/// A control group of the tests' own. It is removed when it is dropped.
struct ControlGroup(PathBuf);

impl ControlGroup {
    /// `None` where there can be none: it takes version 2 of control groups, Linux 5.14, and as a rule root.
    fn make() -> Option<Self> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = own_control_group()?.join(format!("suite-{}-{number}", std::process::id()));
        fs::create_dir(&path).ok()?;
        let group = Self(path);
        group.0.join("cgroup.kill").exists().then_some(group)
    }

    /// Kills these processes in one stroke.
    fn kill(&self, pids: &[i32]) {
        for pid in pids {
            // One that has gone meanwhile cannot be moved.
            let _ = fs::write(self.0.join("cgroup.procs"), pid.to_string());
        }
        fs::write(self.0.join("cgroup.kill"), "1").expect("our own control group");
    }
}

impl Drop for ControlGroup {
    fn drop(&mut self) {
        // It cannot be removed before the last process in it has been reaped.
        let is_done =
            || !matches!(fs::remove_dir(&self.0), Err(error) if error.raw_os_error() == Some(Errno::EBUSY as i32));
        happens_within(Duration::from_secs(2), is_done);
    }
}

/// The directory of our own control group, in version 2.
pub(crate) fn own_control_group() -> Option<PathBuf> {
    let cgroups = fs::read_to_string("/proc/self/cgroup").ok()?;
    let ours = cgroups.lines().find_map(|line| line.strip_prefix("0::/"))?;
    let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
    let mount = mounts.lines().find(|line| line.contains(" - cgroup2 ") && line.split(' ').nth(3) == Some("/"))?;
    Some(Path::new(mount.split(' ').nth(4)?).join(ours))
}

/// Whether the process exists and is more than a zombie.
pub(crate) fn is_alive(pid: i32) -> bool {
    !matches!(state(pid), None | Some('Z' | 'X'))
}

/// Whether a process has a lock, as flock(1) takes it, on this file: it is free when the last thread of the last process that has
/// inherited it is gone, whatever /proc shows of them.
pub(crate) fn holds_lock_on(file: &Path) -> bool {
    let file = File::open(file).expect("the file is there");
    match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
        Ok(_) => false,
        Err((_, Errno::EWOULDBLOCK)) => true,
        Err((_, errno)) => panic!("the lock cannot be looked at: {errno}"),
    }
}

/// The letter that /proc gives for the process: R, S, D, T, Z and so on.
pub(crate) fn state(pid: i32) -> Option<char> {
    status(pid, "State")?.chars().next()
}

/// Whether another process traces it.
pub(crate) fn is_traced(pid: i32) -> bool {
    status(pid, "TracerPid").is_some_and(|tracer| tracer != "0")
}

/// The value in a line of /proc/PID/status; `None` if the process is gone. To read /proc/PID/stat or another process's environment may take
/// long: the kernel lets the reader wait for a process that is within execve(2).
fn status(pid: i32, name: &str) -> Option<String> {
    let status = fs::read(format!("/proc/{pid}/status")).ok()?;
    let status = String::from_utf8_lossy(&status);
    let value = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    Some(value.trim().to_owned())
}

/// The children of a process, those that have ended and were not reaped included.
pub(crate) fn children(parent: i32) -> Vec<i32> {
    let all = fs::read_dir("/proc").expect("/proc is mounted");
    let is_child = |pid: &i32| status(*pid, "PPid").and_then(|pid| pid.parse().ok()) == Some(parent);
    all.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).filter(is_child).collect()
}

/// The processor time that a process has used, in ticks of the system's clock, a hundred a second; none if it is gone.
pub(crate) fn processor_time(pid: i32) -> u64 {
    stat(pid, 14..=15)
}

/// How often a process has touched a page that it had to be given first; none if it is gone.
pub(crate) fn faults(pid: i32) -> u64 {
    stat(pid, 10..=10)
}

/// The sum of these fields of /proc/PID/stat, by their numbers in proc(5).
fn stat(pid: i32, fields: RangeInclusive<usize>) -> u64 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // Behind the name, which may hold anything, comes field 3.
    let behind = stat.rsplit_once(')').map_or("", |(_, behind)| behind).split_ascii_whitespace();
    let wanted = behind.zip(3..).filter(|(_, number)| fields.contains(number));
    wanted.filter_map(|(value, _)| value.parse::<u64>().ok()).sum()
}

/// Sends a signal; that the process has already gone is no failure.
pub(crate) fn send(pid: i32, signal: Signal) {
    let _ = kill(Pid::from_raw(pid), signal);
}
