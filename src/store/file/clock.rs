//! The clocks of this machine as used in the records of locks: milliseconds since boot, and milliseconds of Unix time.

use std::io;
use std::sync::OnceLock;
use std::time::{Duration, SystemTime};

use crate::lock::state::{Now, millis};
use crate::sys::clock::Moment;

/// Returns the present time.
pub(super) fn now() -> Now {
    let unix_ms = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, millis);
    Now { ms: boot_ms(Moment::now()), unix_ms }
}

/// Returns the kernel's id of this boot: the epoch of the boot clock.
pub(super) fn this_boot() -> io::Result<String> {
    const PATH: &str = "/proc/sys/kernel/random/boot_id";
    let explain = |error: io::Error| {
        io::Error::new(
            error.kind(),
            format!("cannot read {PATH}, which tells this boot from others: {error}; mount /proc"),
        )
    };
    Ok(std::fs::read_to_string(PATH).map_err(explain)?.trim_end().to_owned())
}

/// Returns the moment `boot_ms` milliseconds after the machine booted.
pub(super) fn at_boot_ms(boot_ms: u64) -> Moment {
    Moment::from_boot(Duration::from_millis(boot_ms.saturating_add_signed(clock_ahead_ms())))
}

/// Returns `moment` in milliseconds after the machine booted, which is the same in all time namespaces.
fn boot_ms(moment: Moment) -> u64 {
    millis(moment.since_boot()).saturating_add_signed(clock_ahead_ms().saturating_neg())
}

/// Returns by how many milliseconds the boot clock is ahead in this process's time namespace, see time_namespaces(7); 0 on a kernel
/// without time namespaces.
fn clock_ahead_ms() -> i64 {
    static AHEAD: OnceLock<i64> = OnceLock::new();
    *AHEAD.get_or_init(|| {
        let offsets = std::fs::read_to_string("/proc/self/timens_offsets").unwrap_or_default();
        read_clock_ahead_ms(&offsets).unwrap_or_default()
    })
}

/// Parses `timens_offsets`: lines of a clock's name, seconds and nanoseconds.
fn read_clock_ahead_ms(offsets: &str) -> Option<i64> {
    let line = offsets.lines().find_map(|line| line.strip_prefix("boottime"))?;
    let (seconds, nanoseconds) = line.trim().split_once(' ')?;
    let milliseconds = nanoseconds.trim().parse::<i64>().ok()? / 1_000_000;
    seconds.parse::<i64>().ok()?.checked_mul(1000)?.checked_add(milliseconds)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_offset_of_a_time_namespace_is_read() {
        let offsets = |boot: &str| format!("monotonic           7         0\nboottime   {boot}\n");
        assert_eq!(read_clock_ahead_ms(&offsets("         0         0")), Some(0));
        assert_eq!(read_clock_ahead_ms(&offsets("   1000000 500000000")), Some(1_000_000_500));
        assert_eq!(read_clock_ahead_ms(&offsets("       -12         0")), Some(-12_000));
        assert_eq!(read_clock_ahead_ms(""), None);
    }
}
