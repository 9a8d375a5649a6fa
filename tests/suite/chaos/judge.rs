//! Who lived when, and what must not be. Of lockrun it knows only what a lock is.

use std::collections::BTreeMap;
use std::path::Path;

use super::workers::SLOTS;
use crate::support::witness::{Life, lives};

/// What the record says.
pub(super) struct Verdict {
    pub(super) summary: String,
    /// What must not be.
    pub(super) wrong: Vec<String>,
}

/// A command under a lock.
struct Holder<'a> {
    lock: &'a str,
    is_reader: bool,
    fence: u64,
    life: &'a Life,
}

impl<'a> Holder<'a> {
    /// Reads `lock-r|w-worker-run-fence`.
    fn of(life: &'a Life) -> Self {
        let words: Vec<&str> = life.tag.split('-').collect();
        let [lock, how, _, _, fence] = words[..] else { panic!("an unknown command: {}", life.tag) };
        Holder { lock, is_reader: how == "r", fence: fence.parse().expect("a fence is a number"), life }
    }

    /// Whether the two may not hold their lock at once.
    fn excludes(&self, other: &Self) -> bool {
        match self.lock {
            "slots" => false,
            "shared" => !(self.is_reader && other.is_reader),
            _ => true,
        }
    }

    fn shown(&self) -> String {
        let ms = |nanos: i64| nanos / 1_000_000;
        format!("{} from {} to {} ms", self.life.tag, ms(self.life.first), ms(self.life.last))
    }
}

pub(super) fn judge(record: &Path) -> Verdict {
    let lives = lives(record);
    let mut by_lock: BTreeMap<&str, Vec<Holder>> = BTreeMap::new();
    for holder in lives.iter().map(Holder::of) {
        by_lock.entry(holder.lock).or_default().push(holder);
    }
    let mut wrong = Vec::new();
    let mut summary = Vec::new();
    for (lock, holders) in &by_lock {
        let mut margin = None;
        for (at, later) in holders.iter().enumerate() {
            // Lives are in the order of their beginnings; one lasts for less than a second, unless it is stopped: but look at all.
            for earlier in &holders[..at] {
                let gap = later.life.first - earlier.life.last;
                if !earlier.excludes(later) {
                    continue;
                }
                margin = Some(margin.map_or(gap, |known: i64| known.min(gap)));
                if gap <= 0 {
                    wrong.push(format!("at once: {} and {}", earlier.shown(), later.shown()));
                }
                if earlier.fence >= later.fence {
                    wrong.push(format!("a fence that does not rise: {}, then {}", earlier.shown(), later.shown()));
                }
            }
            let beside = |other: &&Holder| other.life.first <= later.life.first && other.life.last >= later.life.first;
            let at_once = holders.iter().filter(beside).count();
            if *lock == "slots" && at_once > SLOTS {
                wrong.push(format!("{at_once} with slots at the beginning of {}", later.shown()));
            }
        }
        let margin = margin.map_or(String::new(), |margin| format!(", {} µs apart or more", margin / 1000));
        summary.push(format!("{lock}: {}{margin}", holders.len()));
    }
    Verdict { summary: summary.join("; "), wrong }
}
