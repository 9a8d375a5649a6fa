//! The Lua scripts compared with the rules: random histories are played to a [`LockState`] and to the scripts on a
//! Redis server of the test's own, and every answer and everything that is kept must be the same.
//!
//! The state goes first, and predicts Redis's answer to each step; then the whole history is sent at once. A failure
//! prints the seed and the steps. `DIFFERENTIAL_SEED=N cargo test differential` plays that history alone,
//! `DIFFERENTIAL_COUNT=N` plays N.
//!
//! Both sides get the same time: `before.lua` precedes each script and replaces the server's time by the history's,
//! also where keys expire.
//!
//! Compared are: answers, with the holder that they name, fences, slots, places, values, when to look again; the
//! waiters that are woken, and what their mail says; holders and waiters with all that is kept about them; the last
//! run; the sequence; `status`; pruning.
//!
//! Not compared is what one side does not have, or may do at another time:
//! - Redis forgets a lease that expired over a minute ago; so a request comes before that.
//! - How long a place lasts after the clock was set back: Redis bounds it by the longest place there is, a state by its
//!   own length.
//! - Which of several holders is named whose leases end at the same time.
//! - Whether a key with a cancelled request is pruned: Redis keeps such requests beside the key, where they outlive it.
//! - A release by hand that is sent again after its answer was lost: Redis recognizes it by a number, a state does not
//!   yet.
//! - A reservation under a token that has acquired the lock in another way: a state notes that two requests were
//!   answered, Redis does not.
//! - Data that is broken, or lost in part.

mod answer;
mod model;
mod scripts;
mod server;
mod steps;
mod view;

use std::collections::BTreeMap;
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

/// How many histories are played unless the environment says otherwise.
const HISTORIES: u64 = 3000;

/// When each history begins, in ms of Unix time: so late that the server expires nothing by its own time.
const START: u64 = 4_000_000_000_000;

#[test]
fn the_scripts_keep_the_rules() {
    let number = |name| std::env::var(name).ok().map(|text| text.parse::<u64>().expect("is a number"));
    let seeds = match (number("DIFFERENTIAL_SEED"), number("DIFFERENTIAL_COUNT")) {
        (Some(seed), count) => seed..seed + count.unwrap_or(1),
        (None, count) => 0..count.unwrap_or(HISTORIES),
    };
    let workers = thread::available_parallelism().expect("a number of processors").get();
    thread::scope(|scope| {
        for worker in 0..workers {
            let seeds = seeds.clone().skip(worker).step_by(workers);
            scope.spawn(|| {
                let mut server = Server::start();
                let scripts = Scripts::load(&mut server);
                seeds.for_each(|seed| play(seed, &mut server, &scripts));
            });
        }
    });
}

/// The seed of a history, printed if that fails in any way.
struct Seed(u64);

impl Drop for Seed {
    fn drop(&mut self) {
        if thread::panicking() {
            eprintln!("\nreplay it with DIFFERENTIAL_SEED={}", self.0);
        }
    }
}

/// Plays the history of this seed to both sides.
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

/// Compares what a script did with what the state did. Fails with the difference, if there is one.
fn compare(line: &Line, reply: &Value) -> Result<(), String> {
    let fields = fields(reply);
    let kind = fields.first().map(text).unwrap_or_default();
    let (Some(expected), false) = (&line.answer, kind == "error") else {
        // On sound data a script fails in this way only.
        let is_same = line.answer.is_none() && kind == "error" && text(&fields[1]).contains(FENCE_ENDS);
        return if is_same { Ok(()) } else { Err(format!("state: {:?}\nRedis: {reply:?}", line.answer)) };
    };
    let answer = Answer::read(line.reader, fields.get(1).unwrap_or(&Value::Nil), line.now);
    if !expected.allows(&answer) {
        return Err(format!("state: {expected:?}\nRedis: {answer:?}"));
    }
    let Some((view, woken)) = &line.kept else { return Ok(()) };
    let kept = View::of_redis(&fields[2..8], line.now);
    if *view != kept {
        return Err(differing_lines(view, &kept));
    }
    let mail = view::fields(&fields[8]).iter().map(|mail| (text(&view::fields(mail)[0]), text(&view::fields(mail)[1])));
    let mail: BTreeMap<_, _> = mail.collect();
    if *woken == mail { Ok(()) } else { Err(format!("woken by the state: {woken:?}\nby Redis: {mail:?}")) }
}

/// Returns how the kept data differ.
fn differing_lines(state: &View, redis: &View) -> String {
    let (state, redis) = (state.parts(), redis.parts());
    let only_in = |these: &[String], others: &[String]| {
        let only: Vec<_> = these.iter().filter(|part| !others.contains(part)).cloned().collect();
        only.join("\n  ")
    };
    format!("kept by the state:\n  {}\nby Redis:\n  {}", only_in(&state, &redis), only_in(&redis, &state))
}

/// Formats a history, line by line.
fn printed(lines: &[Line]) -> String {
    let mut printed = String::new();
    for line in lines {
        let after = i128::from(line.now) - i128::from(START);
        let answer = line.answer.as_ref().map_or("fails", |answer| &answer.words);
        let woken = line.kept.as_ref().map(|(_, woken)| woken);
        let _ = writeln!(printed, "{after} ms: {} -> {answer}; woken {woken:?}", line.step);
    }
    printed
}
