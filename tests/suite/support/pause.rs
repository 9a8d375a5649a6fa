//! Notices that the whole machine was paused, as a virtual machine is by its hypervisor, or that its wall clock was set.
//!
//! A lease runs out meanwhile although nothing could end the command: what remains is the fence. See "What cannot hold"
//! in docs/guarantees.md. It excuses no test: the reader of a failure learns that it may be the cause.

use std::process::Command;
use std::sync::{Mutex, Once, PoisonError};
use std::thread;
use std::time::Duration;

use nix::time::{ClockId, clock_gettime};
use nix::unistd::gettid;

/// How often the clocks are read.
const BEAT: Duration = Duration::from_millis(10);

/// A pause of this length may use up the time between the KILL of a command and the end of its lease, which is an
/// eighth of a lease of 3 s.
const NOTICED: Duration = Duration::from_millis(350);

/// For how long the machine was paused, or by how much its clock was set, in all.
static PAUSED: Mutex<Duration> = Mutex::new(Duration::ZERO);

/// Returns the total of all noticed pauses since the first call. Zero if nothing may run ahead of a busy machine here:
/// then a pause cannot be told from a load.
pub(crate) fn paused() -> Duration {
    static WATCHED: Once = Once::new();
    WATCHED.call_once(|| drop(thread::spawn(watch)));
    *PAUSED.lock().unwrap_or_else(PoisonError::into_inner)
}

fn watch() {
    let tid = gettid().to_string();
    let has_priority = Command::new("chrt").args(["--rr", "--pid", "50", &tid]).status();
    if !has_priority.is_ok_and(|status| status.success()) {
        return;
    }
    let (mut boot, mut wall) = (now(ClockId::CLOCK_BOOTTIME), now(ClockId::CLOCK_REALTIME));
    loop {
        thread::sleep(BEAT);
        let (next_boot, next_wall) = (now(ClockId::CLOCK_BOOTTIME), now(ClockId::CLOCK_REALTIME));
        let paused = next_boot.saturating_sub(boot).max(next_wall.abs_diff(wall));
        if paused > NOTICED {
            *PAUSED.lock().unwrap_or_else(PoisonError::into_inner) += paused;
        }
        (boot, wall) = (next_boot, next_wall);
    }
}

fn now(clock: ClockId) -> Duration {
    clock_gettime(clock).expect("Linux has this clock").into()
}
