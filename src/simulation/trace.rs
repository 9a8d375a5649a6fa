//! The timeline of a simulation: always its digest, its lines only on demand.

use std::fmt::Write as _;

use super::world::{Nanos, SECOND};

/// What has happened so far.
pub struct Trace {
    /// A digest of all lines, always the same for a seed.
    pub digest: u64,
    pub lines: Vec<String>,
    records: bool,
    buffer: String,
}

impl Trace {
    pub fn new(records: bool) -> Self {
        Trace { digest: 0xcbf2_9ce4_8422_2325, lines: Vec::new(), records, buffer: String::new() }
    }

    /// Records what happened at `now`.
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
