//! How a record is stored: as two copies that are written in turn. If a process is killed while it writes one, or finds
//! the disk full, the other stays whole.
//!
//! ```text
//! lockrun CHECKSUM SERIAL SIZE LENGTH      in hexadecimal
//! {"key":...}                              the record, of LENGTH bytes
//! ```
//!
//! Of the copies that are whole, the one with the highest serial counts. The first is at the beginning of the file,
//! each later one there or at a power of two, but never over the one before it: so no two share a sector, which is what
//! a disk writes in one piece when the power fails. The file has had at least SIZE bytes since the copy was written: if
//! it is shorter now, it was cut off, perhaps with a newer copy.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// The beginning of every copy.
const MARK: &[u8] = b"lockrun ";

/// The length of the rest of a copy's first line: four numbers, each followed by one byte.
const HEADER: usize = 4 * 17;

/// The lowest offset of a copy that is not at the beginning of the file. So small that two copies of an ordinary record
/// share a page.
const LOWEST_OFFSET: usize = 1024;

/// The size in bytes of a file with two copies of an ordinary record, which is the smallest size of any file.
pub(super) const LEAST_SIZE: u64 = 2 * LOWEST_OFFSET as u64;

/// The greatest size of a file in bytes: room for two copies with ten thousand holders. A file that others can write
/// must not fill this process's memory.
const GREATEST_SIZE: usize = 1 << 25;

/// How much is read at first: more than an ordinary file has.
const PAGE: usize = 4096;

/// The contents of a lock file.
pub(super) struct Copies(Vec<u8>);

/// Where the copy that counts is, and the size of the file. All zero if there is no copy yet, except perhaps `size`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct CopyLocation {
    pub(super) at: usize,
    end: usize,
    serial: u64,
    pub(super) size: usize,
}

/// Why a file that is not empty has no usable record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Damage {
    /// The file was not written by lockrun.
    Foreign,
    /// The file is shorter than it was.
    Truncated,
    /// No copy is whole.
    Torn,
    /// The copy that counts is whole, but cannot be parsed as a record.
    Unparsable,
    /// The file is longer than any that lockrun writes.
    TooLong,
}

/// A copy, as described by its first line.
struct Copy<'f> {
    location: CopyLocation,
    checksum: u64,
    /// The bytes that the checksum covers: the rest of the first line, and the record.
    summed: &'f [u8],
}

impl Copies {
    /// Reads a file. If it is not lockrun's or is too long, stops as soon as that is clear.
    pub(super) fn read(file: &File) -> io::Result<Self> {
        let mut contents = vec![0; PAGE];
        let mut length = 0;
        loop {
            match file.read_at(&mut contents[length..], length as u64)? {
                0 => break,
                read => length += read,
            }
            if is_foreign(&contents[..length]) || length > GREATEST_SIZE {
                break;
            }
            if length == contents.len() {
                // One byte more than the greatest size shows that the file is too long.
                contents.resize((length * 2).min(GREATEST_SIZE + 1), 0);
            }
        }
        contents.truncate(length);
        Ok(Copies(contents))
    }

    /// Returns the copies in a file with these contents.
    #[cfg(any(test, fuzzing))]
    pub(super) fn of(contents: Vec<u8>) -> Self {
        Copies(contents)
    }

    /// Returns the record that counts, and its location; an empty record if the file is empty or has only zeros.
    pub(super) fn newest(&self) -> Result<(CopyLocation, &[u8]), Damage> {
        let file = self.0.as_slice();
        if is_foreign(file) {
            return Err(Damage::Foreign);
        }
        if file.len() > GREATEST_SIZE {
            return Err(Damage::TooLong);
        }
        let later =
            std::iter::successors(Some(LOWEST_OFFSET), |at| at.checked_mul(2)).take_while(|at| *at < file.len());
        let mut copies: Vec<Copy> = std::iter::once(0).chain(later).filter_map(|at| Copy::at(at, file)).collect();
        copies.sort_unstable_by_key(|copy| std::cmp::Reverse(copy.location.serial));
        match copies.iter().find(|copy| copy.is_whole()) {
            Some(copy) if copy.location.size > file.len() => Err(Damage::Truncated),
            Some(copy) => Ok((CopyLocation { size: file.len(), ..copy.location }, copy.record())),
            // The file was created or extended, and then the power failed or the process was killed.
            None if file.iter().all(|byte| *byte == 0) => {
                Ok((CopyLocation { size: file.len(), ..CopyLocation::default() }, &[]))
            }
            None => Err(Damage::Torn),
        }
    }
}

/// Returns whether the contents are not lockrun's. Its files begin with a copy, or with zeros before there is one.
fn is_foreign(file: &[u8]) -> bool {
    let is_marked = file.starts_with(MARK) || MARK.starts_with(file);
    !is_marked && file[0] != 0
}

impl<'f> Copy<'f> {
    /// Returns the copy at this offset, if there is one.
    fn at(at: usize, file: &'f [u8]) -> Option<Self> {
        let (header, _) = file[at..].strip_prefix(MARK)?.split_at_checked(HEADER)?;
        let mut numbers = str::from_utf8(header).ok()?.split_ascii_whitespace();
        let mut number = || u64::from_str_radix(numbers.next()?, 16).ok();
        let (checksum, serial, size, length) = (number()?, number()?, number()?, number()?);
        let start = at + MARK.len();
        let end = (start + HEADER).checked_add(usize::try_from(length).ok()?)?;
        let summed = file.get(start + HEADER / 4..end)?;
        let location = CopyLocation { at, end, serial, size: usize::try_from(size).ok()? };
        // No copy could follow the greatest serial, and lockrun can never have written that many.
        (serial < u64::MAX).then_some(Copy { location, checksum, summed })
    }

    fn is_whole(&self) -> bool {
        checksum(self.summed) == self.checksum
    }

    fn record(&self) -> &'f [u8] {
        &self.summed[HEADER / 4 * 3..]
    }
}

impl CopyLocation {
    /// Writes `record` as the next copy. If that fails, the present copy still counts.
    pub(super) fn write(self, file: &File, record: &[u8]) -> io::Result<()> {
        let (next, copy) = self.next(record);
        if next.size > GREATEST_SIZE {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        let has_grown = next.size > self.size;
        if has_grown {
            file.set_len(next.size as u64)?;
        }
        file.write_all_at(&copy, next.at as u64).inspect_err(|_| {
            if self.end == 0 {
                // No other copy would count, so half a copy must not stay.
                let _ = file.set_len(0);
            }
        })?;
        if has_grown && next.at > 0 {
            // Write the record again, over the older copies, whose SIZE is smaller: if the file were cut off to that
            // size, they would seem to be the newest. The record has been written, so a failure here does not matter.
            let _ = next.write(file, record);
        }
        Ok(())
    }

    /// Returns the location and the bytes of the next copy.
    pub(super) fn next(self, record: &[u8]) -> (CopyLocation, Vec<u8>) {
        let length = MARK.len() + HEADER + record.len() + 1;
        let fits_in_front = length <= self.at || self.end == 0;
        let at = if fits_in_front { 0 } else { self.end.next_power_of_two().max(LOWEST_OFFSET) };
        let size = (at + length).next_power_of_two().max(2 * LOWEST_OFFSET).max(self.size);
        let serial = self.serial + 1;
        let mut summed = format!("{serial:016x} {size:016x} {:016x}\n", record.len()).into_bytes();
        summed.extend_from_slice(record);
        let mut copy = MARK.to_vec();
        copy.extend_from_slice(format!("{:016x} ", checksum(&summed)).as_bytes());
        copy.append(&mut summed);
        copy.push(b'\n');
        (CopyLocation { at, end: at + length, serial, size }, copy)
    }
}

/// Returns the 64-bit FNV-1a checksum. It detects incomplete copies, and need not resist an attacker.
pub(super) fn checksum(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |sum, byte| (sum ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns records of many lengths, so that the file grows and copies change their places.
    fn records() -> Vec<Vec<u8>> {
        let lengths = [40, 700, 300, 946, 947, 948, 2500, 60, 1400, 1500, 5000, 5100, 80, 9000, 30, 12_000, 12_000];
        lengths.iter().zip(b'a'..).map(|(length, letter)| vec![letter; *length]).collect()
    }

    fn newest(file: &[u8]) -> Result<(CopyLocation, Vec<u8>), Damage> {
        let copies = Copies(file.to_vec());
        copies.newest().map(|(location, record)| (location, record.to_vec()))
    }

    /// Returns the record that counts.
    fn read(file: &[u8]) -> Result<Vec<u8>, Damage> {
        newest(file).map(|(_, record)| record)
    }

    /// Returns the file with the first `written` bytes of the next copy.
    fn torn(file: &[u8], next: CopyLocation, copy: &[u8], written: usize) -> Vec<u8> {
        let mut file = file.to_vec();
        file.resize(next.size, 0);
        file[next.at..next.at + written].copy_from_slice(&copy[..written]);
        file
    }

    /// A file before a copy is written, the copy's location, the copy, and the record in it.
    type Step = (Vec<u8>, CopyLocation, Vec<u8>, Vec<u8>);

    /// Returns the steps by which the records are written to a file, one after the other.
    fn story() -> Vec<Step> {
        let mut file = Vec::new();
        let mut states = Vec::new();
        for record in records() {
            let mut repeats = true;
            while repeats {
                let (location, _) = newest(&file).expect("it is whole");
                let (next, copy) = location.next(&record);
                states.push((file.clone(), next, copy.clone(), record.clone()));
                repeats = next.size > file.len() && next.at > 0;
                file = torn(&file, next, &copy, copy.len());
            }
        }
        states
    }

    #[test]
    fn a_record_is_read_as_it_was_written() {
        let file = tempfile::tempfile().expect("a temporary file");
        assert_eq!(Copies::read(&file).expect("reads").newest(), Ok((CopyLocation::default(), &[][..])));
        for record in records() {
            let (location, _) = Copies::read(&file).expect("reads").newest().expect("it is whole");
            location.write(&file, &record).expect("writes");
            let copies = Copies::read(&file).expect("reads");
            assert_eq!(copies.newest().expect("it is whole").1, record);
        }
        let size = file.metadata().expect("it is there").len();
        assert_eq!(size, 32_768, "it grows no more than it must");
    }

    #[test]
    fn a_write_that_is_cut_short_anywhere_changes_nothing() {
        for (before, next, copy, record) in story() {
            let old = read(&before).expect("it is whole");
            for written in 0..copy.len() - 1 {
                let seen = read(&torn(&before, next, &copy, written));
                // There is no copy before the very first one, which fits into a page, and the kernel fills a page in
                // one piece.
                let is_first = before.is_empty() && written > 0;
                assert!(if is_first { seen.is_err() } else { seen == Ok(old.clone()) }, "{next:?} {written}");
            }
            assert_eq!(
                read(&torn(&before, next, &copy, copy.len() - 1)),
                Ok(record),
                "only its end of line is missing"
            );
        }
    }

    #[test]
    fn sectors_that_were_never_written_change_nothing() {
        const SECTOR: usize = 512;
        for (before, next, copy, record) in story() {
            let old = read(&before).expect("it is whole");
            let after = torn(&before, next, &copy, copy.len());
            let mut padded = before.clone();
            padded.resize(after.len(), 0);
            for at in (0..after.len()).step_by(SECTOR) {
                let mut mixed = after.clone();
                mixed[at..at + SECTOR].copy_from_slice(&padded[at..at + SECTOR]);
                let seen = read(&mixed);
                assert!(seen == Ok(old.clone()) || seen == Ok(record.clone()) || before.is_empty(), "{next:?} {at}");
            }
        }
    }

    #[test]
    fn a_file_that_was_cut_is_never_an_older_one() {
        for (before, next, copy, _) in story() {
            // Between the growth of the file and the second copy of the same record, an older copy still has the
            // smaller SIZE.
            if next.size > before.len() && next.at > 0 {
                continue;
            }
            let after = torn(&before, next, &copy, copy.len());
            for length in 1..after.len() {
                let seen = read(&after[..length]);
                assert!(matches!(seen, Err(Damage::Truncated | Damage::Torn)), "{next:?} {length}: {seen:?}");
            }
            assert_eq!(read(&after[..0]), Ok(Vec::new()));
        }
    }

    #[test]
    fn nothing_too_long_is_read_or_written() {
        let file = tempfile::tempfile().expect("a temporary file");
        assert!(CopyLocation::default().write(&file, &vec![b'x'; GREATEST_SIZE]).is_err());
        assert_eq!(file.metadata().expect("it is there").len(), 0, "nothing was written");
        CopyLocation::default().write(&file, b"record").expect("writes");
        file.set_len(1 << 40).expect("a file with a hole");
        let copies = Copies::read(&file).expect("reads");
        assert_eq!((copies.0.len(), copies.newest()), (GREATEST_SIZE + 1, Err(Damage::TooLong)));
        file.set_len(GREATEST_SIZE as u64).expect("a shorter one");
        assert_eq!(Copies::read(&file).expect("reads").newest().expect("it is whole").1, b"record");
    }

    #[test]
    fn foreign_files_are_reported() {
        for text in [&b"hello\n"[..], b"{}", b"{\"key\":\"a\"}\n", b"\xff", b"lockfile ", &vec![b'x'; 100_000]] {
            assert_eq!(read(text), Err(Damage::Foreign));
        }
        assert_eq!(read(b"\0\0x"), Err(Damage::Torn));
        assert_eq!(read(&[0; 2048]), Ok(Vec::new()));
        assert_eq!(read(b"lockrun hello\n"), Err(Damage::Torn));
        let vast = b"lockrun 0000000000000000 0000000000000000 0000000000000000 ffffffffffffffff\n";
        assert_eq!(read(vast), Err(Damage::Torn));
    }
}
