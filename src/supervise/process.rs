//! Processes as /proc shows them, and signals to processes that are not children.
//!
//! They are read from /proc/PID/status, because reading another process's /proc/PID/stat may take long: recent kernels
//! make the reader wait for a process that is inside execve(2), which on a busy machine may wait for a processor for
//! seconds, while the lease expires.

#![allow(unsafe_code)]

use std::collections::{HashMap, HashSet};
use std::fs;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::path::Path;

use libc::pid_t;
use nix::errno::Errno;

use crate::sys::children as own_children;

/// A process as /proc shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Process {
    pub(super) pid: pid_t,
    pub(super) parent: pid_t,
    /// The state of its main thread: `R`, `S`, `T`, `Z` and so on, see proc(5).
    state: u8,
    /// How many threads it has. The main thread counts until the process is reaped, even if it has ended.
    threads: u32,
}

impl Process {
    /// Returns whether it is stopped, so that it does not handle a signal before it is continued.
    pub(super) fn is_stopped(self) -> bool {
        if self.has_no_main_thread() { self.has_stopped_thread() } else { self.state == b'T' }
    }

    /// Returns whether it has ended and is waiting to be reaped. A process lives as long as any of its threads, not
    /// only the main one.
    pub(super) fn is_dead(self) -> bool {
        self.has_no_main_thread() && self.threads <= 1
    }

    fn has_no_main_thread(self) -> bool {
        matches!(self.state, b'Z' | b'X')
    }

    fn has_stopped_thread(self) -> bool {
        let threads = fs::read_dir(format!("/proc/{}/task", self.pid)).into_iter().flatten().flatten();
        let mut statuses = threads.filter_map(|thread| fs::read(thread.path().join("status")).ok());
        statuses.any(|status| field(&status, "State").is_some_and(|state| state.starts_with('T')))
    }

    /// Sends it `signal`, unless it is gone, or its id has been reused by a process that does not descend from this
    /// one. `family` is the list of descendants in which it was found.
    pub(super) fn signal(self, signal: libc::c_int, family: &[Process]) {
        let pidfd = open_process(self.pid);
        if pidfd.is_none() && Errno::last() == Errno::ESRCH {
            return;
        }
        // The descriptor refers to the process that had the id when it was opened. If that process still exists, it is
        // the one read here.
        if !self.is_still_in(family) {
            return;
        }
        let has_it = pidfd.is_some_and(|pidfd| send(&pidfd, signal) || Errno::last() == Errno::ESRCH);
        if !has_it {
            // An old kernel lacks these calls, and a sandbox may forbid them. Sending right after the check is then the
            // safest way. SAFETY: plain system call.
            unsafe { libc::kill(self.pid, signal) };
        }
    }

    /// Returns whether the process that has its id now is a child of this process or of one of the `family`. (Its
    /// original parent may have ended.)
    fn is_still_in(self, family: &[Process]) -> bool {
        let is_parent = |parent| parent == own_pid() || family.iter().any(|process| process.pid == parent);
        read(self.pid).is_some_and(|now| is_parent(now.parent))
    }
}

/// Returns a descriptor of the process `pid`. `None` if there is no such process or no descriptor left, and where the
/// kernel or a sandbox does not allow it.
fn open_process(pid: pid_t) -> Option<OwnedFd> {
    // SAFETY: a plain system call; the new descriptor, if any, is ours alone.
    unsafe {
        let fd = libc::syscall(libc::SYS_pidfd_open, pid, 0);
        i32::try_from(fd).ok().filter(|fd| *fd >= 0).map(|fd| OwnedFd::from_raw_fd(fd))
    }
}

/// Sends `signal` to the process that `pidfd` refers to. Returns whether that worked.
fn send(pidfd: &OwnedFd, signal: libc::c_int) -> bool {
    let none = std::ptr::null::<libc::siginfo_t>();
    // SAFETY: a valid descriptor and no siginfo.
    unsafe { libc::syscall(libc::SYS_pidfd_send_signal, pidfd.as_raw_fd(), signal, none, 0) == 0 }
}

/// Makes the system calls of this module once, in a form that changes nothing: see [`super::rehearsal`].
pub(super) fn rehearse() {
    let me = own_pid();
    group(me);
    let _ = Path::new(&children_of(me, me)).exists();
    let _ = fs::read_dir(format!("/proc/{me}/task")).map(Iterator::count);
    let _ = open_process(me).map(|pidfd| send(&pidfd, 0));
}

/// Returns the process group of the process `pid`; -1 if it is gone.
pub(super) fn group(pid: pid_t) -> pid_t {
    // SAFETY: a plain system call.
    unsafe { libc::getpgid(pid) }
}

pub(super) fn own_pid() -> pid_t {
    // SAFETY: cannot fail.
    unsafe { libc::getpid() }
}

/// Returns whether /proc shows the processes of this process's own PID namespace, by their ids there. In a new PID
/// namespace /proc may be missing, or still show the outer namespace, where the same number is another process. Fails
/// if no descriptor or memory is left to find out.
pub fn are_visible() -> io::Result<bool> {
    match fs::read("/proc/self/status") {
        Ok(status) => {
            // `NSpid` has an id for each namespace from that of the mounted /proc down to ours. Linux before 4.1 has
            // `Pid` alone.
            let ids = field(&status, "NSpid").or_else(|| field(&status, "Pid"));
            Ok(ids.is_some_and(|ids| ids == std::process::id().to_string()))
        }
        Err(error) if is_shortage(&error) => Err(error),
        Err(_) => Ok(false),
    }
}

/// Returns whether a file of /proc could not be opened or read because no descriptor or memory is left.
pub(super) fn is_shortage(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE | libc::ENOMEM))
}

/// The processes that a search has found.
#[derive(Debug, Default)]
pub(super) struct Found {
    pub(super) processes: Vec<Process>,
    /// Whether they are all that were there when the search began.
    pub(super) is_complete: bool,
}

/// Finds all descendants of `root`, parents before children, but without those that `left_out` selects and their
/// descendants. Those that have ended may be among them, but for the children of this process: there may be thousands,
/// and none of them has children. The newest children of each process come first. The result is not complete if /proc
/// does not show all processes, if no more files can be opened, or if `is_over`, which is called before each process is
/// read, has ended the search.
///
/// Processes that are created or orphaned meanwhile may be missing.
pub(super) fn descendants(root: pid_t, is_over: impl FnMut() -> bool, left_out: impl Fn(Process) -> bool) -> Found {
    let mut processes = Vec::new();
    let found = &mut processes;
    let is_complete = are_visible().and_then(|are_visible| match are_visible {
        false => Ok(false),
        true if Path::new(&children_of(own_pid(), own_pid())).exists() => below(root, is_over, left_out, found),
        true => among_all(root, is_over, left_out, found),
    });
    Found { processes, is_complete: is_complete.unwrap_or(false) }
}

/// Finds them by the kernel's lists of each process's children. Returns whether all were found. The cost depends on the
/// number of descendants alone.
fn below(
    root: pid_t,
    mut is_over: impl FnMut() -> bool,
    left_out: impl Fn(Process) -> bool,
    found: &mut Vec<Process>,
) -> io::Result<bool> {
    let mut seen = HashSet::from([root]);
    // Processes whose parent ends meanwhile become children of `root`, so its children are listed again in the end.
    for _ in 0..2 {
        let mut next = found.len();
        let mut parent = read_if_there(root)?;
        while let Some(process) = parent {
            for pid in children(process)?.into_iter().rev() {
                if is_over() {
                    return Ok(false);
                }
                if seen.insert(pid) && !own_children::has_ended(pid) {
                    found.extend(read_if_there(pid)?.filter(|child| !left_out(*child)));
                }
            }
            parent = found.get(next).copied();
            next += 1;
        }
    }
    Ok(true)
}

/// Returns the process ids of the children of `process`, which are listed for each of its threads; none if it has
/// ended.
fn children(process: Process) -> io::Result<Vec<pid_t>> {
    let pid = process.pid;
    let mut found = Vec::new();
    let mut add = |thread| {
        let list = if_there(fs::read_to_string(children_of(pid, thread)))?.unwrap_or_default();
        found.extend(list.split_ascii_whitespace().filter_map(|child| child.parse::<pid_t>().ok()));
        Ok::<(), io::Error>(())
    };
    if process.threads <= 1 {
        add(pid)?;
    } else {
        for thread in if_there(fs::read_dir(format!("/proc/{pid}/task")))?.into_iter().flatten() {
            let thread = thread.ok().and_then(|entry| entry.file_name().to_str()?.parse().ok());
            thread.map_or(Ok(()), &mut add)?;
        }
    }
    Ok(found)
}

/// Returns the path of the kernel's list of the children of a thread of the process `pid`.
pub(super) fn children_of(pid: pid_t, thread: pid_t) -> String {
    format!("/proc/{pid}/task/{thread}/children")
}

/// Finds them by reading every process of the machine, where the kernel has no such lists.
fn among_all(
    root: pid_t,
    mut is_over: impl FnMut() -> bool,
    left_out: impl Fn(Process) -> bool,
    found: &mut Vec<Process>,
) -> io::Result<bool> {
    let mut children: HashMap<pid_t, Vec<Process>> = HashMap::new();
    let mut is_complete = true;
    for entry in fs::read_dir("/proc")? {
        let Some(pid) = entry?.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        if is_over() {
            is_complete = false;
            break;
        }
        if let Some(process) = read_if_there(pid)?.filter(|process| !left_out(*process)) {
            children.entry(process.parent).or_default().push(process);
        }
    }
    found.extend(children.remove(&root).unwrap_or_default());
    let mut next = 0;
    while let Some(process) = found.get(next) {
        let more = children.remove(&process.pid).unwrap_or_default();
        found.extend(more);
        next += 1;
    }
    Ok(is_complete)
}

/// Reads the process `pid` from /proc; `None` if it has ended. Fails if no descriptor or memory is left.
fn read_if_there(pid: pid_t) -> io::Result<Option<Process>> {
    let status = if_there(fs::read(status_of(pid)))?;
    Ok(status.and_then(|status| parse(pid, &status)))
}

/// Returns `None` instead of the error if a process has ended, and so its files cannot be opened or read.
fn if_there<T>(opened: io::Result<T>) -> io::Result<Option<T>> {
    match opened {
        Ok(opened) => Ok(Some(opened)),
        Err(error) if is_shortage(&error) => Err(error),
        Err(_) => Ok(None),
    }
}

/// Reads the process `pid` from /proc.
pub(super) fn read(pid: pid_t) -> Option<Process> {
    parse(pid, &fs::read(status_of(pid)).ok()?)
}

fn status_of(pid: pid_t) -> String {
    format!("/proc/{pid}/status")
}

fn parse(pid: pid_t, status: &[u8]) -> Option<Process> {
    let state = *field(status, "State")?.as_bytes().first()?;
    let (parent, threads) = (field(status, "PPid")?.parse().ok()?, field(status, "Threads")?.parse().ok()?);
    Some(Process { pid, parent, state, threads })
}

/// Returns the value in a line `name: value` of /proc/PID/status. A process's name cannot forge a line: it may contain
/// anything, but the kernel escapes newlines in it.
fn field<'a>(status: &'a [u8], name: &str) -> Option<&'a str> {
    let value = |line: &'a [u8]| line.strip_prefix(name.as_bytes())?.strip_prefix(b":");
    let value = status.split(|byte| *byte == b'\n').find_map(value)?;
    std::str::from_utf8(value).ok().map(str::trim)
}

/// Returns the id of the parent of the process `pid`, if there is such a process.
pub fn parent_of(pid: pid_t) -> Option<pid_t> {
    read(pid).map(|process| process.parent)
}

/// Returns when the process `pid` started, in clock ticks (hundredths of a second) after boot: together with the pid
/// this identifies a process uniquely. May take long, because it reads /proc/PID/stat.
pub fn started(pid: pid_t) -> Option<u64> {
    fields(&fs::read(format!("/proc/{pid}/stat")).ok()?)?.nth(19)?.parse().ok()
}

/// Returns the state in a line of /proc/PID/stat.
pub(super) fn state(stat: &[u8]) -> Option<u8> {
    fields(stat)?.next()?.as_bytes().first().copied()
}

/// Returns the fields of a line of /proc/PID/stat that follow the name, beginning with the state. The name may contain
/// anything, parentheses and newlines included, so it ends at the last parenthesis.
fn fields(stat: &[u8]) -> Option<impl Iterator<Item = &str>> {
    let name_end = stat.iter().rposition(|byte| *byte == b')')?;
    Some(std::str::from_utf8(&stat[name_end + 1..]).ok()?.split_ascii_whitespace())
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;
    use std::os::unix::process::CommandExt as _;
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn a_hostile_name_is_taken_for_nothing_else() {
        let status =
            b"Name:\tPPid: 9\\nPPid:\t8 \xff\nUmask:\t0022\nState:\tS (sleeping)\nPid:\t7\nPPid:\t3\nThreads:\t4\n";
        let process = parse(7, status).expect("is read");
        assert_eq!((process.parent, process.state, process.threads), (3, b'S', 4));
        assert!(parse(7, b"State:\tS (sleeping)\nPPid:\t3\n").is_none());
        let stat = b"7 (a) Z 1 (b\n) S 3 5 5 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 4 0 9876 1 2";
        assert_eq!(fields(stat).and_then(|mut fields| fields.nth(19)), Some("9876"));
        assert_eq!((state(stat), state(b"7 (a")), (Some(b'S'), None));
    }

    #[test]
    fn we_are_our_parents_descendant() {
        let me = pid_t::try_from(std::process::id()).expect("fits");
        let parent = read(me).expect("is there").parent;
        let found = descendants(parent, || false, |_| false);
        assert!(found.is_complete && found.processes.iter().any(|process| process.pid == me));
        let none = descendants(parent, || false, |process| process.pid == me);
        assert!(none.is_complete && !none.processes.iter().any(|process| process.pid == me));
        assert!(!descendants(parent, || true, |_| false).is_complete, "it was over at once");
    }

    #[test]
    fn a_child_that_has_ended_is_left_out() {
        let mut child = Command::new("true").spawn().expect("a process");
        let pid = child.id().cast_signed();
        while !own_children::has_ended(pid) {
            std::thread::yield_now();
        }
        let found = descendants(own_pid(), || false, |_| false);
        assert!(found.is_complete && !found.processes.iter().any(|process| process.pid == pid));
        child.wait().expect("our own child");
    }

    #[test]
    fn both_ways_find_the_same_descendants() {
        let tree = "sleep 600 & (sleep 600 & sleep 600 & echo ready; wait) & wait";
        let mut shell = Command::new("sh").args(["-c", tree]).process_group(0).stdout(Stdio::piped()).spawn();
        let shell = shell.as_mut().expect("a shell");
        let mut ready = [0; 6];
        shell.stdout.as_mut().expect("a pipe").read_exact(&mut ready).expect("it is ready");
        let root = shell.id().cast_signed();
        let pids = |by_lists: bool, left_out: Option<pid_t>| {
            let mut found = Vec::new();
            let is_left_out = |process: Process| Some(process.pid) == left_out;
            let is_complete = if by_lists {
                below(root, || false, is_left_out, &mut found)
            } else {
                among_all(root, || false, is_left_out, &mut found)
            };
            assert!(is_complete.expect("/proc is there"));
            let mut pids: Vec<pid_t> = found.iter().map(|process| process.pid).collect();
            pids.sort_unstable();
            pids
        };
        // A program that is just being executed may still have another process's name, but not another parent.
        let by_lists = pids(true, None);
        assert_eq!(by_lists.len(), 4);
        assert_eq!(by_lists, pids(false, None));
        let subshell = Some(by_lists[1]);
        assert_eq!(pids(true, subshell), pids(false, subshell));
        // SAFETY: a plain system call; our own child leads the group.
        unsafe { libc::kill(-root, libc::SIGKILL) };
        shell.wait().expect("our own child");
    }

    #[test]
    fn a_process_lives_as_long_as_one_of_its_threads() {
        let process = |state, threads| Process { pid: 7, parent: 3, state, threads };
        assert!(process(b'Z', 1).is_dead());
        assert!(!process(b'Z', 2).is_dead());
        assert!(!process(b'T', 1).is_dead());
    }
}
