//! Calls the user's program that computes the next value of a sequence.

use std::ffi::OsStr;
use std::io::Read;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;

use crate::supervise::guardian::Guardian;
use crate::sys::clock::Moment;
use crate::sys::signals::Signals;
use crate::sys::wait::{WaitObserver, Waiter, WakeReason};
use crate::text::escape::escaped;

/// The longest value, in bytes.
pub const MAX_LEN: usize = 512;

/// The result of calling the program.
pub enum NextValue {
    /// The next value.
    Value(String),
    /// This signal ended the wait.
    Interrupted(i32),
}

/// Runs `program` with `value` as its only argument, and reads the one line that it prints. `guardian` is set if this
/// process is one: then lockrun's death ends the wait. The error says what is wrong.
pub fn run(program: &OsStr, value: &str, signals: &Signals, guardian: Option<&Guardian>) -> Result<NextValue, String> {
    let shown = escaped(&program.to_string_lossy());
    // In its own process group, so that the processes that it starts can be killed with it.
    let mut command = Command::new(program);
    signals.hand_down(command.arg(value).stdin(Stdio::null()).stdout(Stdio::piped()).process_group(0));
    let called = command.spawn();
    let mut child = called.map_err(|error| format!("cannot run {shown}: {error}"))?;
    let output = child.stdout.take().ok_or_else(|| format!("cannot read what {shown} prints"))?;
    let mut wait = ProgramWait { waiter: Waiter::new(signals), observer: SilentObserver { guardian } };
    let end = wait.read_output(output).and_then(|output| match output {
        Output::Signal(signal) => Ok(Ended::Signal(signal)),
        Output::All(printed) => wait.await_end(&mut child, printed),
    });
    if !matches!(end, Ok(Ended::All(..))) {
        kill(&mut child);
    }
    let next = end.and_then(|end| match end {
        Ended::All(printed, status) => check(&printed, status).map(NextValue::Value),
        Ended::Signal(signal) => Ok(NextValue::Interrupted(signal)),
    });
    next.map_err(|why| format!("{shown}, called with \"{}\", {why}", escaped(value)))
}

/// The output of a program, or the signal that ended the wait for it.
enum Output {
    All(Vec<u8>),
    Signal(i32),
}

/// The output of a program and its exit status, or the signal that ended the wait for them.
enum Ended {
    All(Vec<u8>, ExitStatus),
    Signal(i32),
}

/// A wait for a program. Only a signal or lockrun's death ends it early: the program may take any amount of time.
struct ProgramWait<'a> {
    waiter: Waiter<'a>,
    observer: SilentObserver<'a>,
}

impl ProgramWait<'_> {
    /// Reads to the end of the output. Fails if it is more than twice as long as a value, which leaves room for blanks
    /// around the value.
    fn read_output(&mut self, mut output: ChildStdout) -> Result<Output, String> {
        let mut printed = Vec::new();
        loop {
            match self.wait(Some(output.as_fd()), None)? {
                WakeReason::Signal(signal) => return Ok(Output::Signal(signal)),
                WakeReason::Ready => {}
                WakeReason::Resumed | WakeReason::Time => continue,
            }
            let mut part = [0; MAX_LEN];
            let read = output.read(&mut part).map_err(|error| format!("wrote output that cannot be read: {error}"))?;
            if read == 0 {
                return Ok(Output::All(printed));
            }
            printed.extend(&part[..read]);
            if printed.len() > 2 * MAX_LEN {
                return Err(format!("prints more than {MAX_LEN} bytes"));
            }
        }
    }

    /// Waits for a program that has closed its output to end. Normally it has ended, or is about to.
    fn await_end(&mut self, child: &mut Child, printed: Vec<u8>) -> Result<Ended, String> {
        let mut pause = Duration::from_micros(100);
        loop {
            if let Some(status) = child.try_wait().map_err(|error| format!("cannot be awaited: {error}"))? {
                return Ok(Ended::All(printed, status));
            }
            if let WakeReason::Signal(signal) = self.wait(None, Some(Moment::now() + pause))? {
                return Ok(Ended::Signal(signal));
            }
            pause = (pause * 2).min(Duration::from_millis(20));
        }
    }

    fn wait(&mut self, source: Option<BorrowedFd<'_>>, until: Option<Moment>) -> Result<WakeReason, String> {
        let woken = self.waiter.wait_for(source, until, &mut self.observer);
        woken.map_err(|errno: Errno| format!("cannot be awaited: {}", errno.desc()))
    }
}

/// Kills a program and its process group, and reaps it. It has not been reaped before, so its group id has not been
/// reused.
fn kill(child: &mut Child) {
    if let Ok(group) = i32::try_from(child.id()) {
        let _ = killpg(Pid::from_raw(group), Signal::SIGKILL);
    }
    let _ = child.wait();
}

/// Returns the value, if the program succeeded and printed one line with a valid value.
fn check(printed: &[u8], status: ExitStatus) -> Result<String, String> {
    if !status.success() {
        return Err(format!("ended with {status}"));
    }
    let text = std::str::from_utf8(printed).map_err(|_| "printed text that is not UTF-8".to_owned())?.trim();
    if text.lines().count() > 1 {
        return Err("printed more than one line".into());
    }
    check_value(text).map_err(|why| format!("printed a value that {why}"))?;
    Ok(text.to_owned())
}

/// Checks a value of a sequence: 1 to 512 bytes without control characters. The error says what is wrong with it.
pub fn check_value(text: &str) -> Result<(), String> {
    if text.is_empty() {
        return Err("is empty".into());
    }
    if text.len() > MAX_LEN {
        return Err(format!("is {} bytes long; the maximum is {MAX_LEN}", text.len()));
    }
    if text.chars().any(char::is_control) {
        return Err("contains a control character".into());
    }
    Ok(())
}

/// An observer that shows nothing.
pub(super) struct SilentObserver<'a> {
    /// Set if this process is one: then lockrun's death ends the wait.
    pub(super) guardian: Option<&'a Guardian>,
}

impl WaitObserver for SilentObserver<'_> {
    fn tick_every(&self) -> Option<Duration> {
        None
    }

    fn tick(&mut self) {}

    fn pause(&mut self) {}

    fn lifeline(&self) -> Option<BorrowedFd<'_>> {
        self.guardian.map(AsFd::as_fd)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::ExitStatusExt;

    #[test]
    fn one_line_is_a_value() {
        let ok = ExitStatus::from_raw(0);
        assert_eq!(check(b"AAAA-0002\n", ok).as_deref(), Ok("AAAA-0002"));
        assert_eq!(check(b"  a b \n\n", ok).as_deref(), Ok("a b"));
        let long = [b'x'; MAX_LEN + 1];
        let bad: [(&[u8], &str); 6] = [
            (b"", "empty"),
            (b"\n", "empty"),
            (b"a\nb\n", "one line"),
            (b"a\x1bb", "control"),
            (b"\xff", "UTF-8"),
            (&long, "513 bytes"),
        ];
        for (printed, why) in bad {
            assert!(check(printed, ok).expect_err("is refused").contains(why));
        }
        assert!(check(b"a\n", ExitStatus::from_raw(256)).expect_err("is refused").contains("exit status: 1"));
    }
}
