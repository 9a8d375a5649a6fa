//! Free ports for the tests' servers.

use std::net::{Ipv4Addr, TcpListener};
use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering};

/// Below the ports that Linux gives outgoing connections by default (ip(7), `ip_local_port_range`). On one of those a killed server
/// may not start again: it fails to bind its port while any connection of the machine has it.
const RANGE: Range<u16> = 10_000..32_000;

/// Returns a port of the loopback interface on which no program listens, and which it has not returned for a long time.
pub(crate) fn free_port() -> u16 {
    static TAKEN: AtomicU32 = AtomicU32::new(0);
    let count = u32::from(RANGE.end - RANGE.start);
    // Several suites can run at once: each begins elsewhere.
    let first = std::process::id().wrapping_mul(613);
    let mut ports = (0..count).map(|_| {
        let turn = first.wrapping_add(TAKEN.fetch_add(1, Ordering::Relaxed)) % count;
        RANGE.start + u16::try_from(turn).expect("less than the count")
    });
    ports.find(|&port| TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok()).expect("a free port")
}
