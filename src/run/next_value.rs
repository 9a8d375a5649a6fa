//! The value that follows another in a sequence, as a program of the user's prints it.

use std::ffi::OsStr;
use std::io::Read;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;

use crate::sys::clock::Moment;
use crate::sys::signals::Signals;
use crate::sys::wait::{WaitObserver, Waiter, WakeReason};
use crate::text::escape::escaped;

/// The longest value, in bytes.
pub const MAX_LEN: usize = 512;

/// What came of asking the program.
pub enum Found {
    /// The next value.
    Value(String),
    /// A signal of this number ended the wait.
    Interrupted(i32),
}

/// Calls `program` with `value` as its only argument, and reads the one line that it prints. On failure says what is wrong.
pub fn of(program: &OsStr, value: &str, signals: &Signals) -> Result<Found, String> {
    let shown = escaped(&program.to_string_lossy());
    // In a group of its own, so that what it has started can be ended with it.
    let mut command = Command::new(program);
    signals.hand_down(command.arg(value).stdin(Stdio::null()).stdout(Stdio::piped()).process_group(0));
    let called = command.spawn();
    let mut child = called.map_err(|error| format!("cannot run {shown}: {error}"))?;
    let output = child.stdout.take().ok_or_else(|| format!("cannot read what {shown} prints"))?;
    let told = listen(output, signals).and_then(|heard| match heard {
        Heard::Signal(signal) => Ok(Told::Signal(signal)),
        Heard::All(printed) => await_end(&mut child, printed, signals),
    });
    if !matches!(told, Ok(Told::All(..))) {
        end(&mut child);
    }
    let found = told.and_then(|told| match told {
        Told::All(printed, status) => check(&printed, status).map(Found::Value),
        Told::Signal(signal) => Ok(Found::Interrupted(signal)),
    });
    found.map_err(|why| format!("{shown}, called with \"{}\", {why}", escaped(value)))
}

/// What came out of a program.
enum Heard {
    All(Vec<u8>),
    Signal(i32),
}

/// The same, and how it ended.
enum Told {
    All(Vec<u8>, ExitStatus),
    Signal(i32),
}

/// Reads to the end, and not more than a value can be long.
fn listen(mut output: ChildStdout, signals: &Signals) -> Result<Heard, String> {
    let mut printed = Vec::new();
    loop {
        // It has as long as it likes; a signal ends the wait for it.
        match wait(Some(output.as_fd()), None, signals)? {
            WakeReason::Signal(signal) => return Ok(Heard::Signal(signal)),
            WakeReason::Ready => {}
            WakeReason::Resumed | WakeReason::Time => continue,
        }
        let mut part = [0; MAX_LEN];
        let read = output.read(&mut part).map_err(|error| format!("cannot be heard: {error}"))?;
        if read == 0 {
            return Ok(Heard::All(printed));
        }
        printed.extend(&part[..read]);
        if printed.len() > 2 * MAX_LEN {
            return Err(format!("prints more than {MAX_LEN} bytes"));
        }
    }
}

/// Waits for the end of a program that has said all: as a rule it has ended, or is about to.
fn await_end(child: &mut Child, printed: Vec<u8>, signals: &Signals) -> Result<Told, String> {
    let mut pause = Duration::from_micros(100);
    loop {
        if let Some(status) = child.try_wait().map_err(|error| format!("cannot be waited for: {error}"))? {
            return Ok(Told::All(printed, status));
        }
        if let WakeReason::Signal(signal) = wait(None, Some(Moment::now() + pause), signals)? {
            return Ok(Told::Signal(signal));
        }
        pause = (pause * 2).min(Duration::from_millis(20));
    }
}

fn wait(source: Option<BorrowedFd<'_>>, until: Option<Moment>, signals: &Signals) -> Result<WakeReason, String> {
    let woken = Waiter::new(signals).wait_for(source, until, &mut Patient);
    woken.map_err(|errno: Errno| format!("cannot be waited for: {}", errno.desc()))
}

/// Ends a program, and what it has started. It is not reaped yet, so the group is still its own.
fn end(child: &mut Child) {
    if let Ok(group) = i32::try_from(child.id()) {
        let _ = killpg(Pid::from_raw(group), Signal::SIGKILL);
    }
    let _ = child.wait();
}

/// The line that was printed, if it is one, and a value.
fn check(printed: &[u8], status: ExitStatus) -> Result<String, String> {
    if !status.success() {
        return Err(format!("ended with {status}"));
    }
    let text = std::str::from_utf8(printed).map_err(|_| "printed what is not UTF-8".to_owned())?.trim();
    if text.lines().count() > 1 {
        return Err("printed more than one line".into());
    }
    is_value(text).map_err(|why| format!("printed a value that {why}"))?;
    Ok(text.to_owned())
}

/// Checks a value of a sequence: 1 to 512 bytes without control characters. On failure says what is wrong with it.
pub fn is_value(text: &str) -> Result<(), String> {
    if text.is_empty() {
        return Err("is empty".into());
    }
    if text.len() > MAX_LEN {
        return Err(format!("is {} bytes long; the most is {MAX_LEN}", text.len()));
    }
    if text.chars().any(char::is_control) {
        return Err("has a control character in it".into());
    }
    Ok(())
}

/// There is nothing to show while a program runs.
struct Patient;

impl WaitObserver for Patient {
    fn tick_every(&self) -> Option<Duration> {
        None
    }

    fn tick(&mut self) {}

    fn pause(&mut self) {}
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
