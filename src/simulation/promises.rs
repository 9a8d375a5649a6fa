//! What must hold at every step, whatever goes wrong.

use super::actors::nanos;
use super::scenario::Sharing;
use super::world::{Event, MILLISECOND, Nanos, Run, RunId, SECOND, World};
use crate::lock::claim::Mode;
use crate::lock::state::LockState;
use crate::lock::token::Token;
use crate::supervise::{Descendants, Finished};

/// After a disturbance, a waiter is back within this time and its `--store-timeout`: a request without an answer has timed out,
/// and the next heartbeat has come.
const SETTLES_WITHIN: Nanos = 12 * SECOND;

/// Absent waiters keep the others from a free lock for this long at most. If a lease, or a grant from before the last fault, has lapsed,
/// this counts from the moment when it is noticed.
const KEPT_FOR: Nanos = 2 * SECOND;

/// A lapsed lease or grant is noticed, and the lock granted to the next waiter, within this time.
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
    /// Since when a present waiter could have had the lock; `None` if none could now.
    kept: Option<Kept>,
    /// How many commands have started.
    pub started: u64,
}

/// The time in which a present waiter could have had the lock.
#[derive(Clone, Copy)]
struct Kept {
    since: Nanos,
    /// How many held the lock in that time.
    held: usize,
    /// When everything that had lapsed by `since` had been noticed.
    noticed_at: Option<Nanos>,
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

    /// Checks the server's answer that this run has the lock.
    pub fn acquired(&mut self, run: RunId, before: &LockState, fence: u64) {
        let token = &self.runs[run].plan.claim.token;
        if before.holders.iter().any(|holder| holder.token == *token) {
            return;
        }
        let now_ms = self.server_ms();
        let was_granted = before.waiters.iter().any(|waiter| waiter.token == *token && waiter.grant.is_some());
        let mut ahead = before.waiters.iter().take_while(|waiter| waiter.token != *token);
        let overtaken = ahead.find(|ahead| {
            let now = self.server.state.waiters.iter().find(|waiter| waiter.token == ahead.token);
            !was_granted && now.is_some_and(|now| self.server.is_willing(now, now_ms))
        });
        if let Some(overtaken) = overtaken {
            let why = format!("run {run} overtakes run {}", overtaken.token.as_str());
            self.fail(&why);
        }
        if fence <= self.promises.last_fence {
            self.fail(&format!("run {run} gets a fence that is not greater than one before"));
        }
        self.promises.last_fence = fence;
    }

    /// Checks that no waiter is granted the lock while an earlier one is present and has no grant.
    pub fn grants_are_in_order(&mut self, before: &LockState, granted: &[Token]) {
        let now_ms = self.server_ms();
        for token in granted {
            let ahead = before.waiters.iter().take_while(|waiter| waiter.token != *token);
            let state = &self.server.state;
            let place = |token: &Token| state.waiters.iter().position(|waiter| waiter.token == *token);
            for ahead in ahead {
                let now = state.waiters.iter().find(|waiter| waiter.token == ahead.token);
                let is_willing = now.is_some_and(|now| self.server.is_willing(now, now_ms));
                if is_willing && place(&ahead.token) < place(token) {
                    let why = format!("run {} is passed by for run {}", ahead.token.as_str(), token.as_str());
                    return self.fail(&why);
                }
            }
        }
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

    /// Checks that the lock of a run that is over is free by now, unless one of its requests arrived late.
    pub fn is_free_of(&mut self, run: RunId) {
        let (plan, last_arrival) = (&self.runs[run].plan, self.runs[run].last_arrival);
        let by = last_arrival + nanos(plan.terms.ttl) + SECOND;
        if !self.server.is_held_by(&plan.claim.token, self.server_ms()) {
            return;
        }
        if self.now < by {
            self.schedule(by, Event::Freed { run });
        } else {
            self.fail(&format!(
                "the lock of run {run} is not free {} ms after its end",
                nanos(plan.terms.ttl) / MILLISECOND
            ));
        }
    }

    /// Checks that the first waiter that is present soon gets a free lock.
    fn no_waiter_waits_for_the_dead(&mut self) {
        let (now_ms, now) = (self.server_ms(), self.now);
        let is_sound =
            self.server.is_up && !self.server.is_paused && self.hosts.iter().all(super::network::Host::is_sound);
        let sound_since = self.promises.sound_since;
        let has_settled = |since: Nanos, run: &Run| {
            let settles_within = SETTLES_WITHIN + nanos(run.plan.terms.store_timeout);
            since == 0 || since.saturating_add(settles_within) <= now
        };
        let state = &self.server.state;
        let run_of = |token: &Token| token.as_str().parse().ok().map(|run: RunId| &self.runs[run]);
        let is_there = |run: &Run| run.is_waiting && run.guardian.is_running() && run.lockrun.is_running();
        // The server may not know yet whether a recently disturbed waiter is present.
        let first = state.waiters.iter().find(|waiter| run_of(&waiter.token).is_some_and(is_there));
        let has_settled = |run: &Run| has_settled(run.undisturbed_since, run) && has_settled(sound_since, run);
        let first = first.filter(|it| run_of(&it.token).is_some_and(has_settled));
        let in_force = || state.holders.iter().filter(|holder| self.server.is_held_by(&holder.token, now_ms));
        let has_room = |mode: Mode| match mode {
            Mode::Shared => in_force().all(|holder| holder.mode == Mode::Shared),
            Mode::Slots(slots) => {
                in_force().count() < slots as usize && !in_force().any(|holder| holder.mode == Mode::Shared)
            }
        };
        let is_blocked = is_sound && first.is_some_and(|first| has_room(first.mode));
        if !is_blocked {
            self.promises.kept = None;
            return;
        }
        let held = in_force().count();
        let before = self.promises.kept.filter(|before| before.held == held);
        // A grant from before the last fault may have to lapse first: the waiters behind it may have died after their last sign
        // of life.
        let disturbed_ms = now_ms - (now - self.promises.disturbed_at) / MILLISECOND;
        let grants = state.waiters.iter().filter_map(|waiter| waiter.grant);
        let earlier = grants.filter(|grant| grant.since_ms <= disturbed_ms).map(|grant| grant.ends_ms).max();
        let lapses =
            earlier.filter(|ends_ms| *ends_ms > now_ms).map_or(0, |ends_ms| now + (ends_ms - now_ms) * MILLISECOND);
        let since = before.map_or(now, |before| before.since).max(self.promises.disturbed_at).max(lapses);
        // Each operation but a renewal drops what has lapsed, and then grants what is free: if nothing lapsed is left, it was noticed.
        let mut grants = state.waiters.iter().filter_map(|waiter| waiter.grant);
        let has_lapsed = state.holders.len() > held || grants.any(|grant| grant.ends_ms <= now_ms);
        let noticed = (now >= since && !has_lapsed).then_some(now);
        let noticed_at = before.and_then(|before| before.noticed_at).filter(|at| *at >= since).or(noticed);
        self.promises.kept = Some(Kept { since, held, noticed_at });
        let until = noticed_at.map_or(since + NOTICED_WITHIN, |at| at + KEPT_FOR);
        if now > until {
            let why = format!(
                "the lock is free for {} ms, and run {:?} waits",
                (now - since) / MILLISECOND,
                first.map(|it| it.token.as_str())
            );
            self.fail(&why);
        }
    }
}
