//! The steps of a history, drawn at random.

use std::time::Duration;

use super::model::Model;
use crate::lock::claim::Mode;
use crate::lock::ending::Ending;
use crate::lock::lease::Ttl;
use crate::lock::state::{Purpose, Release, Retain, Wanted};

/// For how long Redis at least remembers that a lease has expired, in ms. The state remembers it until the next
/// request, so a request comes before that.
const REMEMBERED: u64 = 80_000;

/// How many clients a history has: a few, or a crowd, where most of them wait; and how many steps.
const FEW: usize = 6;
const CROWD: usize = 12;
const STEPS: usize = 60;

/// One step.
#[derive(Clone, Debug)]
pub(super) enum Step {
    /// The time is this, in ms. The clock may be set back.
    Time(u64),
    /// Asks for the lock, once.
    Acquire {
        token: String,
        waits: bool,
        /// It does not join if so many wait already.
        max: Option<u32>,
        by_hand: bool,
        mode: Mode,
        once_per: Option<Duration>,
        ttl: Ttl,
        request: Option<String>,
    },
    Reserve {
        token: String,
        wanted: Wanted,
        ttl: Ttl,
    },
    Renew {
        token: String,
        ttl: Option<Ttl>,
        /// For its run, which always gives the ttl.
        of_run: bool,
    },
    Release {
        token: String,
        release: Release,
        is_in_flight: bool,
    },
    Cancel {
        token: String,
        request: Option<String>,
        is_in_flight: bool,
    },
    Revoke {
        fence: Option<u64>,
        at_once: bool,
    },
    Status,
    Prune {
        unused_for: u64,
        really: bool,
    },
    /// The successes because of which no other run is wanted are forgotten.
    ForgetSuccess,
    /// The store loses all its data.
    Forget,
    /// This fence was the last.
    Fence(u64),
    /// A cancelled request under a token that holds nothing: like any request, it hands off what is free.
    Look,
}

/// Pseudo-random numbers: splitmix64.
pub(super) struct Random(pub(super) u64);

impl Random {
    /// Returns a number below `bound`.
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (mixed ^ (mixed >> 31)) % bound
    }

    fn one_in(&mut self, count: u64) -> bool {
        self.below(count) == 0
    }

    fn of<T: Clone>(&mut self, choice: &[T]) -> T {
        let bound = u64::try_from(choice.len()).expect("is small");
        choice[usize::try_from(self.below(bound)).expect("is small")].clone()
    }
}

/// The character of a history.
struct Manner {
    /// The modes in which the lock is asked for.
    modes: Vec<Mode>,
    /// How many may wait, if that is limited.
    max: Option<u32>,
    /// For how long a run is to be the only one, if that is asked.
    once_per: Option<Duration>,
    /// Whether values are reserved.
    reserves: bool,
    /// At which of its acquisitions each client is.
    lives: Vec<u64>,
    /// For how long nobody has looked.
    unlooked: u64,
}

/// Plays a random history to the state.
pub(super) fn play(model: &mut Model<'_>, random: &mut Random) {
    let numbers = random.of(&[vec![1], vec![1], vec![2], vec![3], vec![1, 2], vec![1, 2, 3]]);
    let mut asked: Vec<Mode> = numbers.into_iter().map(Mode::Slots).collect();
    if random.one_in(3) {
        asked.extend([Mode::Shared, Mode::Shared]);
    }
    let max = random.of(&[None, None, Some(0), Some(1), Some(3)]);
    let once_per = random.of(&[None, None, Some(Duration::from_secs(2)), Some(Duration::from_mins(1))]);
    let lives = vec![0; random.of(&[FEW, FEW, FEW, FEW, CROWD])];
    let mut manner = Manner { modes: asked, max, once_per, reserves: random.one_in(4), lives, unlooked: 0 };
    if random.one_in(40) {
        let fence = random.of(&[i64::MAX.unsigned_abs() - 3, i64::MAX.unsigned_abs() - 1, 999_999_999_999_998]);
        model.step(&Step::Fence(fence));
    }
    for _ in 0..STEPS {
        manner.pass(model, random);
        let step = manner.next(model, random);
        model.step(&step);
        manner.unlooked = if matches!(step, Step::Status | Step::Forget) { manner.unlooked } else { 0 };
        if model.is_over {
            break;
        }
    }
}

impl Manner {
    /// Advances the time.
    fn pass(&mut self, model: &mut Model<'_>, random: &mut Random) {
        let mut left = match random.below(40) {
            0..=19 => 0,
            20..=29 => random.below(300),
            30..=34 => random.below(3_000),
            // Just before, at, or just after the end of a lease or a place.
            35..=37 => model.some_end(random.below(8)).saturating_sub(model.view.now + 1) + random.below(3),
            38 => random.below(30_000),
            _ if random.one_in(4) => random.below(400_000),
            _ => 0,
        };
        while self.unlooked + left > REMEMBERED {
            let step = REMEMBERED.saturating_sub(self.unlooked).min(left);
            model.step(&Step::Time(model.view.now + step));
            model.step(&Step::Look);
            (left, self.unlooked) = (left - step, 0);
        }
        if left > 0 {
            model.step(&Step::Time(model.view.now + left));
            self.unlooked += left;
        } else if random.one_in(60) && model.state.waiters.is_empty() {
            // How long a place lasts then differs: see above.
            // Redis forgets a cancelled request as soon as its time has passed, a state at the next request.
            model.step(&Step::Look);
            self.unlooked = 0;
            model.step(&Step::Time(model.view.now - random.below(5_000)));
        }
    }

    fn next(&mut self, model: &Model<'_>, random: &mut Random) -> Step {
        if self.lives.len() == CROWD && !random.one_in(4) {
            return self.wait(random);
        }
        match random.below(40) {
            0..=15 => self.acquire(model, random),
            16..=17 if self.reserves => self.reserve(model, random),
            18..=21 => {
                let ttl = Some(ttl(random)).filter(|_| random.one_in(3));
                let of_run = ttl.is_some() && random.one_in(2);
                Step::Renew { token: self.token(model, random), ttl, of_run }
            }
            22..=28 => self.release(model, random),
            29..=30 => self.cancel(model, random),
            31..=32 => {
                let fences: Vec<u64> = model.state.holders.iter().map(|holder| holder.fence).chain([7]).collect();
                let fence = Some(random.of(&fences)).filter(|_| random.one_in(2));
                Step::Revoke { fence, at_once: random.one_in(2) }
            }
            35 => Step::Prune { unused_for: random.of(&[0, 1, 5_000, 60_000]), really: random.one_in(2) },
            36 if random.one_in(8) => Step::Forget,
            37 => Step::Look,
            39 if random.one_in(4) => Step::ForgetSuccess,
            33..=34 | 38 => self.ask_again(model, random),
            _ => Step::Status,
        }
    }

    fn acquire(&mut self, model: &Model<'_>, random: &mut Random) -> Step {
        if random.one_in(3) {
            return self.ask_again(model, random);
        }
        let token = if random.one_in(8) { self.token(model, random) } else { self.client(random) };
        let by_hand = random.one_in(6);
        let request = by_hand.then(|| random.of(&[None, Some("q1".to_owned()), Some("q2".to_owned())])).flatten();
        Step::Acquire {
            waits: !random.one_in(4),
            max: self.max.filter(|_| random.one_in(2)),
            by_hand,
            mode: random.of(&self.modes),
            once_per: self.once_per.filter(|_| random.one_in(2)),
            ttl: ttl(random),
            request,
            token,
        }
    }

    /// Lets a client wait, or ask again.
    fn wait(&mut self, random: &mut Random) -> Step {
        let (token, mode) = (self.client(random), random.of(&self.modes));
        let ttl = ttl(random);
        Step::Acquire { token, waits: true, max: None, by_hand: false, mode, once_per: None, ttl, request: None }
    }

    /// Lets a waiter ask again.
    fn ask_again(&mut self, model: &Model<'_>, random: &mut Random) -> Step {
        if model.state.waiters.is_empty() {
            return self.release(model, random);
        }
        let waiter = random.of(&model.state.waiters);
        let token = waiter.token.as_str().to_owned();
        let (mode, by_hand) = (waiter.mode, random.one_in(12));
        let once_per = self.once_per.filter(|_| random.one_in(2));
        Step::Acquire { token, waits: true, max: None, by_hand, mode, once_per, ttl: ttl(random), request: None }
    }

    fn reserve(&mut self, model: &Model<'_>, random: &mut Random) -> Step {
        let last = model.state.sequence.as_ref().map(|sequence| sequence.last.clone());
        let wanted = match random.below(8) {
            0 => Wanted::Next { from: i64::MAX - 1, step: 1 },
            1 => Wanted::Next { from: 1, step: random.of(&[-3, 2, i64::MIN, i64::MAX]) },
            2 => {
                let value = random.of(&["x", "007", "3", "-0", "+1", "9223372036854775807"]).to_owned();
                let steps = u32::try_from(random.below(3) + 1).expect("is small");
                Wanted::Value { value, after: random.of(&[None, last.clone(), last]), steps }
            }
            _ => Wanted::Next { from: 1, step: 1 },
        };
        // A token is one acquisition: no run reserves under a token that waits for the lock, or has acquired it.
        let token = self.client(random).replace('c', "r");
        let acquired = model.state.holders.iter().filter(|holder| holder.value.is_none()).map(|holder| &holder.token);
        if model.state.waiters.iter().map(|waiter| &waiter.token).chain(acquired).any(|it| it.as_str() == token) {
            return Step::Look;
        }
        Step::Reserve { token, wanted, ttl: ttl(random) }
    }

    fn release(&mut self, model: &Model<'_>, random: &mut Random) -> Step {
        let token = self.token(model, random);
        let span = Duration::from_millis(random.of(&[1_000, 4_000, 12_000]));
        let retain = match random.below(8) {
            0 | 1 => Retain::Kept(ttl(random)),
            2 => Retain::AtLeast(span),
            _ => Retain::Not,
        };
        let ending = random.of(&[Ending::Exited(0), Ending::Exited(3), Ending::Signaled(9)]);
        let is_kept = model.state.holders.iter().any(|it| it.token.as_str() == token && it.purpose != Purpose::Run);
        let release = if random.one_in(if is_kept { 2 } else { 6 }) {
            Release::ByHand
        } else {
            Release::Run { ending, succeeded: random.one_in(2), retain }
        };
        // A repeated release of a run carries the same ending as the first.
        let is_in_flight = release != Release::ByHand && !is_kept && random.one_in(8);
        if random.one_in(2) || is_in_flight {
            self.another_life(&token);
        }
        Step::Release { token, release, is_in_flight }
    }

    fn cancel(&mut self, model: &Model<'_>, random: &mut Random) -> Step {
        let token = self.token(model, random);
        let is_in_flight = random.one_in(3);
        let request = random.of(&[None, None, Some("q1".to_owned()), Some("q2".to_owned())]);
        if !random.one_in(3) {
            self.another_life(&token);
        }
        Step::Cancel { token, request, is_in_flight }
    }

    /// Draws a token: of a holder, a waiter, or neither.
    fn token(&self, model: &Model<'_>, random: &mut Random) -> String {
        let holders = model.state.holders.iter().map(|holder| &holder.token);
        let waiters = model.state.waiters.iter().map(|waiter| &waiter.token);
        let tokens: Vec<_> = if random.one_in(4) { waiters.collect() } else { holders.collect() };
        if tokens.is_empty() || random.one_in(8) {
            return self.client(random);
        }
        random.of(&tokens).as_str().to_owned()
    }

    fn client(&self, random: &mut Random) -> String {
        let clients: Vec<_> = self.lives.iter().enumerate().collect();
        let (client, life) = random.of(&clients);
        format!("c{client}.{life}")
    }

    /// Makes the next acquisition of this client another one.
    fn another_life(&mut self, token: &str) {
        let number = token[1..].split('.').next().and_then(|client| client.parse::<usize>().ok());
        if let Some(client) = number {
            self.lives[client] += 1;
        }
    }
}

fn ttl(random: &mut Random) -> Ttl {
    match random.below(12) {
        0 => Ttl::None,
        1..=3 => Ttl::Lasts(Duration::from_secs(1)),
        4..=6 => Ttl::Lasts(Duration::from_secs(3)),
        7 => Ttl::Lasts(Duration::from_mins(1)),
        _ => Ttl::Lasts(Duration::from_secs(10)),
    }
}
