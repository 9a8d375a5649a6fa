//! The side of the state: it plays the steps, and predicts Redis's answers.

use std::collections::{BTreeMap, HashMap};
use std::slice;
use std::time::Duration;

use redis::Cmd;
use serde_json::json;

use super::answer::{Answer, HolderSeen, Reader, not_mine};
use super::scripts::{Scripts, run};
use super::steps::Step;
use super::view::View;
use crate::lock::claim::{Claim, Mode};
use crate::lock::holder::Holder;
use crate::lock::key::Key;
use crate::lock::lease::Ttl;
use crate::lock::state::{Applied, Ask, IfHeld, LockState, Now, Release, StoreView, Wanted};
use crate::lock::token::Token;
use crate::store::redis::{millis, release_args, slots, ttl_ms};
use crate::store::{Acquired, Grant, Held, Released, Renewed, Reserved, Revoked};
use crate::sys::clock::Moment;

/// The state of a history so far, and what to ask Redis.
pub(super) struct Model<'a> {
    pub(super) state: LockState,
    pub(super) view: World,
    scripts: &'a Scripts,
    pub(super) script: Vec<Line>,
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
    /// What must be kept then, and the waiters that the step must have woken, by their tokens, with the text of their
    /// mail.
    pub(super) kept: Option<(View, BTreeMap<String, String>)>,
}

/// What the store knows beside the state.
pub(super) struct World {
    pub(super) now: u64,
}

impl StoreView for World {
    fn now(&self) -> Now {
        Now::unix(self.now)
    }
}

impl<'a> Model<'a> {
    pub(super) fn new(scripts: &'a Scripts, now: u64) -> Self {
        let view = World { now };
        Model { state: LockState::default(), view, scripts, script: Vec::new(), is_over: false }
    }

    /// Plays a step.
    pub(super) fn step(&mut self, step: &Step) {
        match step {
            Step::Time(now) => self.view.now = *now,
            Step::Acquire { .. } => self.acquire(step),
            Step::Reserve { .. } => self.reserve(step),
            Step::Renew { token, ttl, of_run } => self.renew(step, token, *ttl, *of_run),
            Step::Release { token, release, is_in_flight } => self.release(step, token, *release, *is_in_flight),
            Step::Cancel { token, request, is_in_flight } => {
                self.cancel(step, token, request.as_deref(), *is_in_flight);
            }
            Step::Revoke { fence, at_once } => self.revoke(step, *fence, *at_once),
            Step::Status => {
                let status = self.state.status(Key::new("k".as_ref()).expect("is a key"), &self.view);
                self.line(step, self.run(&self.scripts.list, &[]), Reader::List, Answer::status(status), &[]);
            }
            Step::Prune { unused_for, really } => self.prune(step, *unused_for, *really),
            Step::ForgetSuccess => {
                let is_forgotten = Answer::new(format!("forgotten: {}", self.state.forget_success().answer));
                self.line(step, self.run(&self.scripts.forget, &[]), Reader::ForgetSuccess, is_forgotten, &[]);
            }
            Step::Forget => {
                self.state = LockState::default();
                self.unanswered(step, redis::cmd("FLUSHALL"));
            }
            Step::Fence(fence) => {
                self.state.fence = *fence;
                self.unanswered(step, redis::cmd("SET").arg("fence").arg(fence).take());
            }
            Step::Look => self.cancel(step, "nobody", None, false),
        }
    }

    fn acquire(&mut self, step: &Step) {
        let Step::Acquire { token, waits, max, by_hand, mode, once_per, ttl, request } = step else { unreachable!() };
        let claim = Claim {
            mode: *mode,
            once_per: *once_per,
            by_hand: *by_hand,
            request: request.as_deref().map(parse),
            ..claim(token, *ttl)
        };
        let if_held = if *waits { IfHeld::Queue { max_waiting: *max, until: None } } else { IfHeld::Leave };
        let ask = Ask { claim: &claim, leased: true, sent_at: Moment::from_boot(Duration::ZERO), if_held };
        let args = [
            token.clone(),
            ttl_ms(*ttl).to_string(),
            json!(claim.holder).to_string(),
            u8::from(*waits).to_string(),
            millis(claim.place()).to_string(),
            u8::from(*by_hand).to_string(),
            slots(*mode).to_string(),
            request.clone().unwrap_or_default(),
            max.map(|max| max.to_string()).unwrap_or_default(),
            once_per.map_or(0, millis).to_string(),
        ];
        let command = self.run(&self.scripts.acquire, &args);
        let Ok(Applied { answer, woken, .. }) = self.state.acquire(&ask, &self.view) else {
            return self.fails(step, command, Reader::Acquire);
        };
        let answer = match answer {
            Acquired::Mine(Grant { fence, slot, .. }) => Answer::new(format!("mine: fence {fence}, slot {slot}")),
            // Nobody reads the answer to a cancelled request.
            Acquired::Held(held) | Acquired::NotQueued(held) => {
                let or_none = |number: Option<u128>| number.map_or("-1".into(), |number| number.to_string());
                let place = or_none(held.place.map(u128::from));
                let look_in = or_none(held.look_in.map(|span| span.as_millis()));
                let words = not_mine(&place, &look_in, &held.last_fence.to_string());
                Answer { holder: self.named(Some(&held)), ..Answer::new(words) }
            }
            Acquired::NotNeeded(success) => Answer::new(format!("done by one that began at {}", success.began_ms)),
            Acquired::Interrupted(_) => unreachable!("no rule says this"),
        };
        self.line(step, command, Reader::Acquire, answer, &woken);
    }

    fn reserve(&mut self, step: &Step) {
        let Step::Reserve { token, wanted, ttl } = step else { unreachable!() };
        let claim = claim(token, *ttl);
        let ask =
            Ask { claim: &claim, leased: true, sent_at: Moment::from_boot(Duration::ZERO), if_held: IfHeld::Leave };
        let mut args = vec![token.clone(), ttl_ms(*ttl).to_string(), json!(claim.holder).to_string()];
        match wanted {
            Wanted::Next { from, step } => args.extend(["step".into(), from.to_string(), step.to_string()]),
            Wanted::Value { value, after, steps } => {
                args.extend(["value".into(), value.clone(), after.clone().unwrap_or_default(), steps.to_string()]);
            }
        }
        let command = self.run(&self.scripts.reserve, &args);
        let Ok(applied) = self.state.reserve(&ask, wanted, &self.view) else {
            return self.fails(step, command, Reader::Reserve);
        };
        let words = match &applied.answer {
            // The slot is not in the reply, but is kept.
            Reserved::Mine(Grant { fence, .. }, value) => format!("mine: fence {fence}, value {value}"),
            Reserved::Taken => "taken".into(),
            Reserved::NoNext(last) => format!("nothing after {last}"),
            Reserved::LastChanged(last) => format!("moved to {}", last.as_deref().unwrap_or_default()),
            Reserved::Withheld(_) => unreachable!("no rule says this"),
        };
        self.line(step, command, Reader::Reserve, Answer::new(words), &applied.woken);
    }

    fn renew(&mut self, step: &Step, token: &str, ttl: Option<Ttl>, of_run: bool) {
        let ms = ttl.map_or("-1".into(), |ttl| ttl_ms(ttl).to_string());
        let args = [token.to_owned(), ms, u8::from(of_run).to_string()];
        let command = self.run(&self.scripts.renew, &args);
        let applied = match ttl.filter(|_| of_run) {
            Some(ttl) => self.state.renew_run(&parse(token), ttl, &self.view),
            None => self.state.renew(&parse(token), ttl, &self.view),
        };
        let answer = match applied.answer {
            Renewed::Mine => Answer::new("mine"),
            Renewed::NotMine(held) => Answer { holder: self.named(held.as_ref()), ..Answer::new("not mine") },
            Renewed::Revoked(by) => Answer::new(format!("revoked by {:?}", by.command)),
        };
        self.line(step, command, Reader::Renew, answer, &applied.woken);
    }

    fn release(&mut self, step: &Step, token: &str, release: Release, is_in_flight: bool) {
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
        let command = self.run(&self.scripts.release, &args);
        // Those before the hand-off.
        let held = self.named(self.state.first_held(self.view.now(), &self.view).as_ref());
        let applied = self.state.release(&parse(token), release, is_in_flight, &self.view);
        let words = match applied.answer {
            Released::Free => "free",
            Released::Retained => "retained",
            Released::WhenItEnds => "when it ends",
            Released::NotMine(_) => "not mine",
            Released::Unrecorded(_) => unreachable!("no rule says this"),
        };
        let names_holder = release == Release::ByHand && words == "not mine";
        let holder = if names_holder { held } else { Vec::new() };
        self.line(step, command, Reader::Release, Answer { words: words.into(), holder }, &applied.woken);
    }

    fn cancel(&mut self, step: &Step, token: &str, request: Option<&str>, is_in_flight: bool) {
        let in_flight = u8::from(is_in_flight).to_string();
        let args = [token, "", &in_flight, "cancel", "0", "0", request.unwrap_or_default()].map(str::to_owned);
        let command = self.run(&self.scripts.release, &args);
        let request = request.map(parse);
        let applied = self.state.cancel(&parse(token), request.as_ref(), is_in_flight, &self.view);
        let answer = Answer::new(if applied.answer { "cancelled" } else { "another request's" });
        self.line(step, command, Reader::Cancel, answer, &applied.woken);
    }

    fn revoke(&mut self, step: &Step, fence: Option<u64>, at_once: bool) {
        let by = Holder { command: "admin".into(), ..Holder::default() };
        let holders = self.state.holders.iter().filter(|holder| fence.is_none_or(|fence| holder.fence == fence));
        let named: HashMap<_, _> = holders.map(|it| (it.token.as_str().to_owned(), it.fence.to_string())).collect();
        let args = [json!(named).to_string(), json!(by).to_string(), u8::from(at_once).to_string()];
        let command = self.run(&self.scripts.revoke, &args);
        let applied = self.state.revoke(fence.as_ref().map(slice::from_ref), &by, at_once, &self.view);
        let all = |holders: &[Held]| {
            let mut holders: Vec<_> = holders.iter().map(|held| HolderSeen::of(held, self.view.now)).collect();
            holders.sort();
            holders
        };
        let words = match &applied.answer {
            Revoked::Free => "free".into(),
            Revoked::Others(others) => format!("others: {:?}", all(others)),
            Revoked::From { from, free_in, may_run_unaware, .. } => {
                format!("from: {:?}, free in {}, untold {may_run_unaware}", all(from), free_in.as_millis())
            }
        };
        self.line(step, command, Reader::Revoke, Answer::new(words), &applied.woken);
    }

    fn prune(&mut self, step: &Step, unused_for: u64, really: bool) {
        let args = [unused_for.to_string(), u8::from(really).to_string()];
        let command = self.run(&self.scripts.prune, &args);
        // Redis keeps cancelled requests apart from the key.
        let cancelled = std::mem::take(&mut self.state.cancelled);
        let is_prunable = self.state.is_prunable(Duration::from_millis(unused_for), &self.view);
        if is_prunable && really {
            self.state = LockState::default();
        }
        self.state.cancelled = cancelled;
        self.line(step, command, Reader::Prune, Answer::new(format!("to be pruned: {is_prunable}")), &[]);
    }

    /// Returns the holders that an answer may name in place of the first one: those whose leases end at the same time.
    fn named(&self, first: Option<&Held>) -> Vec<HolderSeen> {
        let Some(first) = first.filter(|held| held.holder.is_some()) else { return Vec::new() };
        let now = self.view.now();
        let holders = self.state.holders.iter().map(|holder| holder.held(now));
        let alike = holders.filter(|held| held.expires_in == first.expires_in);
        alike.map(|held| HolderSeen::of(&held, now.ms)).collect()
    }

    /// Returns when one of the next leases or places ends; now, if none does.
    pub(super) fn some_end(&self, number: u64) -> u64 {
        let leases = self.state.holders.iter().filter_map(|holder| holder.lease?.ends_ms);
        let places = self.state.waiters.iter().map(|waiter| waiter.ends_ms);
        let mut ends: Vec<_> = leases.chain(places).filter(|ends| *ends > self.view.now).collect();
        ends.sort_unstable();
        let at = usize::try_from(number).expect("is small").min(ends.len().saturating_sub(1));
        ends.get(at).copied().unwrap_or(self.view.now)
    }

    fn run(&self, script: &str, args: &[String]) -> Cmd {
        run(script, args, self.view.now)
    }

    fn line(&mut self, step: &Step, command: Cmd, reader: Reader, answer: Answer, woken: &[Token]) {
        let mail = |token: &Token| {
            let holder = self.state.holders.iter().find(|holder| holder.token == *token);
            let what = holder.map_or(String::new(), |holder| format!("{} {}", holder.fence, holder.slot));
            (token.as_str().to_owned(), what)
        };
        let kept = Some((View::of_state(&self.state, &self.view), woken.iter().map(mail).collect()));
        let step = format!("{step:?}");
        self.script.push(Line { step, command, reader, now: self.view.now, answer: Some(answer), kept });
    }

    /// Notes a command of the server's own.
    fn unanswered(&mut self, step: &Step, command: Cmd) {
        let (step, answer) = (format!("{step:?}"), Some(Answer::default()));
        self.script.push(Line { step, command, reader: Reader::Nothing, now: self.view.now, answer, kept: None });
    }

    fn fails(&mut self, step: &Step, command: Cmd, reader: Reader) {
        let step = format!("{step:?}");
        self.script.push(Line { step, command, reader, now: self.view.now, answer: None, kept: None });
        self.is_over = true;
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
