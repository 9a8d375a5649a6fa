//! Fuzzing of lock files.

use std::time::Duration;

use super::record_file::{Copies, checksum};
use crate::commands::status;
use crate::lock::ending::Ending;
use crate::lock::holder::Holder;
use crate::lock::key::Key;
use crate::lock::state::{Ask, HolderState, IfHeld, LockState, Now, Release, Retain, StoreView, Wanted};
use crate::store::fuzz::claim;
use crate::sys::clock::Moment;

/// The greatest offset of a copy that is tried, in bytes.
const AT_MAX: usize = 1 << 14;

/// Checks lock files: whatever a file contains, the next record written is the next one read, and the rules cope with
/// any record.
///
/// The input is the contents of a file, or a record. If its first line is `copies`, the other lines are `AT SERIAL SIZE
/// RECORD`, with hexadecimal numbers, and each stands for a whole copy.
pub fn record(data: &[u8]) {
    match data.strip_prefix(b"copies\n") {
        Some(lines) => contents(&sealed(lines)),
        None => contents(data),
    }
    if let Ok(state) = serde_json::from_slice::<LockState>(data) {
        let text = serde_json::to_vec(&state).expect("is JSON");
        assert_eq!(serde_json::from_slice::<LockState>(&text).expect("is a record"), state);
        rules(&state);
    }
}

/// Returns the contents of a file with these copies.
fn sealed(lines: &[u8]) -> Vec<u8> {
    let mut file = Vec::new();
    for line in lines.split(|byte| *byte == b'\n') {
        let mut words = line.splitn(4, |byte| *byte == b' ');
        let mut number = || u64::from_str_radix(str::from_utf8(words.next()?).ok()?, 16).ok();
        let (Some(at), Some(serial), Some(size)) = (number(), number(), number()) else { continue };
        let record = words.next().unwrap_or_default();
        let Some(at) = usize::try_from(at).ok().filter(|at| *at <= AT_MAX) else { continue };
        let mut summed = format!("{serial:016x} {size:016x} {:016x}\n", record.len()).into_bytes();
        summed.extend_from_slice(record);
        let copy = [format!("lockrun {:016x} ", checksum(&summed)).as_bytes(), &summed, b"\n"].concat();
        if file.len() < at + copy.len() {
            file.resize(at + copy.len(), 0);
        }
        file[at..at + copy.len()].copy_from_slice(&copy);
    }
    file.resize(file.len().next_power_of_two().max(2048), 0);
    file
}

fn contents(data: &[u8]) {
    const NEXT: &[u8] = b"{\"fence\":7}";
    let copies = Copies::of(data.to_vec());
    let Ok((location, _)) = copies.newest() else { return };
    let (next, copy) = location.next(NEXT);
    let mut file = data.to_vec();
    file.resize(file.len().max(next.size), 0);
    file[next.at..next.at + copy.len()].copy_from_slice(&copy);
    let after = Copies::of(file);
    let read = after.newest().map(|(_, record)| record.to_vec());
    assert_eq!(read.as_deref(), Ok(NEXT), "what was written is not read");
}

/// What the kernel knows beside the state: which of the holders and waiters are present.
struct World(Now);

impl StoreView for World {
    fn now(&self) -> Now {
        self.0
    }

    fn holds_slot(&self, holder: &HolderState) -> bool {
        holder.slot.is_multiple_of(2)
    }
}

/// Applies every rule to the state.
fn rules(state: &LockState) {
    let claim = claim();
    let by = Holder::default();
    for now in [0, 1_800_000_000_000, u64::MAX] {
        let world = World(Now::unix(now));
        for if_held in [IfHeld::Leave, IfHeld::Queue { max_waiting: Some(3), until: None }] {
            let ask = Ask { claim: &claim, leased: true, sent_at: Moment::now(), if_held };
            let mut after = state.clone();
            if after.acquire(&ask, &world).is_ok() {
                assert!(after.fence >= state.fence, "a fence that falls");
            }
            let _ = state.clone().reserve(&ask, &Wanted::Next { from: 1, step: 1 }, &world);
        }
        let retain = Retain::AtLeast(Duration::from_secs(1));
        let run = Release::Run { ending: Ending::Exited(0), succeeded: true, retain };
        let tokens = state.holders.iter().map(|holder| &holder.token);
        for token in tokens.chain([&claim.token]).take(4) {
            state.clone().renew(token, Some(claim.ttl), &world);
            state.clone().renew(token, None, &world);
            state.clone().release(token, run, true, &world);
            state.clone().release(token, Release::ByHand, false, &world);
            state.clone().cancel(token, None, true, &world);
        }
        state.clone().revoke(None, &by, false, &world);
        state.clone().revoke(Some(&[state.fence]), &by, true, &world);
        let _ = state.is_prunable(Duration::from_secs(1), &world);
        let key = Key::new(state.key.as_ref()).unwrap_or_else(|_| claim.key.clone());
        status::fuzz::check(&[state.status(key, &world)]);
    }
}
