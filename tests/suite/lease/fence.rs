//! Where two runs overlap after all, because the store or the machine did what no lock survives, the fence tells them apart.

use std::fs;
use std::path::PathBuf;

use tempfile::TempDir;

use crate::support::calm::{judge, late};
use crate::support::control_group::ControlGroup;
use crate::support::failover::{cut_off_replicas, is_replicated};
use crate::support::processes::find_program;
use crate::support::store::on_every_lease_store;
use crate::support::{LONG, LeaseServer as _, Lockrun, Redis, Running, eventually, memory};

/// A command that ignores TERM. It and a child in a session of its own append their fence to a file every few milliseconds.
const WRITER: &str = "
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
fence = os.environ['LOCKRUN_FENCE'].encode() + b'\\n'
file = os.open(sys.argv[1], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
os.write(file, fence)
if os.fork() == 0:
    os.setsid()
else:
    print('ready', flush=True)
while True:
    time.sleep(0.003)
    os.write(file, fence)
";

/// What the runs write to. One that compares fences would reject each write that comes late: after one with a greater fence.
struct Resource {
    file: PathBuf,
    _directory: TempDir,
}

impl Resource {
    fn new() -> Self {
        let directory = memory::directory();
        Self { file: directory.path().join("writes"), _directory: directory }
    }

    /// Returns this call with a writer as its command.
    fn written_by(&self, call: Lockrun) -> Lockrun {
        let python = find_program("python3");
        call.command([python.as_os_str(), "-c".as_ref(), WRITER.as_ref(), self.file.as_os_str()])
    }

    /// Checks that the second run has the greater fence. Returns how many writes of the first came late.
    #[track_caller]
    fn late_writes(&self) -> usize {
        let text = fs::read_to_string(&self.file).expect("both have written");
        // A line that is being written has no end yet.
        let complete = text.rfind('\n').map_or("", |end| &text[..end]);
        let writes: Vec<u64> = complete.lines().map(|line| line.parse().expect("a fence")).collect();
        let first = writes[0];
        let second = writes.iter().position(|fence| *fence != first).expect("both have written");
        assert!(writes[second] > first, "the fence went from {first} to {}", writes[second]);
        writes[second..].iter().filter(|fence| **fence == first).count()
    }

    /// Waits until a write of the first run comes late.
    #[track_caller]
    fn is_written_late(&self, old: &mut Running) {
        eventually(LONG, "a write comes late", || self.late_writes() > 0 || old.has_ended());
        if self.late_writes() == 0 {
            late(&format!("the old run has ended too early: {}", old.stderr()));
        }
    }
}

/// Waits until the run has noticed that it has no lock any more, and nothing of it lives.
#[track_caller]
fn ends_as_lost(mut old: Running) {
    eventually(LONG, "the old run and everything of it have ended", || old.has_ended() && old.processes().is_empty());
    old.wait().exited(79).said("lost");
}

// "The store forgets": the next run starts beside the first, which notices that at its next renewal.
on_every_lease_store!(the_store_is_wiped, |store| {
    let resource = Resource::new();
    let call = Lockrun::new(store).key("fence").args(["--ttl", "30s", "--renew-every", "8s", "--kill-after", "1s"]);
    let mut old = resource.written_by(call.clone()).spawn();
    old.wait_for_line("ready");
    store.server().forget_everything();
    let mut new = resource.written_by(call).spawn();
    new.wait_for_line("ready");
    resource.is_written_late(&mut old);
    ends_as_lost(old);
    assert!(!new.has_ended(), "the old run took the new one's lock along");
    new.kill_everything();
    println!("{} writes came late", resource.late_writes());
});

// "Two primaries", of which one is a replica that was promoted before it received the lock: each run has a lock, on a server of its own.
#[test]
fn a_replica_without_the_lock_is_promoted() {
    judge(|| {
        let primary = Redis::start();
        let replica = Redis::with_options(&["--replicaof", "127.0.0.1", &primary.port().to_string()]);
        is_replicated(&primary, 1);
        cut_off_replicas(&primary);
        let resource = Resource::new();
        let at =
            |server: &Redis| resource.written_by(Lockrun::at(&server.url()).key("fence").args(["--ttl", "5s"])).spawn();
        let mut old = at(&primary);
        old.wait_for_line("ready");
        replica.ask(&["REPLICAOF", "NO", "ONE"]);
        let mut new = at(&replica);
        new.wait_for_line("ready");
        resource.is_written_late(&mut old);
        primary.kill();
        ends_as_lost(old);
        new.kill_everything();
    });
}

// "The whole machine is paused": everything that could stop the command is paused with it. When that goes on, the lock is another run's, and
// the command is killed at once. What it still writes until then comes late.
on_every_lease_store!(the_machine_is_paused, |store| {
    let resource = Resource::new();
    let machine = ControlGroup::need("machine");
    let call = Lockrun::new(store).key("fence").args(["--ttl", "3s"]);
    let mut old = resource.written_by(call.clone()).in_shell(&machine.entering()).spawn_alone();
    old.wait_for_line("ready");
    machine.freeze();
    let mut new = resource.written_by(call.args(["--wait"])).spawn();
    new.wait_for_line("ready");
    machine.thaw();
    ends_as_lost(old);
    new.kill_everything();
    println!("{} writes came late", resource.late_writes());
});
