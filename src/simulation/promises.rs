//! What must hold at every step, whatever goes wrong.

use super::actors::nanos;
use super::scenario::Sharing;
use super::server::run_of;
use super::world::{Event, MILLISECOND, Nanos, Run, RunId, SECOND, World};
use crate::lock::claim::Mode;
use crate::lock::state::{HolderState, LockState, Now, Purpose, WaiterState};
use crate::lock::token::Token;
use crate::supervise::{Descendants, Finished};

/// The end of a lease or a place is noticed, and the lock handed off, within this time.
const NOTICED_WITHIN: Nanos = SECOND;

/// What has been observed so far.
#[derive(Default)]
pub struct Promises {
    /// The greatest fence issued, and the greatest with which a command has started.
    last_fence: u64,
    last_started: u64,
    /// Since when all networks and the server have been sound.
    pub sound_since: Nanos,
    /// When a process was last killed or stopped.
    pub disturbed_at: Nanos,
    /// Since when only the dead keep a living waiter from the lock; `None` if they do not.
    kept: Option<Kept>,
    /// How many commands have started.
    pub started: u64,
}

/// The time in which only the dead keep a living waiter from the lock.
#[derive(Clone, Copy)]
struct Kept {
    since: Nanos,
    /// How many living runs use the lock in that time.
    used: usize,
}

impl World {
    /// Checks what must hold at any time.
    pub fn check(&mut self) {
        let now_ms = self.server_ms();
        for at in 0..self.living.len() {
            let run = &self.runs[self.living[at]];
            if run.command.is_under_lock() && !self.server.is_held_by(&run.plan.claim.token, now_ms) {
                let why = format!("run {} has a process beyond its lease", self.living[at]);
                return self.fail(&why);
            }
        }
        self.no_waiter_waits_for_the_dead();
        let mut at = 0;
        while let Some(run) = self.living.get(at).copied() {
            if self.runs[run].is_alive() {
                at += 1;
            } else {
                self.living.remove(at);
                let terms = &self.runs[run].plan.terms;
                let by = self.now + nanos(terms.ttl) + SECOND;
                self.schedule(by, Event::Freed { run });
            }
        }
    }

    /// Checks the start of a command: no incompatible command is alive, and its fence is greater than all before.
    pub fn command_has_started(&mut self, run: RunId) {
        self.promises.started += 1;
        let mode = self.runs[run].plan.claim.mode;
        let is_beside = |other: &&RunId| **other != run && self.runs[**other].command.is_under_lock();
        let beside: Vec<RunId> = self.living.iter().filter(is_beside).copied().collect();
        let is_allowed = match mode {
            Mode::Shared => beside.iter().all(|other| self.runs[*other].plan.claim.mode == Mode::Shared),
            Mode::Slots(slots) if self.scenario.sharing == Sharing::Slots(slots) => beside.len() < slots as usize,
            Mode::Slots(_) => beside.is_empty(),
        };
        if !is_allowed {
            self.fail(&format!("run {run} ({mode:?}) starts its command beside those of {beside:?}"));
        }
        let fence = self.runs[run].fence.unwrap_or(0);
        if self.scenario.sharing == Sharing::Exclusive && fence <= self.promises.last_started {
            self.fail(&format!("run {run} starts with a fence that is not greater than one before"));
        }
        self.promises.last_started = self.promises.last_started.max(fence);
    }

    /// Records that a command is over. What it left behind may live on, if that was wanted and it ended on its own.
    pub fn command_is_over(&mut self, run: RunId, finished: Finished) {
        self.say(run, &format!("its command is over: {finished:?}"));
        let plan = &self.runs[run].plan;
        self.runs[run].command.is_dismissed = finished.why.is_none() && plan.descendants == Descendants::Leave;
    }

    /// Checks a step of the server, `before` which the state was this: the lock was handed to the first waiters in
    /// order, nobody has overtaken them, each new holder has a greater fence than all before it, and no two have the
    /// same slot.
    pub fn lock_was_handed_off(&mut self, before: &LockState) {
        let (now, state) = (Now::unix(self.server_ms()), self.server.state.clone());
        let is_new = |holder: &&HolderState| before.holders.iter().all(|it| it.token != holder.token);
        for holder in state.holders.iter().filter(is_new) {
            if holder.fence <= self.promises.last_fence {
                self.fail(&format!("run {} gets a fence that is not greater than one before", holder.token.as_str()));
            }
            self.promises.last_fence = holder.fence;
            let ahead = before.waiters.iter().take_while(|waiter| waiter.token != holder.token);
            let still_waits = |waiter: &&WaiterState| state.waiters.iter().any(|it| it.token == waiter.token);
            // One that has lost its place and asks again waits at the end.
            let overtaken = ahead.filter(|waiter| waiter.is_in_force(now)).find(still_waits);
            if let Some(overtaken) = overtaken {
                self.fail(&format!("run {} overtakes run {}", holder.token.as_str(), overtaken.token.as_str()));
            }
        }
        let mut slots: Vec<u32> = state.holders.iter().map(|holder| holder.slot).collect();
        slots.sort_unstable();
        if slots.windows(2).any(|pair| pair[0] == pair[1]) {
            self.fail(&format!("two holders have the same slot: {slots:?}"));
        }
        self.holders_are_compatible();
    }

    /// Checks that the holders by the server's clock may hold the lock together.
    pub fn holders_are_compatible(&mut self) {
        let now_ms = self.server_ms();
        let holders = self.server.state.holders.iter();
        let in_force = holders.filter(|holder| self.server.is_held_by(&holder.token, now_ms));
        let shares: Vec<bool> = in_force.map(|holder| holder.mode == Mode::Shared).collect();
        let most = if let Sharing::Slots(slots) = self.scenario.sharing { slots as usize } else { 1 };
        if shares.len() > most && !shares.iter().all(|shares| *shares) {
            self.fail("the server lets more hold the lock than may");
        }
    }

    /// Checks that the lock of a run that is over is free by now, unless one of its requests arrived late, or the lock
    /// was handed to it after its end.
    pub fn is_free_of(&mut self, run: RunId) {
        let (plan, last_arrival, now_ms) = (&self.runs[run].plan, self.runs[run].last_arrival, self.server_ms());
        let token = &plan.claim.token;
        let holder = self.server.state.holders.iter().find(|holder| holder.token == *token);
        let Some(holder) = holder.filter(|_| self.server.is_held_by(token, now_ms)) else { return };
        let since = self.now.saturating_sub(now_ms.saturating_sub(holder.since_ms) * MILLISECOND);
        let by = last_arrival.max(since) + nanos(plan.terms.ttl) + SECOND;
        if self.now < by {
            self.schedule(by, Event::Freed { run });
        } else {
            self.fail(&format!(
                "the lock of run {run} is not free {} ms after its end",
                nanos(plan.terms.ttl) / MILLISECOND
            ));
        }
    }

    /// Checks that a living waiter gets a lock that no living run uses, within one lease and [`NOTICED_WITHIN`].
    fn no_waiter_waits_for_the_dead(&mut self) {
        let (now_ms, now) = (self.server_ms(), self.now);
        let is_sound =
            self.server.is_up && !self.server.is_paused && self.hosts.iter().all(super::network::Host::is_sound);
        let lives = |run: &Run| run.guardian.is_running() && run.lockrun.is_running();
        let state = &self.server.state;
        let run_of = |token: &Token| &self.runs[run_of(token)];
        // A waiter that was cut off or stopped until a moment ago may have lost its place without knowing it.
        let has_asked_since = |run: &Run, since: Nanos| {
            let asks_within = nanos(run.plan.claim.place()) + nanos(run.plan.terms.store_timeout);
            since == 0 || since.saturating_add(asks_within) <= now
        };
        let is_there = |run: &Run| run.is_waiting && lives(run);
        let is_settled =
            |run: &Run| has_asked_since(run, run.undisturbed_since) && has_asked_since(run, self.promises.sound_since);
        // Those behind it wait for it, if it may not have the lock yet.
        let first = state.waiters.iter().find(|waiter| is_there(run_of(&waiter.token)));
        let first = first.filter(|waiter| is_settled(run_of(&waiter.token)));
        let in_force = state.holders.iter().filter(|holder| self.server.is_held_by(&holder.token, now_ms));
        let is_used = |holder: &&HolderState| {
            let run = run_of(&holder.token);
            holder.purpose == Purpose::Kept || lives(run) || run.command.is_under_lock()
        };
        let used: Vec<Mode> = in_force.filter(is_used).map(|holder| holder.mode).collect();
        let has_room = |mode: Mode| match mode {
            Mode::Shared => used.iter().all(|mode| *mode == Mode::Shared),
            Mode::Slots(slots) => used.len() < slots as usize && used.iter().all(|mode| *mode != Mode::Shared),
        };
        let is_kept = is_sound && first.is_some_and(|first| has_room(first.mode));
        if !is_kept {
            self.promises.kept = None;
            return;
        }
        let before = self.promises.kept.filter(|before| before.used == used.len());
        let since = before.map_or(now, |before| before.since).max(self.promises.disturbed_at);
        self.promises.kept = Some(Kept { since, used: used.len() });
        if now > since + self.scenario.ttl() + NOTICED_WITHIN {
            let why = format!(
                "no living run uses the lock for {} ms, and run {:?} waits",
                (now - since) / MILLISECOND,
                first.map(|it| it.token.as_str())
            );
            self.fail(&why);
        }
    }
}
