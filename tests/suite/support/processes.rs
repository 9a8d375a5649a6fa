//! Finding and killing the processes of a run, including orphans and those in other sessions.

use std::ffi::CStr;
use std::fs::{self, File};
use std::io::Read;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, Uid};

use super::control_group::ControlGroup;
use super::deadline::happens_within;

/// The search path for programs, including those that the tested program starts.
pub(crate) const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// The variable that marks the processes of one run: children, orphans and processes in other sessions inherit it.
pub(crate) const MARK: &str = "SUITE_RUN";

/// Returns the path of a program. Fails the test if it is not installed.
pub(crate) fn find_program(name: &str) -> PathBuf {
    let others = std::env::var("PATH").unwrap_or_default();
    PATH.split(':')
        .chain(others.split(':'))
        .map(|directory| Path::new(directory).join(name))
        .find(|path| path.is_file())
        .unwrap_or_else(|| panic!("these tests need {name}, which is not installed"))
}

/// Fails the test unless it runs as root, which it needs to do `what`.
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

/// Within this time no machine uses all its process ids.
const SOON: Duration = Duration::from_secs(10);

impl First {
    /// Returns the ids of the existing processes and threads that are not older than this process: the kernel assigns
    /// ids in ascending order, and starts again after the greatest. `None` if the ids may have done so since.
    fn and_newer(self) -> Option<Vec<i32>> {
        let load = fs::read_to_string("/proc/loadavg").expect("/proc is mounted");
        let last: i32 = load.trim_end().rsplit(' ').next()?.parse().ok()?;
        let exists = |pid: &i32| kill(Pid::from_raw(*pid), None) != Err(Errno::ESRCH);
        (self.started.elapsed() < SOON && self.pid <= last).then(|| (self.pid..=last).filter(exists).collect())
    }
}

/// Returns the living processes (no zombies) with this mark. With `first`, older processes are skipped: listing all
/// processes again and again, and reading their environments, would cost more than the tested program.
pub(crate) fn marked(mark: &str, first: Option<First>) -> Vec<i32> {
    let wanted = format!("{MARK}={mark}");
    let mut pids = first.and_then(First::and_newer).unwrap_or_else(all);
    let is_of_run = |pid: i32| is_among(wanted.as_bytes(), &read(pid, "environ"));
    pids.retain(|pid| is_of_run(*pid) && is_alive(*pid) && is_process(*pid));
    pids
}

/// Returns the ids of all processes.
fn all() -> Vec<i32> {
    let all = fs::read_dir("/proc").expect("/proc is mounted");
    all.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect()
}

/// Returns whether this is the id of a process, not of another one of its threads.
fn is_process(id: i32) -> bool {
    status(id, "Tgid").is_some_and(|process| process == id.to_string())
}

/// Returns the content of the file `name` of a process in /proc: empty if the process is gone. Most take one call:
/// `fs::read` makes three for a short file, and the tests read very many of these.
fn read(pid: i32, name: &str) -> Vec<u8> {
    let mut content = Vec::new();
    let mut buffer = [0; 16384];
    if let Ok(mut file) = File::open(format!("/proc/{pid}/{name}")) {
        loop {
            let count = file.read(&mut buffer).unwrap_or(0);
            content.extend_from_slice(&buffer[..count]);
            if count < buffer.len() {
                break;
            }
        }
    }
    content
}

/// Returns whether `environment`, in which each variable ends with a zero byte, contains this one.
fn is_among(variable: &[u8], mut environment: &[u8]) -> bool {
    while let Ok(one) = CStr::from_bytes_until_nul(environment) {
        if one.to_bytes() == variable {
            return true;
        }
        environment = &environment[one.count_bytes() + 1..];
    }
    false
}

/// Kills all processes with this mark, and waits until they are dead, for two seconds at most. Returns those that are
/// not dead by then. They die at the same moment, as in a power cut: otherwise one could see another one's end, and
/// release its lock before it dies itself. A loop over kill(2) is too slow for that even if all are stopped first,
/// because some of these deaths make the kernel continue a stopped process.
pub(crate) fn kill_marked(mark: &str, first: Option<First>) -> Vec<i32> {
    let mut dying = marked(mark, first);
    if dying.is_empty() {
        return dying;
    }
    for pid in &dying {
        send(*pid, Signal::SIGSTOP);
    }
    let group = ControlGroup::make("kill").ok();
    happens_within(Duration::from_secs(2), || {
        let left = marked(mark, first);
        // A process that is dying loses its environment, and so its mark, before its locks and connections.
        dying.retain(|pid| is_alive(*pid) && !left.contains(pid));
        dying.extend(&left);
        match &group {
            Some(group) => group.kill(&left),
            // The best that can be done without control groups, or without the right to make one.
            None => left.into_iter().for_each(|pid| send(pid, Signal::SIGKILL)),
        }
        dying.is_empty()
    });
    dying
}

/// Returns the uid of a user without processes that no other test uses: the limit of processes counts all of a user's.
pub(crate) fn a_user_without_processes() -> u32 {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let number = COUNT.fetch_add(1, Ordering::Relaxed);
    // Below 65536, since a container may have no more. Unlikely to be that of another run of these tests.
    40_000 + std::process::id().wrapping_mul(100).wrapping_add(number) % 20_000
}

/// Returns whether the process exists and is not a zombie. While a thread of it still exits, it may only look like one.
pub(crate) fn is_alive(pid: i32) -> bool {
    match state(pid) {
        None | Some('X') => false,
        Some('Z') => status(pid, "Threads").and_then(|count| count.parse().ok()).is_some_and(|count: u32| count > 1),
        Some(_) => true,
    }
}

/// Returns whether a process has a flock(2) lock on this file. The lock is free when the last thread of the last
/// process that has inherited it is gone, whatever /proc shows of them.
pub(crate) fn holds_lock_on(file: &Path) -> bool {
    let file = File::open(file).expect("the file is there");
    match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
        Ok(_) => false,
        Err((_, Errno::EWOULDBLOCK)) => true,
        Err((_, errno)) => panic!("the lock cannot be looked at: {errno}"),
    }
}

/// Returns the process's state in /proc, a letter: R, S, D, T, Z and so on.
pub(crate) fn state(pid: i32) -> Option<char> {
    status(pid, "State")?.chars().next()
}

/// Returns whether this signal was sent to the process, which has not handled it yet.
pub(crate) fn is_pending(pid: i32, signal: Signal) -> bool {
    let pending = status(pid, "ShdPnd").and_then(|mask| u64::from_str_radix(&mask, 16).ok());
    pending.is_some_and(|mask| mask & 1 << (signal as i32 - 1) != 0)
}

/// Returns whether another process traces it.
pub(crate) fn is_traced(pid: i32) -> bool {
    status(pid, "TracerPid").is_some_and(|tracer| tracer != "0")
}

/// Returns a value from /proc/PID/status; `None` if the process is gone. Reading /proc/PID/stat or the environment of
/// another process may take long: the kernel makes the reader wait for a process that is in execve(2).
fn status(pid: i32, name: &str) -> Option<String> {
    let status = read(pid, "status");
    let status = String::from_utf8_lossy(&status);
    let value = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    Some(value.trim().to_owned())
}

/// Describes the processes with this mark, one per line: their states, groups and signals, for the message of a failed
/// test.
pub(crate) fn describe_marked(mark: &str) -> String {
    let fields = ["Name", "State", "PPid", "NSpgid", "SigPnd", "ShdPnd", "SigBlk", "SigIgn", "SigCgt"];
    let describe = |pid: i32| {
        let values = fields.map(|name| format!("{name} {}", status(pid, name).unwrap_or_default()));
        format!("\n  {pid}: {}", values.join(", "))
    };
    marked(mark, None).into_iter().map(describe).collect()
}

/// Returns the children of a process, zombies included.
pub(crate) fn children(parent: i32) -> Vec<i32> {
    let is_child = |pid: &i32| status(*pid, "PPid").and_then(|pid| pid.parse().ok()) == Some(parent);
    all().into_iter().filter(is_child).collect()
}

/// Returns the processor time that a process has used, in clock ticks, a hundred per second; 0 if it is gone.
pub(crate) fn processor_time(pid: i32) -> u64 {
    stat(pid, 14..=15)
}

/// Returns the sum of these fields of /proc/PID/stat, by their numbers in proc(5).
fn stat(pid: i32, fields: RangeInclusive<usize>) -> u64 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // Field 3 follows the name, which may contain anything.
    let behind = stat.rsplit_once(')').map_or("", |(_, behind)| behind).split_ascii_whitespace();
    let wanted = behind.zip(3..).filter(|(_, number)| fields.contains(number));
    wanted.filter_map(|(value, _)| value.parse::<u64>().ok()).sum()
}

/// Sends a signal. It is no failure if the process is already gone.
pub(crate) fn send(pid: i32, signal: Signal) {
    let _ = kill(Pid::from_raw(pid), signal);
}
