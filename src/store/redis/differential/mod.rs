//! The Lua scripts held against the rules: random histories are played to a [`LockState`] and to the scripts on a Redis server of
//! the test's own, and every answer and all that is kept must be the same.
//!
//! The state goes first, and says for each step what Redis has to answer; then the whole history is sent at once. A failure prints
//! the seed and the steps. `DIFFERENTIAL_SEED=N cargo test differential` plays that history alone, `DIFFERENTIAL_COUNT=N` so many.
//!
//! Both sides are given the same time, and the same waiters: `before.lua` stands in front of each script and puts the history's time
//! in place of the server's, also where keys expire. A state asks its store which waiters are alive; a script reads it from
//! `heartbeats` and mailboxes. So the history decides, and `before.lua` writes what such waiters would have left there: one that
//! listens has looked in time and taken its mail; one that has fallen silent has old mail, is passed by, and counts as dead when it
//! has not looked for `LATE`; one that was granted the lock and does not claim it in time has been silent since.
//!
//! Compared are: answers, with the holder that they name, fences, slots, places, values, and to whom the lock was granted; holders with
//! all that is kept about them; the queue, the grants in it, who is passed by; the last run; the sequence; `status`; pruning.
//!
//! Not compared is what one side does not have, or may do at another time:
//! - How waiters sleep and are woken: mail, watchers, beats, when to look again, and `confirm_handoff.lua`, which shortens a grant whose
//!   mail lies unread. A state leaves that to its store. The hand-off has tests of its own.
//! - When what has ended is seen. An operation that changes nothing may leave that to the next one, in Redis it does; so after such a
//!   step a status is asked for, on both sides. Redis forgets a lease that ran out a minute ago; so one is asked for before.
//! - When a dead waiter is removed: a state does it at once, Redis when it comes by it in the queue. One that comes back before then
//!   has kept its place there.
//! - Which of several holders is named whose leases end at the same time.
//! - Whether a key with a cancelled request is pruned: Redis keeps such requests beside the key, where they outlive it.
//! - A release by hand that is sent again after its answer was lost: Redis knows it by a number, a state does not yet.
//! - Data that is broken or lost in part.

mod answer;
mod model;
mod scripts;
mod server;
mod steps;
mod view;

use std::fmt::Write;
use std::thread;

use redis::Value;

use answer::Answer;
use model::{Line, Model};
use scripts::Scripts;
use server::Server;
use steps::Random;
use view::{View, fields, text};

use super::script::FENCE_ENDS;

#[allow(unused_imports, reason = "the documentation names it")]
use crate::lock::state::LockState;

/// How many histories are played, if the environment does not say.
const HISTORIES: u64 = 3000;

/// When each history begins, in ms of Unix time: so late that the server lets nothing expire by its own time.
const START: u64 = 4_000_000_000_000;

#[test]
fn the_scripts_keep_the_rules() {
    let number = |name| std::env::var(name).ok().map(|text| text.parse::<u64>().expect("is a number"));
    let seeds = match (number("DIFFERENTIAL_SEED"), number("DIFFERENTIAL_COUNT")) {
        (Some(seed), count) => seed..seed + count.unwrap_or(1),
        (None, count) => 0..count.unwrap_or(HISTORIES),
    };
    let mut server = Server::start();
    let scripts = Scripts::load(&mut server);
    for seed in seeds {
        play(seed, &mut server, &scripts);
    }
}

/// The seed of a history, which is said if that fails, in whatever way.
struct Seed(u64);

impl Drop for Seed {
    fn drop(&mut self) {
        if thread::panicking() {
            eprintln!("\nreplay it with DIFFERENTIAL_SEED={}", self.0);
        }
    }
}

/// Plays the history of this seed to both.
fn play(seed: u64, server: &mut Server, scripts: &Scripts) {
    let _seed = Seed(seed);
    let mut model = Model::new(scripts, START);
    steps::play(&mut model, &mut Random(seed));
    let lines = model.script;
    let replies = server.play(lines.iter().map(|line| line.command.clone()).collect());
    for (at, (line, reply)) in lines.iter().zip(&replies).enumerate() {
        if let Err(difference) = compare(line, reply) {
            let history = printed(&lines[..=at]);
            panic!("the scripts and the rules differ\n{history}\n{difference}");
        }
    }
}

/// Compares what a script has done with what the state has done. Returns the difference, if there is one.
fn compare(line: &Line, reply: &Value) -> Result<(), String> {
    let fields = fields(reply);
    let kind = fields.first().map(text).unwrap_or_default();
    let (Some(expected), false) = (&line.answer, kind == "error") else {
        // The only way in which a script fails whose data is sound.
        let is_same = line.answer.is_none() && kind == "error" && text(&fields[1]).contains(FENCE_ENDS);
        return if is_same { Ok(()) } else { Err(format!("state: {:?}\nRedis: {reply:?}", line.answer)) };
    };
    let answer = Answer::read(line.reader, fields.get(1).unwrap_or(&Value::Nil), line.now);
    if !expected.allows(&answer) {
        return Err(format!("state: {expected:?}\nRedis: {answer:?}"));
    }
    let Some(view) = &line.view else { return Ok(()) };
    let kept = View::of_redis(&fields[2..]);
    if *view == kept { Ok(()) } else { Err(differing_lines(view, &kept)) }
}

/// Returns what differs of what is kept.
fn differing_lines(state: &View, redis: &View) -> String {
    let (state, redis) = (state.parts(), redis.parts());
    let only_in = |these: &[String], others: &[String]| {
        let only: Vec<_> = these.iter().filter(|part| !others.contains(part)).cloned().collect();
        only.join("\n  ")
    };
    format!("kept by the state:\n  {}\nby Redis:\n  {}", only_in(&state, &redis), only_in(&redis, &state))
}

/// Returns a history, line by line.
fn printed(lines: &[Line]) -> String {
    let mut printed = String::new();
    for line in lines {
        let after = i128::from(line.now) - i128::from(START);
        let answer = line.answer.as_ref().map_or("fails", |answer| &answer.words);
        let granted = line.answer.iter().filter_map(|answer| answer.granted.as_ref()).flatten();
        let granted: Vec<_> = granted.map(String::as_str).collect();
        let _ = writeln!(printed, "{after} ms: {} -> {answer}; granted [{}]", line.step, granted.join(" "));
    }
    printed
}
