//! What a seed chooses: hosts, runs, and how much goes wrong.

use std::time::Duration;

use super::actors::nanos;
use super::world::{MILLISECOND, Nanos, Plan, RunId, SECOND};
use crate::config::plan::OnHeld;
use crate::lock::claim::{Claim, Mode};
use crate::lock::holder::Holder;
use crate::lock::key::Key;
use crate::lock::lease::{Terms, Ttl};
use crate::lock::token::Token;
use crate::supervise::Descendants;

/// How the runs share the lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sharing {
    Exclusive,
    Slots(u32),
    ReadersAndWriters,
}

/// The conditions of a simulation.
#[derive(Clone, Debug)]
pub struct Scenario {
    pub hosts: usize,
    /// The number of lanes: on each, a run begins when the previous one has ended.
    pub lanes: usize,
    pub sharing: Sharing,
    /// The longest time until a woken process gets a processor.
    pub latency: Nanos,
    /// The longest time between two runs of a lane.
    pub pause: Nanos,
    /// The average time between two faults; `None` for no faults.
    pub fault_every: Option<Nanos>,
    /// How many of ten thousand steps of a process kill or stop it.
    pub strikes: u32,
    pub processes_fail: bool,
    pub network_fails: bool,
    pub server_fails: bool,
    pub calm_at: Nanos,
    pub end_at: Nanos,
    ttl: Duration,
}

impl Scenario {
    pub fn new(rng: &mut fastrand::Rng) -> Self {
        let ttl = Duration::from_secs(*choose(rng, &[1, 1, 2, 3, 6, 10, 30]));
        let sharing = match rng.u32(..6) {
            0 => Sharing::Slots(2),
            1 => Sharing::Slots(3),
            2 => Sharing::ReadersAndWriters,
            _ => Sharing::Exclusive,
        };
        let calm_at = 2 * SECOND + nanos(ttl) * 2 + rng.u64(..20 * SECOND);
        Scenario {
            hosts: rng.usize(1..=4),
            lanes: rng.usize(2..=5),
            sharing,
            latency: (nanos(ttl) / 8).min(SECOND) / 25,
            pause: *choose(rng, &[10 * MILLISECOND, SECOND, 4 * SECOND]),
            fault_every: (rng.u32(..20) > 0).then(|| *choose(rng, &[SECOND / 5, SECOND, 3 * SECOND])),
            strikes: *choose(rng, &[0, 20, 200]),
            processes_fail: rng.u32(..4) > 0,
            network_fails: rng.u32(..2) > 0,
            server_fails: rng.u32(..3) == 0,
            calm_at,
            end_at: calm_at + 600 * SECOND + nanos(ttl) * 20,
            ttl,
        }
    }

    /// Returns the length of the leases.
    pub fn ttl(&self) -> Nanos {
        nanos(self.ttl)
    }

    /// Returns the host and the plan of the next run on a lane.
    pub fn plan(&self, rng: &mut fastrand::Rng, lane: usize, run: RunId) -> (usize, Plan) {
        let terms = self.terms(rng);
        let mode = match self.sharing {
            Sharing::Slots(slots) => Mode::Slots(slots),
            Sharing::ReadersAndWriters if rng.u32(..3) > 0 => Mode::Shared,
            Sharing::Exclusive | Sharing::ReadersAndWriters => Mode::EXCLUSIVE,
        };
        let claim = Claim {
            key: Key::new("k".as_ref()).expect("is a key"),
            token: Token::parse(&format!("{run}")).expect("is a token"),
            ttl: Ttl::Lasts(terms.ttl),
            holder: Holder { host: format!("host-{lane}"), pid: 1, ..Holder::default() },
            mode,
            once_per: None,
            by_hand: false,
            request: None,
        };
        let ttl = nanos(terms.ttl);
        let max_waiting = (rng.u32(..10) == 0).then(|| rng.u32(..3));
        let on_held = match rng.u32(..8) {
            0 => OnHeld::Fail,
            1 => OnHeld::Wait { span: Some(Duration::from_millis(rng.u64(..5000))), max_waiting },
            _ => OnHeld::Wait { span: None, max_waiting },
        };
        let store_retry = match on_held {
            OnHeld::Wait { .. } => Duration::from_mins(1),
            _ => Duration::from_millis(rng.u64(..3000)),
        };
        let lasts = match rng.u32(..3) {
            0 => rng.u64(MILLISECOND..100 * MILLISECOND),
            1 => rng.u64(MILLISECOND..ttl / 2),
            _ => rng.u64(MILLISECOND..2 * ttl),
        };
        let plan = Plan {
            claim,
            terms,
            on_held,
            store_retry,
            descendants: *choose(rng, &[Descendants::Leave, Descendants::Wait, Descendants::Kill]),
            max_runtime: (rng.u32(..8) == 0).then(|| Duration::from_nanos(rng.u64(..ttl))),
            min_hold: if rng.u32(..10) == 0 { Duration::from_nanos(rng.u64(..ttl)) } else { Duration::ZERO },
            lasts,
            forks: if rng.bool() { 0 } else { rng.u32(1..=3) },
            ignores_term: rng.u32(..3) == 0,
        };
        (lane % self.hosts, plan)
    }

    /// Returns the default terms of the lease, or others that lockrun accepts.
    fn terms(&self, rng: &mut fastrand::Rng) -> Terms {
        let ttl = self.ttl;
        let default = Terms {
            ttl,
            renew_every: ttl / 3,
            kill_after: (ttl / 3).min(Duration::from_secs(10)),
            store_timeout: (ttl / 6).min(Duration::from_secs(5)),
        };
        let part = |rng: &mut fastrand::Rng| ttl * rng.u32(1..60) / 100;
        let other = Terms { ttl, renew_every: part(rng), kill_after: part(rng), store_timeout: part(rng) };
        if rng.u32(..3) == 0 && other.check().is_ok() { other } else { default }
    }
}

fn choose<'a, T>(rng: &mut fastrand::Rng, among: &'a [T]) -> &'a T {
    &among[rng.usize(..among.len())]
}
