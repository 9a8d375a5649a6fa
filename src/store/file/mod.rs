//! Locks on this machine: one file a key, in a directory that is ours alone.
//!
//! Held means that the kernel's lock on a slot of the file is taken, or that the record in the file has a lease in force: of a
//! lock that was acquired by hand, or that stays after its run. COMMAND inherits the descriptor, so the kernel's lock stays
//! taken for as long as any of lockrun, COMMAND and what it started has it open, whatever happens to lockrun; a clean end
//! unlocks explicitly, and then nobody holds it, open or not.

mod copies;
mod diagnose;
mod directory;
mod lock_file;
mod record;
mod turnstile;
mod unreadable;
mod waiters;

use std::path::PathBuf;
use std::time::Duration;

use super::{
    Acquired, Claim, Grant, Holding, KeyStatus, Living, Past, Release, Released, Renewed, Reserved, Retain, Revoked,
    Store, StoreError, Wait, Wanted, integer,
};
use crate::lock::ending::Ending;
use crate::lock::holder::Holder;
use crate::lock::key::Key;
use crate::lock::lease::Ttl;
use crate::lock::token::Token;
use crate::report::diagnostic::Diagnostic;
use crate::sys::clock::Moment;
use anyhow::{Context, bail};
use directory::Directory;
use lock_file::LockFile;
use record::{HolderRecord, LeaseRecord, Record, ValueRecord};
use turnstile::{Found, Passed};
use unreadable::Unreadable;

/// How often a lock file may vanish between our opening and locking it before we give up.
const VANISHED_MAX: u32 = 100;

/// The embedded store.
#[derive(Debug)]
pub struct FileStore {
    directory: Option<PathBuf>,
    locked: Option<Locked>,
    left_out: Vec<StoreError>,
}

/// A slot that we hold.
#[derive(Debug)]
struct Locked {
    file: LockFile,
    slot: u32,
}

impl FileStore {
    /// The store in `directory`, or in the default one.
    pub fn new(directory: Option<PathBuf>) -> Self {
        FileStore { directory, locked: None, left_out: Vec::new() }
    }

    fn directory(&self) -> Result<Directory, StoreError> {
        Directory::open(self.directory.as_deref())
    }

    /// The lock file of `key`, if the key was ever used.
    fn lock_file(&self, key: &Key) -> Result<Option<LockFile>, StoreError> {
        LockFile::open(&self.directory()?, &directory::file_name(key))
    }
}

impl Store for FileStore {
    fn acquire(&mut self, claim: &Claim, mut wait: Option<Wait<'_>>) -> Result<Acquired, StoreError> {
        let directory = self.directory()?;
        for _ in 0..VANISHED_MAX {
            let file = LockFile::open_or_create(&directory, &claim.key)?;
            let take = || take(&directory, &file, claim);
            let passed = match &mut wait {
                Some(wait) => turnstile::wait(&file, wait, take)?,
                None if is_full(&directory, &file, claim)? => Passed::Held(file.holder()?),
                None => turnstile::pass(&file, take)?,
            };
            match passed {
                Passed::Mine(grant) => {
                    if grant.lease_from.is_none() {
                        self.locked = Some(Locked { file, slot: grant.slot });
                    }
                    return Ok(Acquired::Mine(grant));
                }
                Passed::Held(held) => return Ok(Acquired::Held(held)),
                Passed::Interrupted(signal) => return Ok(Acquired::Interrupted(signal)),
                Passed::Vanished => {}
            }
        }
        bail!("the lock file {} is removed over and over; find out by what", directory.show(&claim.key))
    }

    fn renew(&mut self, key: &Key, token: &Token, ttl: Option<Ttl>) -> Result<Renewed, StoreError> {
        let Some(file) = self.lock_file(key)? else { return Ok(Renewed::NotMine(None)) };
        file.edit(|record| {
            drop_ended(record, &file)?;
            let Some(holder) = record.holder(token) else { return Ok(Renewed::NotMine(record.first_held())) };
            if let Some(lease) = &mut holder.lease {
                let ttl = ttl.unwrap_or(lease.ttl());
                *lease = LeaseRecord::new(Moment::now(), ttl)?;
            }
            Ok(Renewed::Mine)
        })
    }

    fn release(&mut self, key: &Key, token: &Token, how: Release) -> Result<Released, StoreError> {
        let (ending, uses_value, retain) = match how {
            Release::ByHand => return self.release_by_hand(key, token),
            Release::Run { ending, uses_value, retain } => (ending, uses_value, retain),
        };
        let Some(Locked { file, slot }) = self.locked.take() else { return Ok(Released::NotMine(None)) };
        let mut is_used = false;
        let recorded = file.edit_and_free(slot, |record| {
            let Some(at) = record.holders.iter().position(|holder| holder.token == *token) else {
                return Ok(Released::NotMine(None));
            };
            let holder = record.holders.remove(at);
            record.note(&holder, ending);
            if uses_value {
                record.note_use(&holder);
                is_used = holder.value.is_some();
            }
            let Some(lease) = lease_after(&holder, retain)? else { return Ok(Released::Free) };
            record.holders.insert(at, HolderRecord { lease: Some(lease), ..holder });
            Ok(Released::Retained)
        });
        // A value that was used never comes up again. All else in a record is void when the power has failed, but for the
        // fence, and that goes on with the time.
        let to_disk = || if is_used { file.sync().and_then(|()| self.directory()?.sync()) } else { Ok(()) };
        let recorded = recorded?.and_then(|released| to_disk().map(|()| released));
        Ok(recorded.unwrap_or_else(|error| Released::Unrecorded(format!("{error:#}"))))
    }

    fn reserve(&mut self, claim: &Claim, wanted: &Wanted) -> Result<Reserved, StoreError> {
        let directory = self.directory()?;
        for _ in 0..VANISHED_MAX {
            let file = LockFile::open_or_create(&directory, &claim.key)?;
            // The turnstile is not ours to wait at: whoever reserves a value finds one at once.
            let reserved = file.edit(|record| {
                if !file.has_its_name(&directory)? {
                    return Ok(None);
                }
                reserve(record, &file, claim, wanted).map(Some)
            })?;
            let Some(reserved) = reserved else { continue };
            if let Reserved::Mine(grant, _) = &reserved {
                self.locked = Some(Locked { file, slot: grant.slot });
            }
            return Ok(reserved);
        }
        bail!("the lock file {} is removed over and over; find out by what", directory.show(&claim.key))
    }

    fn list(&mut self, key: Option<&Key>) -> Result<Vec<KeyStatus>, StoreError> {
        let directory = self.directory()?;
        let names = match key {
            Some(key) => vec![directory::file_name(key)],
            None => directory.names()?,
        };
        let waiters = waiters::all()?;
        let mut found = Vec::new();
        for name in names {
            let Some(file) = LockFile::open_to_look(&directory, &name)? else { continue };
            let looked = file.look();
            // All the others are still worth to be told. Whoever asks for this one is told of nothing else.
            let looked = if key.is_none() { self.unless_unreadable(looked)? } else { Some(looked?) };
            let Some(record) = looked else { continue };
            let Some(key) = key_in(&record, &name) else { continue };
            found.push(status(key, &record, &file, &waiters)?);
        }
        found.sort_by(|a, b| a.key.as_str().cmp(b.key.as_str()));
        Ok(found)
    }

    fn revoke(&mut self, key: &Key, fence: Option<u64>, _by: &Holder, _now: bool) -> Result<Revoked, StoreError> {
        let Some(file) = self.lock_file(key)? else { return Ok(Revoked::Free) };
        file.edit(|record| {
            drop_ended(record, &file)?;
            if record.holders.is_empty() {
                return Ok(Revoked::Free);
            }
            let is_meant = |holder: &HolderRecord| fence.is_none_or(|fence| holder.fence == fence);
            if !record.holders.iter().any(is_meant) {
                return Ok(Revoked::Others(record.holders.iter().map(HolderRecord::held).collect()));
            }
            let living = record.holders.iter().filter(|holder| is_meant(holder) && holder.lease.is_none());
            let living = living.map(|holder| Living { held: holder.held(), pids: keepers(holder, &file) }).collect();
            let is_taken = |holder: &HolderRecord| is_meant(holder) && holder.lease.is_some();
            let (taken, left): (Vec<_>, Vec<_>) = record.holders.drain(..).partition(is_taken);
            record.holders = left;
            for holder in &taken {
                record.note(holder, None);
            }
            let from = taken.iter().map(HolderRecord::held).collect();
            Ok(Revoked::Taken { from, living, free_in: Duration::ZERO, untold: false })
        })
    }

    fn prune(&mut self, unused_for: Duration, really: bool) -> Result<Vec<Key>, StoreError> {
        let directory = self.directory()?;
        let mut forgotten = Vec::new();
        for name in directory.names()? {
            let Some(file) = LockFile::open(&directory, &name)? else { continue };
            // Who waits is not to be disturbed for nothing.
            if file.slot_is_taken(0)? {
                continue;
            }
            // Whoever comes to the turnstile behind us finds that the file has lost its name, and makes a new one.
            if !file.enter_now()? || !file.has_its_name(&directory)? {
                continue;
            }
            let edited = file.edit(|record| {
                drop_ended(record, &file)?;
                let used_at = record.last.as_ref().map_or(record.fence, |last| last.ended_unix_ms);
                let unused = Duration::from_millis(record::unix_ms().saturating_sub(used_at)) >= unused_for;
                // A sequence is never forgotten: it would begin anew.
                let is_old = unused && record.holders.is_empty() && record.sequence.is_none();
                let key = key_in(record, &name).filter(|_| is_old);
                if really && key.is_some() {
                    directory.remove(&name)?;
                }
                Ok(key)
            });
            forgotten.extend(self.unless_unreadable(edited)?.flatten());
        }
        forgotten.sort_by(|a, b| a.as_str().cmp(b.as_str()));
        Ok(forgotten)
    }

    fn left_out(&mut self) -> Vec<StoreError> {
        std::mem::take(&mut self.left_out)
    }

    fn diagnose(&mut self) -> Vec<Diagnostic> {
        diagnose::diagnose(self.directory.as_deref())
    }
}

impl FileStore {
    /// What came of a file among others; nothing, if its record cannot be read, which is told later. What may never have been
    /// a lock's file is nobody's business.
    fn unless_unreadable<T>(&mut self, result: Result<T, StoreError>) -> Result<Option<T>, StoreError> {
        match result {
            Ok(found) => Ok(Some(found)),
            Err(error) => {
                let is_foreign = error.downcast_ref::<Unreadable>().map(Unreadable::is_foreign);
                match is_foreign {
                    Some(true) => {}
                    Some(false) => self.left_out.push(error),
                    None => return Err(error),
                }
                Ok(None)
            }
        }
    }

    fn release_by_hand(&self, key: &Key, token: &Token) -> Result<Released, StoreError> {
        let Some(file) = self.lock_file(key)? else { return Ok(Released::NotMine(None)) };
        file.edit(|record| {
            drop_ended(record, &file)?;
            match record.holder(token) {
                None => Ok(Released::NotMine(record.first_held())),
                Some(holder) if holder.lease.is_none() => {
                    holder.let_go = true;
                    Ok(Released::WhenItEnds)
                }
                Some(holder) => {
                    let holder = holder.clone();
                    record.holders.retain(|other| other.token != *token);
                    record.note(&holder, None);
                    Ok(Released::Free)
                }
            }
        })
    }
}

/// Whether commands run in all slots that the claim could get. Then there is no need to pass the turnstile: whoever is there for
/// a moment sends those to the end of the kernel's queue who are next.
fn is_full(directory: &Directory, file: &LockFile, claim: &Claim) -> Result<bool, StoreError> {
    if claim.by_hand {
        // It may be asked for again under the token of one of them.
        return Ok(false);
    }
    for slot in 0..claim.slots {
        if !file.slot_is_taken(slot)? {
            return Ok(false);
        }
    }
    file.has_its_name(directory)
}

/// Takes the lowest free slot of the claim's. For whoever is past the turnstile.
fn take(directory: &Directory, file: &LockFile, claim: &Claim) -> Result<Found, StoreError> {
    if !file.has_its_name(directory)? {
        return Ok(Found::Vanished);
    }
    file.edit(|record| {
        drop_ended(record, file)?;
        if let Some(holder) = record.holder(&claim.token) {
            // Asked again under the same token: the same answer.
            let lease_from = if holder.lease.is_some() { Some(Moment::now()) } else { None };
            if let Some(lease) = &mut holder.lease {
                *lease = LeaseRecord::new(Moment::now(), claim.ttl)?;
            }
            return Ok(Found::Mine(Grant { fence: holder.fence, slot: holder.slot, lease_from }));
        }
        let mut taken = record.holders.len();
        for slot in 0..claim.slots {
            if taken >= claim.slots as usize {
                break;
            }
            if record.holders.iter().any(|holder| holder.slot == slot) {
                continue;
            }
            if !file.take_slot(slot)? {
                // By somebody whose record was lost.
                taken += 1;
                continue;
            }
            if !claim.by_hand {
                let fence = add(record, file, claim, slot, None)?;
                return Ok(Found::Mine(Grant { fence, slot, lease_from: None }));
            }
            file.free_slot(slot)?;
            let now = Moment::now();
            let fence = add(record, file, claim, slot, Some(LeaseRecord::new(now, claim.ttl)?))?;
            return Ok(Found::Mine(Grant { fence, slot, lease_from: Some(now) }));
        }
        let ends_at = record.holders.iter().filter_map(HolderRecord::ends_at).min();
        Ok(Found::Taken(record.first_held().unwrap_or_default(), ends_at))
    })
}

/// Reserves a value of the key's sequence. Its slot only keeps it taken for as long as the run lives.
fn reserve(record: &mut Record, file: &LockFile, claim: &Claim, wanted: &Wanted) -> Result<Reserved, StoreError> {
    drop_ended(record, file)?;
    let (last, mut place) =
        record.sequence.as_ref().map_or((None, 0), |sequence| (Some(sequence.last.clone()), sequence.place));
    let taken: Vec<_> = record.holders.iter().filter_map(|holder| holder.value.as_ref()).collect();
    let is_reserved = |value: &str| taken.iter().any(|taken| taken.value == value);
    let value = match wanted {
        Wanted::Value { after, .. } if *after != last => return Ok(Reserved::Moved(last)),
        Wanted::Value { value, .. } if is_reserved(value) => return Ok(Reserved::Taken),
        Wanted::Value { value, steps, .. } => {
            place += u64::from(*steps);
            value.clone()
        }
        Wanted::Next { from, step } => {
            let next_after = |value: &str| integer(value).and_then(|value| value.checked_add(*step));
            let mut before = last;
            loop {
                place += 1;
                let next = before.as_deref().map_or(Some(*from), next_after);
                let Some(next) = next.map(|next| next.to_string()) else {
                    return Ok(Reserved::NoNext(before.unwrap_or_default()));
                };
                if !is_reserved(&next) {
                    break next;
                }
                before = Some(next);
            }
        }
    };
    let mut slot = 0;
    while record.holders.iter().any(|holder| holder.slot == slot) || !file.take_slot(slot)? {
        slot += 1;
    }
    let fence = add(record, file, claim, slot, None)?;
    if let Some(holder) = record.holder(&claim.token) {
        holder.value = Some(ValueRecord { value: value.clone(), place });
    }
    Ok(Reserved::Mine(Grant { fence, slot, lease_from: None }, value))
}

/// Gives the slot to the claim. Returns the fence.
fn add(
    record: &mut Record,
    file: &LockFile,
    claim: &Claim,
    slot: u32,
    lease: Option<LeaseRecord>,
) -> Result<u64, StoreError> {
    let last = record.fence;
    record.add(claim, slot, lease).with_context(|| {
        let path = file.path();
        format!(
            "the fence in {path} cannot grow: {last} is the greatest there is; make sure that nothing works under the lock, then \
             empty the file: truncate -s 0 {path}"
        )
    })
}

/// Forgets the holders that hold nothing any more: whose lease has run out, or whose processes are gone.
fn drop_ended(record: &mut Record, file: &LockFile) -> Result<(), StoreError> {
    let now = Moment::now();
    let mut holders = std::mem::take(&mut record.holders);
    let mut failure = Ok(());
    holders.retain(|holder| {
        is_in_force(holder, file, now).unwrap_or_else(|error| {
            failure = Err(error);
            true
        })
    });
    record.holders = holders;
    failure
}

fn is_in_force(holder: &HolderRecord, file: &LockFile, now: Moment) -> Result<bool, StoreError> {
    Ok(match &holder.lease {
        Some(lease) => lease.is_in_force(now)?,
        None => file.slot_is_taken(holder.slot)?,
    })
}

/// The lease under which a lock stays after its run, if it does.
fn lease_after(holder: &HolderRecord, retain: Retain) -> Result<Option<LeaseRecord>, StoreError> {
    let now = Moment::now();
    Ok(match retain {
        Retain::Not => None,
        Retain::Kept(_) if holder.let_go => None,
        Retain::Kept(ttl) => Some(LeaseRecord::new(now, ttl)?),
        Retain::AtLeast(span) => {
            let left = span.saturating_sub(holder.held_for(now));
            if left.is_zero() { None } else { Some(LeaseRecord::new(now, Ttl::Lasts(left))?) }
        }
    })
}

/// The living processes that keep a slot taken: lockrun, or, if that is dead, all that have inherited it. Only those that we
/// may look into.
fn keepers(holder: &HolderRecord, file: &LockFile) -> Vec<u32> {
    let mut pids = waiters::with_lock(file, lock_file::byte_of(holder.slot));
    // The number of one that has died may be another's by now.
    if pids.contains(&holder.who.pid) {
        pids = vec![holder.who.pid];
    }
    pids
}

/// The key whose record stands in the file of this `name`; `None` if it is no lock of ours, or not yet.
fn key_in(record: &Record, name: &str) -> Option<Key> {
    Key::new(record.key.as_ref()).ok().filter(|key| directory::file_name(key) == name)
}

/// What is known of one key.
fn status(key: Key, record: &Record, file: &LockFile, waiters: &waiters::Waiters) -> Result<KeyStatus, StoreError> {
    let now = Moment::now();
    let now_ms = record::unix_ms();
    let mut holders = Vec::new();
    for holder in &record.holders {
        if is_in_force(holder, file, now)? {
            let held_for = holder.held_for(now);
            holders.push(Holding {
                who: holder.who.clone(),
                since_ms: now_ms.saturating_sub(record::millis(held_for)),
                expires_in: holder.ends_at().map(|ends_at| ends_at.since(now)),
                fence: holder.fence,
                slot: holder.slot,
                value: holder.value.as_ref().map(|value| value.value.clone()),
                revoked: false,
                token: Some(holder.token.clone()),
            });
        }
    }
    let last = record.last.as_ref().map(|last| Past {
        who: last.who.clone(),
        started_ms: last.started_unix_ms,
        ended_ms: last.ended_unix_ms,
        ending: last.status.map(Ending::Exited).or(last.signal.map(Ending::Signaled)),
    });
    let value = record.sequence.as_ref().map(|sequence| sequence.last.clone());
    Ok(KeyStatus { key, now_ms, fence: record.fence, holders, waiters: waiters.of(file)?, last, value })
}
