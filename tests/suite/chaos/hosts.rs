//! The hosts of the workers: each has a network of its own before the store, and was started at another time.

use std::io::{self, Write};

use super::subject::Subject;
use crate::support::Lockrun;
use crate::support::proxy::{Mode, Proxy};

/// By how many seconds the boot clock of each host is ahead.
const AHEAD: [u32; 3] = [0, 3_600, 100_000_000];

/// One of them.
pub(super) struct Host {
    /// Through these it reaches the store, or those that know its primary; none where its network is left alone.
    proxies: Vec<Proxy>,
    url: String,
    /// A shell script that executes its arguments by the clock of this host, if that is another one.
    clock: Option<String>,
}

impl Host {
    pub(super) fn new(proxies: Vec<Proxy>, url: String) -> Self {
        Self { proxies, url, clock: None }
    }

    pub(super) fn url(&self) -> String {
        self.url.clone()
    }

    pub(super) fn clock(&self) -> Option<String> {
        self.clock.clone()
    }

    pub(super) fn has_network(&self) -> bool {
        !self.proxies.is_empty()
    }

    /// Changes what happens to its traffic.
    pub(super) fn disturb(&self, mode: Mode) {
        self.proxies.iter().for_each(|proxy| proxy.set(mode));
    }
}

/// The hosts from which this is used.
///
/// Their wall clocks are not set: there is one for the whole machine, no namespace has one of its own, and the program
/// is static, so that nothing can be put between it and the kernel's clock.
pub(super) fn hosts(subject: &Subject<'_>) -> Vec<Host> {
    AHEAD.iter().map(|&ahead| Host { clock: clock_ahead(ahead), ..subject.host() }).collect()
}

/// See `Host::clock`. Says why, where the machine does not let us.
fn clock_ahead(seconds: u32) -> Option<String> {
    if seconds == 0 {
        return None;
    }
    let script = format!("exec unshare -T --boottime {seconds} \"$@\"");
    // An older kernel lets only a child enter, which would part lockrun and its guardian.
    let probe = Lockrun::bare().command(["sh", "-c", &script, "sh", "cat", "/proc/uptime"]).alone();
    let uptime = probe.stdout().split('.').next().and_then(|seconds| seconds.parse::<u32>().ok());
    if uptime.is_some_and(|uptime| uptime >= seconds) {
        return Some(script);
    }
    // Not by a macro, whose output the test runner keeps to itself when the test succeeds.
    let _ = writeln!(io::stderr(), "all hosts have one boot clock: another one needs root and Linux 6.3; {probe}");
    None
}
