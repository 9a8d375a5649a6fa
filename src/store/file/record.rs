//! What stands in a lock file: the fence, who holds the lock, and how the last run went. One line of JSON.
//!
//! Only the holder of the kernel's lock writes it. Others read it without the lock, to say who holds it; if they meet it
//! half written they know nothing, which harms nobody.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::time::SystemTime;

use serde::{Deserialize, Serialize};

use crate::clock::Moment;
use crate::holder::Holder;
use crate::outcome::Ending;
use crate::store::{Claim, LastRun};

/// The most that is read of a lock file. Records are far shorter.
const READ_MAX: usize = 4 * 1024;

/// The contents of a lock file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Record {
    /// The key, which the file's name may have only a hash of.
    pub(super) key: String,
    /// The fencing token that was given out last.
    pub(super) fence: u64,
    /// Who holds the lock.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) holder: Option<HolderRecord>,
    /// The last run that has ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) last: Option<LastRecord>,
}

/// Who holds the lock, and since when.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct HolderRecord {
    #[serde(flatten)]
    pub(super) who: Holder,
    /// Since when, in milliseconds of the boot clock.
    pub(super) since_boot_ms: u64,
    /// Since when, in milliseconds of Unix time.
    pub(super) since_unix_ms: u64,
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
    /// Reads a lock file. What cannot be read counts as empty.
    pub(super) fn read(file: &impl AsFd) -> Self {
        Self::try_read(file).unwrap_or_default()
    }

    fn try_read(file: &impl AsFd) -> io::Result<Self> {
        let file = File::from(file.as_fd().try_clone_to_owned()?);
        let mut text = [0; READ_MAX];
        let length = file.read_at(&mut text, 0)?;
        // A shorter record leaves the rest of a longer one behind its own end of line.
        let line = text[..length].split(|byte| *byte == b'\n').next().unwrap_or_default();
        Ok(serde_json::from_slice(line)?)
    }

    /// Writes the record in one piece.
    pub(super) fn write(&self, file: &OwnedFd) -> io::Result<()> {
        let mut line = serde_json::to_vec(self)?;
        line.push(b'\n');
        File::from(file.try_clone()?).write_all_at(&line, 0)
    }

    /// The lock goes to `claim`, with a new fence: greater than the last one, and, so that it also is when the file was
    /// lost, not below the time.
    pub(super) fn take(&mut self, claim: &Claim, now: SystemTime, boot: Moment) {
        let unix_ms = unix_ms(now);
        claim.key.as_str().clone_into(&mut self.key);
        self.fence = self.fence.saturating_add(1).max(unix_ms);
        self.holder = Some(HolderRecord {
            who: claim.holder.clone(),
            since_boot_ms: u64::try_from(boot.since_boot().as_millis()).unwrap_or(u64::MAX),
            since_unix_ms: unix_ms,
        });
    }

    /// The holder lets go, after a run that went as `last` tells.
    pub(super) fn leave(&mut self, last: LastRun, now: SystemTime) {
        let Some(holder) = self.holder.take() else { return };
        let (status, signal) = match last.ending {
            Some(Ending::Exited(status)) => (Some(status), None),
            Some(Ending::Signaled(signal)) => (None, Some(signal)),
            None => (None, None),
        };
        self.last = Some(LastRecord {
            who: holder.who,
            started_unix_ms: holder.since_unix_ms,
            ended_unix_ms: unix_ms(now),
            status,
            signal,
        });
    }
}

fn unix_ms(now: SystemTime) -> u64 {
    now.duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
}
