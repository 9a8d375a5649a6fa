//! The clocks of this machine as used in the records of locks: milliseconds since boot, and milliseconds of Unix time.

use std::fs::File;
use std::io;
use std::sync::OnceLock;
use std::time::{Duration, SystemTime};

use nix::sys::statfs::{PROC_SUPER_MAGIC, fstatfs};

use crate::lock::state::{Now, UNKNOWN_EPOCH, millis};
use crate::sys::clock::Moment;

/// Returns the present time.
pub(super) fn now() -> Now {
    let unix_ms = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, millis);
    Now { ms: boot_ms(Moment::now()), unix_ms }
}

/// Returns the kernel's id of this boot: the epoch of the boot clock. It is unknown in a container with an id of its
/// own, as LXC and systemd-nspawn make one: they mount another file in its place. The boot clock is the machine's even
/// there.
pub(super) fn this_boot() -> io::Result<String> {
    const PATH: &str = "/proc/sys/kernel/random/boot_id";
    let explain = |error: io::Error| {
        io::Error::new(
            error.kind(),
            format!("cannot read {PATH}, which tells this boot from others: {error}; mount /proc"),
        )
    };
    let read = || {
        let file = File::open(PATH)?;
        let is_kernels = fstatfs(&file)?.filesystem_type() == PROC_SUPER_MAGIC;
        if is_kernels { io::read_to_string(file) } else { Ok(UNKNOWN_EPOCH.to_owned()) }
    };
    Ok(read().map_err(explain)?.trim_end().to_owned())
}

/// Returns the moment `boot_ms` milliseconds after the machine booted.
pub(super) fn at_boot_ms(boot_ms: u64) -> Moment {
    Moment::from_boot(shifted(Duration::from_millis(boot_ms), clock_ahead_ns()))
}

/// Returns `moment` in milliseconds after the machine booted, which is exactly the same in all time namespaces: a time
/// that one of them records is never in the future of another.
fn boot_ms(moment: Moment) -> u64 {
    millis(shifted(moment.since_boot(), clock_ahead_ns().saturating_neg()))
}

fn shifted(time: Duration, by_ns: i64) -> Duration {
    let by = Duration::from_nanos(by_ns.unsigned_abs());
    if by_ns < 0 { time.saturating_sub(by) } else { time.saturating_add(by) }
}

/// Returns by how many nanoseconds the boot clock is ahead in this process's time namespace, see time_namespaces(7); 0
/// on a kernel without time namespaces.
fn clock_ahead_ns() -> i64 {
    static AHEAD: OnceLock<i64> = OnceLock::new();
    *AHEAD.get_or_init(|| {
        let offsets = std::fs::read_to_string("/proc/self/timens_offsets").unwrap_or_default();
        read_clock_ahead_ns(&offsets).unwrap_or_default()
    })
}

/// Parses `timens_offsets`: lines of a clock's name, seconds and nanoseconds.
fn read_clock_ahead_ns(offsets: &str) -> Option<i64> {
    let line = offsets.lines().find_map(|line| line.strip_prefix("boottime"))?;
    let (seconds, nanoseconds) = line.trim().split_once(' ')?;
    let seconds = seconds.parse::<i64>().ok()?.checked_mul(1_000_000_000)?;
    seconds.checked_add(nanoseconds.trim().parse().ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_offset_of_a_time_namespace_is_read() {
        let offsets = |boot: &str| format!("monotonic           7         0\nboottime   {boot}\n");
        assert_eq!(read_clock_ahead_ns(&offsets("         0         0")), Some(0));
        assert_eq!(read_clock_ahead_ns(&offsets("   1000000 500000000")), Some(1_000_000_500_000_000));
        assert_eq!(read_clock_ahead_ns(&offsets("       -12         0")), Some(-12_000_000_000));
        assert_eq!(read_clock_ahead_ns(""), None);
    }

    #[test]
    fn a_time_is_shifted_both_ways() {
        let millis = Duration::from_millis;
        assert_eq!(shifted(millis(5), 1_500_000), millis(5) + Duration::from_micros(1500));
        assert_eq!(shifted(shifted(millis(5), 1_500_000), -1_500_000), millis(5));
        assert_eq!(shifted(millis(5), i64::MIN), Duration::ZERO);
    }
}
