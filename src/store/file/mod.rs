//! Locks on this machine: one file per key, in a directory of one user or of a group.
//!
//! A lock is held if a run has the kernel's lock on a slot of the file, or if the record in the file has a lease in
//! force: that of a lock that was acquired by hand or retained after its run. COMMAND inherits the descriptor, so the
//! kernel's lock lasts for as long as lockrun, COMMAND or a process that COMMAND started has it open, whatever happens
//! to lockrun. A clean end unlocks explicitly, and then the lock is free even if a process still has the file open.

mod access;
mod answers;
mod clock;
mod diagnose;
mod directory;
#[cfg(any(test, fuzzing))]
pub(in crate::store) mod fuzz;
mod group;
mod kernel_view;
mod lock_file;
mod record;
mod record_file;
mod turnstile;
mod unreadable;
mod url;
mod waiter_bytes;
mod waiters;

use std::path::PathBuf;
use std::slice;
use std::time::Duration;

use anyhow::anyhow;

use super::{
    Acquired, Claim, Diagnose, Grant, IfHeld, KeyStatus, Listing, Prune, Release, Released, Renewed, RequestError,
    Reserved, Revoked, Sequences, Store, StoreError, Wakeup, Wanted,
};
use crate::lock::holder::Holder;
use crate::lock::key::Key;
use crate::lock::lease::Ttl;
use crate::lock::state::{Ask, FenceExhausted, LockState};
use crate::lock::token::Token;
use crate::store::diagnostic::Diagnostic;
use crate::sys::clock::Moment;
use crate::sys::counter::Counter;
use crate::sys::wait::{WaitObserver, Waiter};
use access::Access;
use directory::Directory;
use kernel_view::KernelView;
use lock_file::{LockFile, RECORD_TIMEOUT, Turnstile};
use turnstile::PendingClaim;
use unreadable::Unreadable;

pub(super) use url::KIND;

/// How often a lock file may vanish between being opened and locked before the operation fails.
const VANISHED_MAX: u32 = 100;

/// The store in files of this machine.
#[derive(Debug)]
pub struct FileStore {
    /// The directory that was named; `None`: the default one.
    directory: Option<PathBuf>,
    access: Access,
    /// Where a claim waits, if one does.
    pending: Option<PendingClaim>,
    locked: Option<Locked>,
}

/// A slot that this run holds.
#[derive(Debug)]
struct Locked {
    file: LockFile,
    slot: u32,
}

impl FileStore {
    /// Creates the store in `directory`, or in the default one, for the users that `access` allows.
    fn new(directory: Option<PathBuf>, access: Access) -> Self {
        FileStore { directory, access, pending: None, locked: None }
    }

    /// Returns the directory, if it exists. Only acquiring a lock creates it.
    fn directory(&self) -> Result<Option<Directory>, StoreError> {
        Directory::open(self.directory.as_deref(), &self.access)
    }

    /// Returns the directory, which is created if it does not exist.
    fn directory_for_a_lock(&self) -> Result<Directory, StoreError> {
        Directory::open_or_create(self.directory.as_deref(), &self.access)
    }

    /// Returns the lock file of `key`, if it exists, to change its record.
    fn lock_file(&self, key: &Key) -> Result<Option<LockFile>, StoreError> {
        let Some(directory) = self.directory()? else { return Ok(None) };
        let Some(file) = LockFile::open(&directory, &directory::file_name(key))? else { return Ok(None) };
        lock_file::check_limit(file.path())?;
        Ok(Some(file))
    }
}

impl Store for FileStore {
    fn try_acquire(&mut self, claim: &Claim, if_held: IfHeld) -> Result<Acquired, RequestError> {
        for _ in 0..VANISHED_MAX {
            let pending = match &mut self.pending {
                Some(pending) => pending,
                none => {
                    let directory = Directory::open_or_create(self.directory.as_deref(), &self.access)?;
                    none.insert(PendingClaim::at(directory, claim)?)
                }
            };
            let answer = match pending.ask(claim, if_held)? {
                None => {
                    self.pending = None;
                    continue;
                }
                Some(Acquired::NotQueued(held)) if if_held == IfHeld::Leave => Acquired::Held(held),
                Some(answer) => answer,
            };
            let waits = if_held != IfHeld::Leave && matches!(answer, Acquired::Held(_));
            let pending = if waits { None } else { self.pending.take() };
            if let Acquired::Mine(Grant { slot, lease_from: None, .. }) = answer {
                self.locked = pending.map(|pending| Locked { file: pending.into_file(), slot });
            }
            return Ok(answer);
        }
        Err(vanishes(&self.directory_for_a_lock()?, &claim.key))
    }

    fn await_turn(
        &mut self,
        _: &Claim,
        until: Option<Moment>,
        waiter: &mut Waiter<'_>,
        observer: &mut dyn WaitObserver,
    ) -> Result<Wakeup, RequestError> {
        let Some(pending) = &mut self.pending else { return Ok(Wakeup::AskAgain) };
        Ok(pending.sleep(until, waiter, observer)?)
    }

    fn renew(&mut self, key: &Key, token: &Token, ttl: Option<Ttl>) -> Result<Renewed, StoreError> {
        let Some(file) = self.lock_file(key)? else { return Ok(Renewed::NotMine(None)) };
        file.edit(|state, view| Ok(state.renew(token, ttl, view).answer))
    }

    fn release(&mut self, key: &Key, token: &Token, how: Release) -> Result<Released, StoreError> {
        let mut has_value = false;
        let release = |state: &mut LockState, view: &KernelView<'_>| {
            has_value = state.reserved_by(token).is_some();
            Ok(state.release(token, how, false, view).answer)
        };
        let Release::Run { succeeded, .. } = how else {
            let Some(file) = self.lock_file(key)? else { return Ok(Released::NotMine(None)) };
            return file.edit(release);
        };
        let Some(Locked { file, slot }) = self.locked.take() else { return Ok(Released::NotMine(None)) };
        let recorded = file.edit_and_free(slot, release);
        // A used value must never come up again, so it must be on the disk. Everything else in the record is void after
        // a power failure, except the fence, and that continues from the time.
        let is_used = succeeded && has_value;
        let to_disk = || {
            if !is_used {
                return Ok(());
            }
            file.sync()?;
            self.directory()?.map_or(Ok(()), |directory| directory.sync())
        };
        let recorded = recorded?.and_then(|released| to_disk().map(|()| released));
        Ok(recorded.unwrap_or_else(|error| Released::Unrecorded(format!("{error:#}"))))
    }

    fn cancel(&mut self, claim: &Claim, in_flight: bool) -> bool {
        // A waiter is in the kernel's queue, and nowhere else.
        if self.pending.take().is_some() {
            return true;
        }
        let cancel = |state: &mut LockState, view: &KernelView<'_>| {
            Ok(state.cancel(&claim.token, claim.request.as_ref(), in_flight, view).answer)
        };
        // If the edit fails, the lock stays until its lease expires.
        let Ok(file) = self.lock_file(&claim.key) else {
            // The claim's own request could not open the file either.
            return true;
        };
        file.is_none_or(|file| file.edit(cancel).is_ok())
    }

    fn list(&mut self, key: Option<&Key>) -> Result<Listing<KeyStatus>, StoreError> {
        let mut listing = Listing { found: Vec::new(), unreadable: Vec::new() };
        let Some(directory) = self.directory()? else { return Ok(listing) };
        let names = match key {
            Some(key) => vec![directory::file_name(key)],
            None => directory.names()?,
        };
        let waiters = waiters::all()?;
        let mut counter = Counter::new("reading locks", Some(names.len()));
        for name in names {
            counter.add(1);
            let look = || {
                let Some(file) = LockFile::open_to_look(&directory, &name)? else { return Ok(None) };
                file.look(|state, view| {
                    let key = answers::key_of(state, &name, key, &file)?;
                    key.map(|key| answers::status(key, state, view, &file, &waiters)).transpose()
                })
            };
            // In a list of all keys, one failure must not hide the others. A request for one key gets the error.
            match key {
                None => add_found(look(), &mut listing),
                Some(_) => listing.found.extend(look()?),
            }
        }
        listing.found.sort_by(|a, b| a.key.as_str().cmp(b.key.as_str()));
        Ok(listing)
    }

    fn revoke(&mut self, key: &Key, fence: Option<u64>, by: &Holder, now: bool) -> Result<Revoked, StoreError> {
        let Some(file) = self.lock_file(key)? else { return Ok(Revoked::Free) };
        let fences = fence.as_ref().map(slice::from_ref);
        file.edit(|state, view| answers::revoked(state.revoke(fences, by, now, view).answer, fence, &file))
    }
}

impl Sequences for FileStore {
    fn reserve(&mut self, claim: &Claim, wanted: &Wanted) -> Result<Reserved, RequestError> {
        let directory = self.directory_for_a_lock()?;
        for _ in 0..VANISHED_MAX {
            let file = LockFile::open_or_create(&directory, &claim.key)?;
            // Not through the turnstile: a reservation does not wait.
            let reserved = file.edit(|state, view| {
                if !file.has_its_name(&directory)? {
                    return Ok(None);
                }
                let applied = state.reserve(&ask(claim, false), wanted, view);
                Ok(Some(applied.map_err(|error| no_fence(error, &file))?.answer))
            })?;
            let Some(reserved) = reserved else { continue };
            if let Reserved::Mine(grant, _) = &reserved {
                self.locked = Some(Locked { file, slot: grant.slot });
            }
            return Ok(reserved);
        }
        Err(vanishes(&directory, &claim.key))
    }
}

impl Prune for FileStore {
    fn prune(&mut self, key: Option<&Key>, unused_for: Duration, really: bool) -> Result<Listing<Key>, StoreError> {
        let mut listing = Listing { found: Vec::new(), unreadable: Vec::new() };
        let Some(directory) = self.directory()? else { return Ok(listing) };
        let names = match key {
            Some(key) => vec![directory::file_name(key)],
            None => directory.names()?,
        };
        let mut counter = Counter::new("pruning locks", Some(names.len()));
        for name in names {
            counter.add(1);
            let remove = || {
                let Some(file) = LockFile::open(&directory, &name)? else { return Ok(None) };
                // A held lock is not pruned, so do not disturb its turnstile. The record may not name its holder.
                if file.taken_slot()?.is_some() {
                    return Ok(None);
                }
                // The next run at the turnstile will find that the file has lost its name, and create a new one.
                match file.enter_within(RECORD_TIMEOUT)? {
                    Turnstile::Entered => {}
                    Turnstile::Occupied => return Ok(None),
                    Turnstile::Blocked => return Err(turnstile::blocked(&file, waiters::at_turnstile(&file))),
                }
                if !file.has_its_name(&directory)? {
                    return Ok(None);
                }
                file.look(|state, view| {
                    let key = answers::key_in(state, &name).filter(|_| state.is_prunable(unused_for, view));
                    if really && key.is_some() {
                        directory.remove(&name)?;
                    }
                    Ok(key)
                })
            };
            add_found(remove(), &mut listing);
        }
        listing.found.sort_by(|a, b| a.as_str().cmp(b.as_str()));
        Ok(listing)
    }

    fn forget_success(&mut self, key: &Key) -> Result<bool, StoreError> {
        let Some(file) = self.lock_file(key)? else { return Ok(false) };
        file.edit(|state, _| Ok(state.forget_success().answer))
    }
}

impl Diagnose for FileStore {
    fn diagnose(&mut self) -> Vec<Diagnostic> {
        diagnose::diagnose(self.directory.as_deref(), &self.access)
    }
}

/// Adds what was found in one of many files to the `listing`, or the error that it cannot be read. Ignores a file that
/// may never have been a lock file.
fn add_found<T>(looked: Result<Option<T>, StoreError>, listing: &mut Listing<T>) {
    match looked {
        Ok(found) => listing.found.extend(found),
        Err(error) if error.downcast_ref().is_some_and(Unreadable::is_foreign) => {}
        Err(error) => listing.unreadable.push(error),
    }
}

fn vanishes(directory: &Directory, key: &Key) -> RequestError {
    anyhow!("the lock file {} keeps being deleted; find what deletes it", directory.show(key)).into()
}

/// Returns the request for the rules. It never queues there, because waiters are in the kernel's queue, not in the
/// state.
fn ask(claim: &Claim, leased: bool) -> Ask<'_> {
    Ask { claim, leased, sent_at: Moment::now(), if_held: IfHeld::Leave }
}

fn no_fence(error: FenceExhausted, file: &LockFile) -> StoreError {
    let (FenceExhausted { last }, path) = (error, file.path());
    anyhow!(
        "the fence in {path} cannot grow: {last} is the greatest there is; make sure that nothing works under the lock, then {}",
        file.access.remedy(path)
    )
}
