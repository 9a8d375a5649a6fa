//! The file of a lock, seen from outside: its record, and whether its first slot is locked.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use nix::fcntl::{FcntlArg, fcntl};
use nix::libc;
use serde_json::Value;

use super::store::Store;

/// The offset of the byte that the kernel's lock on the first slot covers.
const FIRST_SLOT: i64 = 1 << 41;

/// Returns the path of the file of a lock with a plain name.
pub(crate) fn path(store: &Store, key: &str) -> PathBuf {
    store.locks().join(key)
}

/// Returns the record in a lock's file: the latest of the copies, which are at the beginning of the file and at powers
/// of two.
#[track_caller]
pub(crate) fn record(path: &Path) -> Value {
    let file = fs::read(path).expect("the lock has a file");
    let places = std::iter::once(0).chain((10..).map(|power| 1 << power)).take_while(|at| *at < file.len());
    let newest = places.filter_map(|at| copy(&file[at..])).max_by_key(|(serial, _)| *serial).expect("a record");
    serde_json::from_slice(newest.1).expect("a record in JSON")
}

/// Returns the serial number and the record of the copy that begins here, if there is one.
fn copy(file: &[u8]) -> Option<(u64, &[u8])> {
    let end = file.iter().position(|byte| *byte == b'\n')?;
    let words: Vec<_> = str::from_utf8(&file[..end]).ok()?.split(' ').collect();
    let ["lockrun", _, serial, _, length] = words[..] else { return None };
    let number = |word| u64::from_str_radix(word, 16).ok();
    Some((number(serial)?, file.get(end + 1..)?.get(..usize::try_from(number(length)?).ok()?)?))
}

/// Changes the record in a lock's file, which has one copy then.
#[track_caller]
pub(crate) fn edit(path: &Path, change: impl FnOnce(&mut Value)) {
    let mut record = record(path);
    change(&mut record);
    let size = 1 << 16;
    let text = record.to_string();
    let summed = format!("{:016x} {size:016x} {:016x}\n{text}", 1, text.len());
    let sum = summed
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325_u64, |sum, byte| (sum ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
    let mut file = format!("lockrun {sum:016x} {summed}\n").into_bytes();
    file.resize(size, 0);
    fs::write(path, file).expect("the record is written");
}

/// Returns whether a process holds the lock on the first slot.
#[track_caller]
pub(crate) fn is_taken(path: &Path) -> bool {
    let file = File::options().read(true).write(true).open(path).expect("the lock has a file");
    let kind = |kind: i32| libc::c_short::try_from(kind).expect("a small number");
    let mut lock = libc::flock {
        l_type: kind(libc::F_WRLCK),
        l_whence: kind(libc::SEEK_SET),
        l_start: FIRST_SLOT,
        l_len: 1,
        l_pid: 0,
    };
    fcntl(&file, FcntlArg::F_OFD_GETLK(&mut lock)).expect("the kernel answers");
    lock.l_type != kind(libc::F_UNLCK)
}
