//! What COMMAND's parent opens before the lock is requested, so that it can reach COMMAND's processes later even if no
//! descriptor is left.

use std::cell::RefCell;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, FromRawFd as _, OwnedFd};
use std::os::unix::fs::FileExt as _;

use libc::pid_t;
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, fcntl};

use super::process::{self, own_pid};

/// The kernel's list of this process's children, and two descriptors to spare. Neither, for a run that never ends its
/// command or waits for what it leaves behind.
#[derive(Debug)]
pub(super) struct ProcAccess {
    children: Option<File>,
    keeps_spare: bool,
    spare: RefCell<Option<[OwnedFd; 2]>>,
}

impl ProcAccess {
    /// Opens both, if they `are_needed`. Must be called by the main thread. Fails if no descriptor is left.
    pub(super) fn open(are_needed: bool) -> nix::Result<Self> {
        let children = if are_needed { open_list()? } else { None };
        let spare = are_needed.then(take_spare).transpose()?;
        Ok(ProcAccess { children, keeps_spare: are_needed, spare: RefCell::new(spare) })
    }

    /// Returns the process ids of the main thread's children, dead ones included, the newest last; `None` if not all
    /// could be listed: the kernel may have no such list (CONFIG_PROC_CHILDREN).
    ///
    /// As long as this process reaps none of its children meanwhile, none that was there at the beginning is left out.
    pub(super) fn children(&self) -> Option<Vec<pid_t>> {
        let list = self.children.as_ref()?;
        let mut found = Vec::new();
        // The kernel returns a page at most.
        let mut page = [0; 4096];
        let (mut offset, mut pid): (u64, pid_t) = (0, 0);
        loop {
            let length = match list.read_at(&mut page, offset) {
                Ok(0) => return Some(found),
                Ok(length) => length,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(_) => return None,
            };
            offset += length as u64;
            // A number may begin in one page and end in the next one.
            for byte in &page[..length] {
                if byte.is_ascii_digit() {
                    pid = pid.saturating_mul(10).saturating_add(pid_t::from(byte - b'0'));
                } else if pid != 0 {
                    found.push(std::mem::take(&mut pid));
                }
            }
        }
    }

    /// Runs `work`, which needs up to two descriptors at a time, with the spare ones closed.
    pub(super) fn with_spare<T>(&self, work: impl FnOnce() -> T) -> T {
        drop(self.spare.take());
        let result = work();
        if self.keeps_spare {
            // If that fails, another thread has used them up meanwhile; then /proc may be unreadable next time.
            self.spare.replace(take_spare().ok());
        }
        result
    }
}

/// Opens the list of the calling thread's children; `None` if the kernel has none.
fn open_list() -> nix::Result<Option<File>> {
    match File::open(process::children_of(own_pid(), own_pid())) {
        Ok(list) => Ok(Some(list)),
        Err(error) if process::is_shortage(&error) => Err(Errno::from_raw(error.raw_os_error().unwrap_or(0))),
        Err(_) => Ok(None),
    }
}

/// Returns two descriptors that are good for nothing but to be closed when others are needed.
fn take_spare() -> nix::Result<[OwnedFd; 2]> {
    // Standard input is open: lockrun has opened /dev/null in its place if it was not.
    let one = || duplicate(&io::stdin());
    Ok([one()?, one()?])
}

#[allow(unsafe_code)]
fn duplicate(fd: &impl AsFd) -> nix::Result<OwnedFd> {
    let duplicate = fcntl(fd, FcntlArg::F_DUPFD_CLOEXEC(libc::STDERR_FILENO + 1))?;
    // SAFETY: the descriptor is new and owned by no other value.
    Ok(unsafe { OwnedFd::from_raw_fd(duplicate) })
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::process::Command;
    use std::thread;

    use super::*;

    /// Returns the children of the calling thread, by the list of that thread.
    fn listed() -> HashSet<pid_t> {
        // SAFETY: cannot fail.
        #[allow(unsafe_code)]
        let thread = unsafe { libc::gettid() };
        let list = File::open(process::children_of(own_pid(), thread)).expect("the kernel has the list");
        let access = ProcAccess { children: Some(list), keeps_spare: false, spare: RefCell::new(None) };
        let found = access.children().expect("the list can be read");
        let different: HashSet<pid_t> = found.iter().copied().collect();
        assert_eq!(found.len(), different.len(), "one is listed twice");
        different
    }

    #[test]
    fn every_child_is_listed_also_over_several_pages() {
        // In a thread of its own: each thread has its own children.
        let list_all = || {
            assert_eq!(listed(), HashSet::new());
            let start = |_| Command::new("sleep").arg("600").spawn().expect("it starts");
            let mut children: Vec<_> = (0..1500).map(start).collect();
            let pids = children.iter().map(|child| child.id().cast_signed()).collect();
            assert_eq!(listed(), pids);
            for child in &mut children {
                child.kill().expect("our own child");
            }
            // Also when they are dead, until they are reaped.
            assert_eq!(listed(), pids);
            for child in &mut children {
                child.wait().expect("our own child");
            }
            assert_eq!(listed(), HashSet::new());
        };
        thread::spawn(list_all).join().expect("it holds");
    }

    #[test]
    fn without_a_list_nothing_is_listed() {
        let access = ProcAccess { children: None, keeps_spare: false, spare: RefCell::new(None) };
        assert_eq!(access.children(), None);
    }
}
