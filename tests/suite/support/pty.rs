//! A terminal and its user: types keys, and reads what appears.

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::process::{Child, Command, ExitStatus};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use nix::fcntl::OFlag;
use nix::libc;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::pty::{grantpt, posix_openpt, ptsname_r, unlockpt};
use nix::unistd::{Pid, tcgetpgrp};

use super::birth::Birth;
use super::deadline::{LONG, eventually_some};
use super::processes::{self, MARK, PATH};

/// A program that runs with a terminal of its own as its controlling terminal.
pub(crate) struct Terminal {
    screen: File,
    seen: Vec<u8>,
    child: Child,
    mark: String,
}

impl Terminal {
    /// Starts a program on a new terminal, with `PATH`, `HOME`, `TERM` and the variables in `env`.
    pub(crate) fn start(mut command: Command, env: &[(&str, &str)]) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        // Everything is opened close-on-exec from the first: other tests start programs at the same time.
        let master = posix_openpt(OFlag::O_RDWR | OFlag::O_NOCTTY | OFlag::O_CLOEXEC).expect("a new terminal");
        grantpt(&master).expect("our own terminal");
        unlockpt(&master).expect("our own terminal");
        let name = ptsname_r(&master).expect("the terminal has a name");
        let line = OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(libc::O_NOCTTY)
            .open(&name)
            .expect("the other end of the terminal");
        // Not the terminal's name: after a hang-up another terminal may have it.
        let mark = format!("{}-tty-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        command
            .env_clear()
            .env("PATH", PATH)
            .env("HOME", "/nonexistent")
            .env("TERM", "xterm")
            .envs(env.iter().copied())
            .env(MARK, &mark)
            .stdin(line.try_clone().expect("a second descriptor"))
            .stdout(line.try_clone().expect("a third descriptor"))
            .stderr(line);
        Birth { terminal: true, ..Birth::default() }.prepare(&mut command);
        let child = command.spawn().expect("the program starts");
        drop(command);
        Self { screen: File::from(OwnedFd::from(master)), seen: Vec::new(), child, mark }
    }

    /// Types these keys.
    pub(crate) fn type_keys(&mut self, keys: &str) {
        self.screen.write_all(keys.as_bytes()).expect("the terminal is there");
    }

    /// Reads until this text has appeared after the one awaited before. Returns everything before it.
    #[track_caller]
    pub(crate) fn wait_for(&mut self, text: &str) -> String {
        let started = Instant::now();
        loop {
            if let Some(at) = find(&self.seen, text.as_bytes()) {
                let rest = self.seen.split_off(at + text.len());
                let before = std::mem::replace(&mut self.seen, rest);
                return String::from_utf8_lossy(&before).into_owned();
            }
            let open = self.read_more();
            let so_far = String::from_utf8_lossy(&self.seen);
            let found = find(&self.seen, text.as_bytes()).is_some();
            assert!(open || found, "the terminal closed without {text:?}: {so_far:?}");
            assert!(
                started.elapsed() < LONG,
                "no {text:?} on the terminal, but {so_far:?}; in its foreground is the group {:?}, and these processes live:{}",
                tcgetpgrp(&self.screen),
                processes::describe_marked(&self.mark)
            );
        }
    }

    /// Returns what appears within this time.
    pub(crate) fn watch(&mut self, time: Duration) -> String {
        let started = Instant::now();
        while started.elapsed() < time && self.read_more() {}
        String::from_utf8_lossy(&std::mem::take(&mut self.seen)).into_owned()
    }

    /// Takes the terminal away from the program, as a cut connection or a closed window does.
    pub(crate) fn hang_up(&mut self) {
        self.screen = File::open("/dev/null").expect("there is one");
    }

    /// Returns the process group in the foreground.
    pub(crate) fn foreground(&self) -> Pid {
        tcgetpgrp(&self.screen).expect("the terminal is there")
    }

    pub(crate) fn pid(&self) -> i32 {
        self.child.id().cast_signed()
    }

    /// Waits until the program has ended.
    #[track_caller]
    pub(crate) fn wait(&mut self) -> ExitStatus {
        let child = &mut self.child;
        eventually_some(LONG, "the program on the terminal ends", || child.try_wait().expect("our own child"))
    }

    /// Reads what is there, waiting a little. Returns false if the other end is closed.
    fn read_more(&mut self) -> bool {
        let mut fds = [PollFd::new(self.screen.as_fd(), PollFlags::POLLIN)];
        if !poll(&mut fds, PollTimeout::from(20_u8)).is_ok_and(|ready| ready > 0) {
            return true;
        }
        let mut some = [0; 4096];
        match self.screen.read(&mut some) {
            Ok(0) | Err(_) => false,
            Ok(count) => {
                self.seen.extend_from_slice(&some[..count]);
                true
            }
        }
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        processes::kill_marked(&self.mark, None);
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn find(text: &[u8], wanted: &[u8]) -> Option<usize> {
    text.windows(wanted.len()).position(|part| part == wanted)
}
