//! What stands in a lock file: the fence, who holds the lock, and how the last run went. One line of JSON; [`crate::store::file::copies`] says
//! how it is stored.
//!
//! It is read and written under the file's edit lock, see [`crate::store::file::lock_file`].

use std::io;
use std::sync::OnceLock;
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};

use crate::lock::ending::Ending;
use crate::lock::holder::Holder;
use crate::lock::lease::Ttl;
use crate::lock::token::Token;
use crate::store::{Claim, Held};
use crate::sys::clock::Moment;

/// The contents of a lock file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Record {
    /// The key, which the file's name may have only a hash of.
    pub(super) key: String,
    /// The fencing token that was given out last.
    pub(super) fence: u64,
    /// Who holds the lock, the longest first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) holders: Vec<HolderRecord>,
    /// The last run that has ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) last: Option<LastRecord>,
    /// Where the key's sequence has got to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) sequence: Option<SequenceRecord>,
}

/// Where a sequence has got to.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct SequenceRecord {
    /// The value that was used last.
    pub(super) last: String,
    /// How many steps it is from the beginning of the sequence.
    pub(super) place: u64,
    /// The fence of the run that used it.
    pub(super) fence: u64,
}

/// A value of a sequence.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct ValueRecord {
    pub(super) value: String,
    /// How many steps it is from the beginning of the sequence.
    pub(super) place: u64,
}

/// Who holds the lock, and since when.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct HolderRecord {
    pub(super) token: Token,
    pub(super) fence: u64,
    /// Which of the slots it has.
    pub(super) slot: u32,
    /// What it has reserved of the key's sequence.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) value: Option<ValueRecord>,
    pub(super) who: Holder,
    /// Since when, in milliseconds after the start of the machine.
    pub(super) since_boot_ms: u64,
    /// Since when, in milliseconds of Unix time.
    pub(super) since_unix_ms: u64,
    /// Until when it holds the lock. Without one, for as long as the kernel's lock on its slot is taken.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) lease: Option<LeaseRecord>,
    /// It was let go of by hand while its command runs: when that ends, the lock is not kept.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(super) let_go: bool,
}

/// A lease on this machine. It does not outlive the boot that it was given in.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct LeaseRecord {
    /// The kernel's name for this boot.
    pub(super) boot: String,
    /// Its end, in milliseconds after the start of the machine; `None`: it never ends.
    pub(super) until_boot_ms: Option<u64>,
    /// How long it lasts from one renewal; `None`: for ever.
    pub(super) ttl_ms: Option<u64>,
}

/// A run that has ended.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct LastRecord {
    pub(super) who: Holder,
    /// When it got the lock, in milliseconds of Unix time.
    pub(super) started_unix_ms: u64,
    /// When it let go, in milliseconds of Unix time.
    pub(super) ended_unix_ms: u64,
    /// The exit status of its command, if that exited.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) status: Option<u8>,
    /// The signal that ended its command, if one did.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) signal: Option<i32>,
}

impl Record {
    /// The lock goes to `claim`, in `slot`, with a new fence: greater than the last one, and, so that it also is when the file
    /// was lost, not below the time. Returns the fence, or `None` if the last one was the greatest there is.
    pub(super) fn add(&mut self, claim: &Claim, slot: u32, lease: Option<LeaseRecord>) -> Option<u64> {
        let unix_ms = unix_ms();
        claim.key.as_str().clone_into(&mut self.key);
        self.fence = self.fence.checked_add(1)?.max(unix_ms);
        self.holders.push(HolderRecord {
            token: claim.token.clone(),
            fence: self.fence,
            slot,
            value: None,
            who: claim.holder.clone(),
            since_boot_ms: boot_ms(Moment::now()),
            since_unix_ms: unix_ms,
            lease,
            let_go: false,
        });
        Some(self.fence)
    }

    /// The holder whose token this is.
    pub(super) fn holder(&mut self, token: &Token) -> Option<&mut HolderRecord> {
        self.holders.iter_mut().find(|holder| holder.token == *token)
    }

    /// The holder that has had the lock the longest.
    pub(super) fn first_held(&self) -> Option<Held> {
        self.holders.first().map(HolderRecord::held)
    }

    /// The run of `holder` has used its value: it is the last one, unless one that comes after it was used already. It is not
    /// the later run that counts: it may have been given an earlier value, which another one had failed to use.
    pub(super) fn note_use(&mut self, holder: &HolderRecord) {
        let Some(ValueRecord { value, place }) = &holder.value else { return };
        let (last, fence) = (value.clone(), holder.fence);
        if self.sequence.as_ref().is_none_or(|sequence| (sequence.place, sequence.fence) < (*place, fence)) {
            self.sequence = Some(SequenceRecord { last, place: *place, fence });
        }
    }

    /// Writes down that the run of `holder` is over, and how its command ended, if it was started.
    pub(super) fn note(&mut self, holder: &HolderRecord, ending: Option<Ending>) {
        let (status, signal) = match ending {
            Some(Ending::Exited(status)) => (Some(status), None),
            Some(Ending::Signaled(signal)) => (None, Some(signal)),
            None => (None, None),
        };
        self.last = Some(LastRecord {
            who: holder.who.clone(),
            started_unix_ms: holder.since_unix_ms,
            ended_unix_ms: unix_ms(),
            status,
            signal,
        });
    }
}

impl HolderRecord {
    /// How long it has held the lock.
    pub(super) fn held_for(&self, now: Moment) -> Duration {
        now.since(at_boot_ms(self.since_boot_ms))
    }

    /// It, as others are told.
    pub(super) fn held(&self) -> Held {
        let now = Moment::now();
        Held {
            holder: Some(self.who.clone()),
            since: Some(self.held_for(now)),
            expires_in: self.ends_at().map(|ends_at| ends_at.since(now)),
            place: None,
            token: Some(self.token.clone()),
        }
    }

    /// When its lease ends, if it has one that does.
    pub(super) fn ends_at(&self) -> Option<Moment> {
        self.lease.as_ref()?.until_boot_ms.map(at_boot_ms)
    }
}

impl LeaseRecord {
    /// A lease from `now` on.
    pub(super) fn new(now: Moment, ttl: Ttl) -> io::Result<Self> {
        let length = ttl.length();
        let until_boot_ms = length.map(|length| boot_ms(now + length));
        Ok(LeaseRecord { boot: this_boot()?, until_boot_ms, ttl_ms: length.map(millis) })
    }

    /// How long it lasts from one renewal.
    pub(super) fn ttl(&self) -> Ttl {
        self.ttl_ms.map_or(Ttl::None, |ttl_ms| Ttl::Lasts(Duration::from_millis(ttl_ms)))
    }

    /// Whether it still counts at `now`.
    pub(super) fn is_in_force(&self, now: Moment) -> io::Result<bool> {
        Ok(self.until_boot_ms.is_none_or(|until| boot_ms(now) < until) && self.boot == this_boot()?)
    }
}

/// The kernel's name for this boot.
fn this_boot() -> io::Result<String> {
    const PATH: &str = "/proc/sys/kernel/random/boot_id";
    let explain = |error: io::Error| {
        io::Error::new(
            error.kind(),
            format!("cannot read {PATH}, which tells this boot from others: {error}; mount /proc"),
        )
    };
    Ok(std::fs::read_to_string(PATH).map_err(explain)?.trim_end().to_owned())
}

/// Returns `moment` in milliseconds after the start of the machine, which all time namespaces have in common.
fn boot_ms(moment: Moment) -> u64 {
    millis(moment.since_boot()).saturating_add_signed(clock_ahead_ms().saturating_neg())
}

/// Returns the moment that lies so many milliseconds after the start of the machine.
fn at_boot_ms(boot_ms: u64) -> Moment {
    Moment::from_boot(Duration::from_millis(boot_ms.saturating_add_signed(clock_ahead_ms())))
}

/// Returns by how many milliseconds the boot clock is ahead in the time namespace of this process: see time_namespaces(7). 0 on a
/// kernel that has no such namespaces.
fn clock_ahead_ms() -> i64 {
    static AHEAD: OnceLock<i64> = OnceLock::new();
    *AHEAD.get_or_init(|| {
        let offsets = std::fs::read_to_string("/proc/self/timens_offsets").unwrap_or_default();
        read_clock_ahead_ms(&offsets).unwrap_or_default()
    })
}

/// Reads lines of a clock's name, seconds and nanoseconds.
fn read_clock_ahead_ms(offsets: &str) -> Option<i64> {
    let line = offsets.lines().find_map(|line| line.strip_prefix("boottime"))?;
    let (seconds, nanoseconds) = line.trim().split_once(' ')?;
    let milliseconds = nanoseconds.trim().parse::<i64>().ok()? / 1_000_000;
    seconds.parse::<i64>().ok()?.checked_mul(1000)?.checked_add(milliseconds)
}

/// A span in whole milliseconds.
pub(super) fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}

/// The present time, in milliseconds of Unix time.
pub(super) fn unix_ms() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, millis)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_offset_of_a_time_namespace_is_read() {
        let offsets = |boot: &str| format!("monotonic           7         0\nboottime   {boot}\n");
        assert_eq!(read_clock_ahead_ms(&offsets("         0         0")), Some(0));
        assert_eq!(read_clock_ahead_ms(&offsets("   1000000 500000000")), Some(1_000_000_500));
        assert_eq!(read_clock_ahead_ms(&offsets("       -12         0")), Some(-12_000));
        assert_eq!(read_clock_ahead_ms(""), None);
    }
}
