//! The side of the state: it plays the steps, and predicts Redis's answers.

use std::collections::HashMap;
use std::slice;

use redis::Cmd;
use serde_json::json;

use super::answer::{Answer, HolderSeen, Reader};
use super::scripts::{Scripts, run};
use super::steps::{LATE, Step};
use super::view::View;
use crate::lock::claim::{Claim, Mode};
use crate::lock::holder::Holder;
use crate::lock::key::Key;
use crate::lock::lease::Ttl;
use crate::lock::state::{
    Acquired, Ask, Facts, Held, LockState, Now, OnHeld, Presence, Purpose, Release, Released, Renewed, Reserved,
    Revoked, Seen, WaiterState, Wanted,
};
use crate::lock::token::Token;
use crate::store::redis::{millis, release_args, seen_json, slots, ttl_ms};
use crate::store::{HolderStatus, KeyStatus, PastRun, WaiterStatus};

/// The state of a history so far, and what to ask Redis.
pub(super) struct Model<'a> {
    pub(super) state: LockState,
    pub(super) facts: World,
    scripts: &'a Scripts,
    /// The holder that each waiter saw last.
    pub(super) seen: HashMap<String, Seen>,
    pub(super) script: Vec<Line>,
    /// The waiters that the last step granted the lock, if Redis leaves that to the next step.
    left: Vec<String>,
    /// No fence is left: the state must not be stored, so the history ends.
    pub(super) is_over: bool,
}

/// One command of a history, and its expected result.
pub(super) struct Line {
    pub(super) step: String,
    pub(super) command: Cmd,
    pub(super) reader: Reader,
    pub(super) now: u64,
    /// `None`: the script must fail.
    pub(super) answer: Option<Answer>,
    /// What must be kept then, if both sides have noticed what has ended.
    pub(super) view: Option<View>,
}

/// What the store knows beside the state.
pub(super) struct World {
    pub(super) now: u64,
    /// The waiters that do not listen, and since when.
    pub(super) silent: HashMap<String, u64>,
}

impl Facts for World {
    fn now(&self) -> Now {
        Now::unix(self.now)
    }

    /// Judges like the heartbeats: a waiter counts as dead when it has not looked for [`LATE`]. One that was granted the lock
    /// and does not claim it was due to look at once.
    fn presence(&self, waiter: &WaiterState) -> Presence {
        let silent_since = self.silent.get(waiter.token.as_str()).copied();
        let waited_for_since = waiter.grant.map(|grant| grant.since_ms).or(silent_since);
        let is_granted = waiter.grant.is_some_and(|grant| self.now < grant.ends_ms);
        if !is_granted && waited_for_since.is_some_and(|since| since + LATE <= self.now) {
            Presence::Gone
        } else if silent_since.is_some() {
            Presence::Silent
        } else {
            Presence::Listening
        }
    }
}

impl<'a> Model<'a> {
    pub(super) fn new(scripts: &'a Scripts, now: u64) -> Self {
        Model {
            state: LockState::default(),
            facts: World { now, silent: HashMap::new() },
            scripts,
            seen: HashMap::new(),
            script: Vec::new(),
            left: Vec::new(),
            is_over: false,
        }
    }

    /// Plays a step.
    pub(super) fn step(&mut self, step: &Step) {
        let grants = self.grants();
        // Whether the step may have left it to the next one to notice what has ended: then a status is asked for.
        let mut is_left = false;
        match step {
            Step::Time(now) => return self.facts.now = *now,
            Step::Acquire { .. } => is_left = self.acquire(step),
            Step::Reserve { .. } => is_left = self.reserve(step),
            Step::Renew { token, ttl, of_run } => is_left = self.renew(step, token, *ttl, *of_run),
            Step::Release { token, release, is_in_flight } => {
                is_left = self.release(step, token, *release, *is_in_flight);
            }
            Step::Cancel { token, request, is_in_flight } => {
                is_left = self.cancel(step, token, request.as_deref(), *is_in_flight);
            }
            Step::Revoke { fence, at_once } => is_left = self.revoke(step, *fence, *at_once),
            Step::FallSilent(token) => {
                self.silent(step, token);
                is_left = true;
            }
            Step::Status => {
                let answer = self.status();
                self.line(step, self.run(&self.scripts.list, &[], ""), Reader::List, answer, false);
            }
            Step::Prune { unused_for, really } => {
                self.prune(step, *unused_for, *really);
                is_left = true;
            }
            Step::Forget => {
                self.state = LockState::default();
                self.facts.silent.clear();
                self.line(step, redis::cmd("FLUSHALL"), Reader::Nothing, Answer::default(), false);
            }
            Step::ForgetHolders => {
                self.state.holders.clear();
                self.line(step, self.run(&self.scripts.forget, &[], ""), Reader::Nothing, Answer::default(), false);
                is_left = true;
            }
            Step::Fence(fence) => {
                self.state.fence = *fence;
                let command = redis::cmd("SET").arg("fence").arg(fence).take();
                self.line(step, command, Reader::Nothing, Answer::default(), false);
            }
            Step::Look => {
                self.cancel(step, "nobody", None, false);
            }
        }
        self.note_unclaimed(&grants);
        if is_left && !self.is_over {
            self.step(&Step::Look);
        }
    }

    fn acquire(&mut self, step: &Step) -> bool {
        let Step::Acquire { token, waits, max, by_hand, mode, once_per, ttl, request, seen } = step else {
            unreachable!()
        };
        let claim = Claim {
            mode: *mode,
            once_per: *once_per,
            by_hand: *by_hand,
            request: request.as_deref().map(parse),
            ..claim(token, *ttl)
        };
        let on_held = if *waits { OnHeld::Wait { max: *max } } else { OnHeld::Leave };
        let ask = Ask { claim: &claim, leased: true, request: claim.request.as_ref(), on_held, seen: seen.as_ref() };
        let args = [
            token.clone(),
            ttl_ms(*ttl).to_string(),
            json!(claim.holder).to_string(),
            u8::from(*waits).to_string(),
            seen_json(seen.as_ref()),
            u8::from(*by_hand).to_string(),
            slots(*mode).to_string(),
            request.clone().unwrap_or_default(),
            max.map(|max| max.to_string()).unwrap_or_default(),
            once_per.map_or(0, millis).to_string(),
        ];
        let command = self.run(&self.scripts.acquire, &args, token);
        let reader = Reader::Acquire { waits: *waits };
        let is_silent = self.facts.silent.remove(token);
        let Ok(applied) = self.state.acquire(&ask, &self.facts) else {
            return self.fails(step, command, reader);
        };
        let answer = match applied.answer {
            Acquired::Mine { fence, slot, .. } => {
                self.seen.remove(token);
                Answer::new(format!("mine: fence {fence}, slot {slot}"))
            }
            Acquired::Held { first, place, ended_unix_ms } => {
                self.note_seen(token, *waits && place.is_some(), first.as_ref(), ended_unix_ms);
                let place = place.map_or("-1".into(), |place| place.to_string());
                let place = if *waits { format!(", place {place}") } else { String::new() };
                Answer { holder: self.named(first.as_ref()), ..Answer::new(format!("not mine{place}")) }
            }
            Acquired::NotNeeded { began_unix_ms } => {
                self.seen.remove(token);
                Answer::new(format!("done by one that began at {began_unix_ms}"))
            }
            // The client cannot tell the difference; it is gone.
            Acquired::Cancelled => {
                if let Some(since) = is_silent {
                    self.facts.silent.insert(token.clone(), since);
                }
                let answer = Answer::new(if *waits { "not mine, place 0" } else { "not mine" });
                self.line(step, command, reader, answer, false);
                return true;
            }
        };
        let answer = Answer { granted: Some(names(&applied.granted)), ..answer };
        self.line(step, command, reader, answer, true);
        false
    }

    fn reserve(&mut self, step: &Step) -> bool {
        let Step::Reserve { token, wanted, ttl } = step else { unreachable!() };
        let claim = claim(token, *ttl);
        let ask = Ask { claim: &claim, leased: true, request: None, on_held: OnHeld::Leave, seen: None };
        let mut args = vec![token.clone(), ttl_ms(*ttl).to_string(), json!(claim.holder).to_string()];
        match wanted {
            Wanted::Next { from, step } => args.extend(["step".into(), from.to_string(), step.to_string()]),
            Wanted::Value { value, after, steps } => {
                args.extend(["value".into(), value.clone(), after.clone().unwrap_or_default(), steps.to_string()]);
            }
        }
        let command = self.run(&self.scripts.reserve, &args, "");
        let Ok(applied) = self.state.reserve(&ask, wanted, &self.facts) else {
            return self.fails(step, command, Reader::Reserve);
        };
        let words = match &applied.answer {
            // The slot is not in the reply, but is kept.
            Reserved::Mine { fence, value, .. } => format!("mine: fence {fence}, value {value}"),
            Reserved::Taken => "taken".into(),
            Reserved::NoNext(last) => format!("nothing after {last}"),
            Reserved::LastChanged(last) => format!("moved to {}", last.as_deref().unwrap_or_default()),
            Reserved::Cancelled => "cancelled".into(),
        };
        let is_left = applied.answer == Reserved::Cancelled;
        self.line(step, command, Reader::Reserve, Answer::new(words), !is_left);
        is_left
    }

    fn renew(&mut self, step: &Step, token: &str, ttl: Option<Ttl>, of_run: bool) -> bool {
        let ms = ttl.map_or("-1".into(), |ttl| ttl_ms(ttl).to_string());
        let args = [token.to_owned(), ms, u8::from(of_run).to_string()];
        let command = self.run(&self.scripts.renew, &args, "");
        let applied = match ttl.filter(|_| of_run) {
            Some(ttl) => self.state.renew_run(&parse(token), ttl, &self.facts),
            None => self.state.renew(&parse(token), ttl, &self.facts),
        };
        let answer = match applied.answer {
            Renewed::Mine => Answer::new("mine"),
            Renewed::NotMine(held) => Answer { holder: self.named(held.as_ref()), ..Answer::new("not mine") },
            Renewed::Revoked(by) => Answer::new(format!("revoked by {:?}", by.command)),
        };
        self.line(step, command, Reader::Renew, answer, false);
        true
    }

    fn release(&mut self, step: &Step, token: &str, release: Release, is_in_flight: bool) -> bool {
        let (ending, how, span, succeeded) = release_args(release);
        let request = if release == Release::ByHand { format!("release {}", self.script.len()) } else { String::new() };
        let args = [
            token.to_owned(),
            ending,
            u8::from(is_in_flight).to_string(),
            how.to_owned(),
            span.to_string(),
            u8::from(succeeded).to_string(),
            request,
        ];
        let command = self.run(&self.scripts.release, &args, "");
        let name = parse(token);
        let is_repeated = self.state.holders.iter().any(|it| it.token == name && it.purpose != Purpose::Run);
        let before = self.facts.now;
        let held = self.state.first_held(Now::unix(before), &self.facts);
        let held = self.named(held.as_ref());
        let applied = self.state.release(&name, release, is_in_flight, &self.facts);
        let by_hand = release == Release::ByHand;
        let (words, is_left) = match applied.answer {
            Released::Free => ("free", false),
            Released::Retained => ("retained", is_repeated),
            Released::WhenItEnds => ("when it ends", true),
            Released::NotMine(_) => ("not mine", by_hand),
        };
        let holder = if by_hand && words == "not mine" { held } else { Vec::new() };
        let granted = self.granted(&applied.granted, is_left);
        self.line(step, command, Reader::Release, Answer { words: words.into(), holder, granted }, !is_left);
        is_left
    }

    fn cancel(&mut self, step: &Step, token: &str, request: Option<&str>, is_in_flight: bool) -> bool {
        let in_flight = u8::from(is_in_flight).to_string();
        let request_arg = request.unwrap_or_default();
        let args = [token, "", &in_flight, "cancel", "0", "0", request_arg].map(str::to_owned);
        let command = self.run(&self.scripts.release, &args, "");
        let request = request.map(parse);
        let applied = self.state.cancel(&parse(token), request.as_ref(), is_in_flight, &self.facts);
        let is_left = !applied.answer;
        let answer = Answer::new(if applied.answer { "cancelled" } else { "another request's" });
        let granted = self.granted(&applied.granted, is_left);
        self.line(step, command, Reader::Cancel, Answer { granted, ..answer }, !is_left);
        is_left
    }

    fn revoke(&mut self, step: &Step, fence: Option<u64>, at_once: bool) -> bool {
        let by = Holder { command: "admin".into(), ..Holder::default() };
        let holders = self.state.holders.iter().filter(|holder| fence.is_none_or(|fence| holder.fence == fence));
        let named: HashMap<_, _> = holders.map(|it| (it.token.as_str().to_owned(), it.fence.to_string())).collect();
        let args = [json!(named).to_string(), json!(by).to_string(), u8::from(at_once).to_string()];
        let command = self.run(&self.scripts.revoke, &args, "");
        let applied = self.state.revoke(fence.as_ref().map(slice::from_ref), &by, at_once, &self.facts);
        let free_in = applied.answer.free_in_ms(Now::unix(self.facts.now));
        let all = |holders: &[Held]| {
            let mut holders: Vec<_> = holders.iter().map(HolderSeen::of_state).collect();
            holders.sort();
            holders
        };
        let (words, is_left) = match &applied.answer {
            Revoked::Free => ("free".into(), true),
            Revoked::Others(others) => (format!("others: {:?}", all(others)), true),
            Revoked::From { from, may_run_unaware, .. } => {
                (format!("from: {:?}, free in {free_in}, untold {may_run_unaware}", all(from)), false)
            }
        };
        let granted = self.granted(&applied.granted, is_left);
        self.line(step, command, Reader::Revoke, Answer { granted, ..Answer::new(words) }, !is_left);
        is_left
    }

    /// Returns the waiters that a step granted the lock. If Redis leaves that to the next step, that step returns them.
    fn granted(&mut self, tokens: &[Token], is_left: bool) -> Option<Vec<String>> {
        self.left.extend(names(tokens));
        (!is_left).then(|| std::mem::take(&mut self.left))
    }

    fn silent(&mut self, step: &Step, token: &str) {
        let command = self.run(&self.scripts.silence, &[token.to_owned()], "");
        // One that was granted the lock was due to look at once, even if the clock was set back since.
        let granted_at = self.grants().get(token).copied();
        self.facts.silent.insert(token.to_owned(), granted_at.unwrap_or(self.facts.now));
        self.line(step, command, Reader::Nothing, Answer::default(), false);
    }

    fn prune(&mut self, step: &Step, unused_for: u64, really: bool) {
        let args = [unused_for.to_string(), u8::from(really).to_string()];
        let command = self.run(&self.scripts.prune, &args, "");
        // Redis keeps cancelled requests apart from the key.
        let mut pruned = LockState { cancelled: Vec::new(), ..self.state.clone() };
        let is_prunable = pruned.is_prunable(std::time::Duration::from_millis(unused_for), &self.facts);
        if is_prunable && really {
            pruned = LockState::default();
            pruned.cancelled.clone_from(&self.state.cancelled);
            self.state = pruned;
        }
        self.line(step, command, Reader::Prune, Answer::new(format!("to be pruned: {is_prunable}")), false);
    }

    fn status(&self) -> Answer {
        let now = self.facts.now;
        let holding = |holder: &crate::lock::state::HolderState| HolderStatus {
            who: holder.who.clone(),
            since_ms: holder.since_ms.min(now),
            has_lease: true,
            expires_in: holder
                .lease
                .and_then(|lease| lease.ends_ms)
                .map(|ends| std::time::Duration::from_millis(ends.saturating_sub(now))),
            fence: holder.fence,
            slot: holder.mode.several_slots().map(|_| holder.slot),
            purpose: holder.purpose,
            is_shared: holder.mode == Mode::Shared,
            value: holder.value.as_ref().map(|value| value.value.clone()),
            revoked: holder.revoked_by.is_some(),
            token: Some(holder.token.clone()),
        };
        let waiting = |waiter: &WaiterState| WaiterStatus { who: waiter.who.clone(), since_ms: Some(waiter.joined_ms) };
        Answer::status(KeyStatus {
            key: Key::new("k".as_ref()).expect("is a key"),
            now_ms: now,
            fence: self.state.fence,
            holders: self.state.holders_in_force(&self.facts).into_iter().map(holding).collect(),
            waiters: self.state.living_waiters(&self.facts).into_iter().map(waiting).collect(),
            last: self.state.last.as_ref().map(|last| PastRun {
                who: last.who.clone(),
                started_ms: last.started_unix_ms,
                ended_ms: last.ended_unix_ms,
                ending: last.ending,
            }),
            success: self.state.success,
            value: self.state.sequence.as_ref().map(|sequence| sequence.last.clone()),
            withheld: None,
        })
    }

    /// Returns the holders that an answer may name in place of the first one: those whose leases end at the same time.
    fn named(&self, first: Option<&Held>) -> Vec<HolderSeen> {
        let Some(first) = first else { return Vec::new() };
        let holders = self.state.holders.iter().map(|holder| HolderSeen::of_state(&holder.held()));
        let granted = self.state.waiters.iter().filter_map(|waiter| {
            let grant = waiter.grant?;
            let token = waiter.token.as_str().to_owned();
            Some(HolderSeen { token, since: grant.since_ms, ends: Some(grant.ends_ms) })
        });
        holders.chain(granted).filter(|it| it.ends == first.ends_ms).collect()
    }

    /// Notes what a waiter remembers of what it saw.
    fn note_seen(&mut self, token: &str, waits: bool, held: Option<&Held>, ended_unix_ms: u64) {
        let before = self.seen.remove(token).filter(|_| waits);
        if let Some(seen) = Seen::after(before, held.filter(|_| waits), ended_unix_ms) {
            self.seen.insert(token.to_owned(), seen);
        }
    }

    /// Returns when the next lease or grant ends; now, if none does.
    pub(super) fn next_end(&self) -> u64 {
        let leases = self.state.holders.iter().filter_map(|holder| holder.lease?.ends_ms);
        let grants = self.state.waiters.iter().filter_map(|waiter| Some(waiter.grant?.ends_ms));
        leases.chain(grants).filter(|ends| *ends > self.facts.now).min().unwrap_or(self.facts.now)
    }

    fn grants(&self) -> HashMap<String, u64> {
        let granted = |waiter: &WaiterState| Some((waiter.token.as_str().to_owned(), waiter.grant?.since_ms));
        self.state.waiters.iter().filter_map(granted).collect()
    }

    /// Notes that a waiter that has not claimed its grant has been silent since the grant.
    fn note_unclaimed(&mut self, before: &HashMap<String, u64>) {
        for waiter in self.state.waiters.iter().filter(|waiter| waiter.is_unresponsive) {
            if let Some(since) = before.get(waiter.token.as_str()) {
                self.facts.silent.insert(waiter.token.as_str().to_owned(), *since);
            }
        }
    }

    fn run(&self, script: &str, args: &[String], asks: &str) -> Cmd {
        run(script, args, asks, self.facts.now)
    }

    fn line(&mut self, step: &Step, command: Cmd, reader: Reader, answer: Answer, is_compared: bool) {
        let view = is_compared.then(|| View::of_state(&self.state, &self.facts));
        let step = format!("{step:?}");
        self.script.push(Line { step, command, reader, now: self.facts.now, answer: Some(answer), view });
    }

    fn fails(&mut self, step: &Step, command: Cmd, reader: Reader) -> bool {
        let step = format!("{step:?}");
        self.script.push(Line { step, command, reader, now: self.facts.now, answer: None, view: None });
        self.is_over = true;
        false
    }
}

fn claim(token: &str, ttl: Ttl) -> Claim {
    Claim {
        key: Key::new("k".as_ref()).expect("is a key"),
        token: parse(token),
        ttl,
        holder: Holder { command: token.to_owned(), ..Holder::default() },
        mode: Mode::EXCLUSIVE,
        once_per: None,
        by_hand: false,
        request: None,
    }
}

fn parse(token: &str) -> Token {
    Token::parse(token).expect("is a token")
}

fn names(tokens: &[Token]) -> Vec<String> {
    tokens.iter().map(|token| token.as_str().to_owned()).collect()
}
