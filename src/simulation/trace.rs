//! The timeline of a simulation: its digest always, its lines only when they are wanted.

use std::fmt::Write as _;

use super::world::{Nanos, SECOND};

/// What has happened.
pub struct Trace {
    /// A digest of all lines: the same seed has the same.
    pub digest: u64,
    pub lines: Vec<String>,
    records: bool,
    buffer: String,
}

impl Trace {
    pub fn new(records: bool) -> Self {
        Trace { digest: 0xcbf2_9ce4_8422_2325, lines: Vec::new(), records, buffer: String::new() }
    }

    /// Notes what has happened at `now`.
    pub fn note(&mut self, now: Nanos, what: impl FnOnce() -> String) {
        self.buffer.clear();
        let _ = write!(self.buffer, "{:>4}.{:09} {}", now / SECOND, now % SECOND, what());
        for byte in self.buffer.bytes() {
            self.digest = (self.digest ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
        if self.records {
            self.lines.push(self.buffer.clone());
        }
    }
}
