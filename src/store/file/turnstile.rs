//! Waiting in turn for a lock file: in the kernel's queue for the turnstile, and at the turnstile until a slot is free.

use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, AsRawFd};
use std::time::Duration;

use anyhow::Context;
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};

use super::lock_file::LockFile;
use crate::store::{Grant, Held, StoreError, Wait, Watcher};
use crate::sys::clock::Moment;
use crate::sys::wait::{WaitObserver, WakeReason, wait_for, wait_in_call};

/// The kernel tells that a file was closed just before it takes the closer's locks away: so after a change we look again, with
/// pauses that double from the first to the last. Where the kernel tells us nothing, the last goes on.
const LOOK_AGAIN: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(64));

/// A change whose news was lost is seen after so long at the latest.
const LOOK_ANYWAY: Duration = Duration::from_secs(5);

/// What came of looking for a free slot.
pub(super) enum Found {
    /// We have one.
    Mine(Grant),
    /// None is free. The first lease that ends does so then.
    Taken(Held, Option<Moment>),
    /// The file has lost its name: another one is the lock now.
    Vanished,
}

/// How it went.
pub(super) enum Passed {
    /// The lock is ours.
    Mine(Grant),
    /// It is not, and the patience is at its end.
    Held(Held),
    /// A signal of this number ended the wait.
    Interrupted(i32),
    /// The file has lost its name: another one is the lock now.
    Vanished,
}

/// Goes through the turnstile, takes a slot with `take`, and leaves the turnstile to the next one. Does not wait.
pub(super) fn pass(file: &LockFile, take: impl Fn() -> Result<Found, StoreError>) -> Result<Passed, StoreError> {
    if !file.enter_now().with_context(|| fails(file))? {
        return Ok(Passed::Held(file.holder()?));
    }
    let found = take();
    file.leave().with_context(|| fails(file))?;
    Ok(match found? {
        Found::Mine(grant) => Passed::Mine(grant),
        Found::Taken(held, _) => Passed::Held(held),
        Found::Vanished => Passed::Vanished,
    })
}

/// The same, but waits for its turn at the turnstile, and there for a slot.
pub(super) fn wait(
    file: &LockFile,
    wait: &mut Wait<'_>,
    take: impl Fn() -> Result<Found, StoreError>,
) -> Result<Passed, StoreError> {
    let Wait { until, signals, watcher } = wait;
    let mut turn = Turn { file, watcher: *watcher, is_ours: false };
    let mut changes: Option<Changes> = None;
    let mut look_again = None;
    loop {
        if !turn.is_ours && !file.enter_now().with_context(|| fails(file))? {
            let held = file.holder()?;
            if turn.watcher.waiting(&held).is_break() {
                return Ok(Passed::Held(held));
            }
            // The kernel queues us. A signal ends us there as it would anybody; nothing is left behind.
            let entered = wait_in_call(*until, signals, turn.watcher, || file.enter());
            if entered.with_context(|| fails(file))?.is_none() {
                return Ok(Passed::Held(file.holder()?));
            }
        }
        turn.is_ours = true;
        let (held, ends_at) = match take()? {
            Found::Mine(grant) => return Ok(Passed::Mine(grant)),
            Found::Vanished => return Ok(Passed::Vanished),
            Found::Taken(held, ends_at) => (held, ends_at),
        };
        if until.is_some_and(|until| Moment::now() >= until) || turn.watcher.waiting(&held).is_break() {
            return Ok(Passed::Held(held));
        }
        file.stay().with_context(|| fails(file))?;
        let Some(changes) = &changes else {
            // It may have changed before we watched it.
            changes = Some(Changes::of(file));
            continue;
        };
        if changes.0.is_none() {
            look_again = Some(LOOK_AGAIN.1);
        }
        let look_at = Moment::now() + look_again.unwrap_or(LOOK_ANYWAY);
        let wake_at = [*until, ends_at].into_iter().flatten().fold(look_at, Moment::min);
        match wait_for(changes.0.as_ref().map(|inotify| inotify.as_fd()), Some(wake_at), signals, &mut turn)
            .with_context(|| fails(file))?
        {
            WakeReason::Signal(signal) => return Ok(Passed::Interrupted(signal)),
            WakeReason::Ready => {
                changes.take_in();
                look_again = Some(LOOK_AGAIN.0);
            }
            // Our turn has passed to another: back into the queue.
            WakeReason::Resumed => {}
            WakeReason::Time => look_again = look_again.map(|pause| pause * 2).filter(|pause| *pause <= LOOK_AGAIN.1),
        }
    }
}

fn fails(file: &LockFile) -> String {
    format!("cannot lock {}", file.path())
}

/// Our turn at the turnstile. It is given up when this ends, and while lockrun is stopped by the terminal: the others must
/// not wait for one that stands still.
struct Turn<'a> {
    file: &'a LockFile,
    watcher: &'a mut dyn Watcher,
    is_ours: bool,
}

impl Turn<'_> {
    fn give_up(&mut self) {
        if std::mem::take(&mut self.is_ours) {
            // If this fails, the end of the process does it.
            let _ = self.file.leave();
        }
    }
}

impl WaitObserver for Turn<'_> {
    fn tick_every(&self) -> Option<Duration> {
        self.watcher.tick_every()
    }

    fn tick(&mut self) {
        self.watcher.tick();
    }

    fn pause(&mut self) {
        self.give_up();
        self.watcher.pause();
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.give_up();
    }
}

/// The kernel's news of changes of a lock file; `None` if it gives us none, because this user has too many such watches.
///
/// They are never closed: for that the kernel makes us wait some milliseconds (for all processors to be done with them), which
/// must not stand between the lock and COMMAND. The end of the process closes them.
struct Changes(Option<ManuallyDrop<Inotify>>);

impl Changes {
    fn of(file: &LockFile) -> Self {
        let watch = || {
            let inotify = Inotify::init(InitFlags::IN_CLOEXEC | InitFlags::IN_NONBLOCK)?;
            // By the descriptor, which is the file that we wait for, whatever its name is by now.
            let path = format!("/proc/self/fd/{}", file.as_fd().as_raw_fd());
            inotify.add_watch(path.as_str(), AddWatchFlags::IN_MODIFY | AddWatchFlags::IN_CLOSE_WRITE)?;
            nix::Result::Ok(ManuallyDrop::new(inotify))
        };
        Changes(watch().ok())
    }

    /// Reads the news, which say only that there are any.
    fn take_in(&self) {
        if let Some(inotify) = &self.0 {
            while inotify.read_events().is_ok_and(|events| !events.is_empty()) {}
        }
    }
}
