//! Free ports for the tests' servers.

use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::net::{Ipv4Addr, TcpListener};
use std::ops::Range;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// Below the ports that Linux gives outgoing connections by default (ip(7), `ip_local_port_range`). On one of those a
/// killed server may not start again: it fails to bind its port while any connection of the machine has it.
const RANGE: Range<u16> = 10_000..32_000;

/// Returns a port of the loopback interface on which no program listens, and which it has not returned for a long time.
pub(crate) fn free_port() -> u16 {
    // Several suites can run at once: each begins elsewhere.
    static NEXT: LazyLock<AtomicU64> = LazyLock::new(|| AtomicU64::new(RandomState::new().build_hasher().finish()));
    let count = u64::from(RANGE.end - RANGE.start);
    let mut ports = (0..count).map(|_| {
        let turn = NEXT.fetch_add(1, Ordering::Relaxed) % count;
        RANGE.start + u16::try_from(turn).expect("less than the count")
    });
    ports.find(|&port| TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok()).expect("a free port")
}
