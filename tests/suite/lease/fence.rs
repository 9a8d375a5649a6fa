//! Where two runs overlap after all, because the store or the machine did what no lock survives, the fence tells them
//! apart.

use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::support::calm::{in_time, judge, late};
use crate::support::control_group::ControlGroup;
use crate::support::failover::{cut_off_replicas, is_replicated};
use crate::support::holder::is_free;
use crate::support::processes::find_program;
use crate::support::store::on_every_lease_store;
use crate::support::{LONG, LeaseServer as _, Lockrun, Redis, Running, eventually, memory};

/// A command that ignores TERM, and prints its fence. It and a child in a session of its own append the fence to a file
/// every few milliseconds.
const WRITER: &str = "
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
fence = os.environ['LOCKRUN_FENCE']
file = os.open(sys.argv[1], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
def write():
    os.write(file, fence.encode() + b'\\n')
write()
if os.fork() == 0:
    os.setsid()
else:
    print(fence, flush=True)
while True:
    time.sleep(0.003)
    write()
";

/// The file that the runs append to. A resource that checks fences would reject a write that follows one with a greater
/// fence.
struct Resource {
    file: PathBuf,
    _directory: TempDir,
}

/// A run whose command writes to it.
struct Writer {
    run: Running,
    fence: u64,
}

impl Resource {
    fn new() -> Self {
        let directory = memory::directory();
        Self { file: directory.path().join("writes"), _directory: directory }
    }

    /// Returns this call with a writer as its command.
    fn call(&self, call: Lockrun) -> Lockrun {
        let python = find_program("python3");
        call.command([python.as_os_str(), "-c".as_ref(), WRITER.as_ref(), self.file.as_os_str()])
    }

    /// Returns how many writes of the old run follow a write of the new one.
    fn late_writes(&self, old: &Writer, new: &Writer) -> usize {
        let text = fs::read_to_string(&self.file).expect("both have written");
        let (old, new) = (old.fence.to_string(), new.fence.to_string());
        text.lines().skip_while(|line| *line != new).filter(|line| *line == old).count()
    }

    /// Checks that the fence tells the runs apart, and waits for a write of the old one that comes late.
    #[track_caller]
    fn is_written_late(&self, old: &mut Writer, new: &Writer) {
        assert!(new.fence > old.fence, "the fence went from {} to {}", old.fence, new.fence);
        eventually(LONG, "a write comes late", || self.late_writes(old, new) > 0 || old.run.has_ended());
        if self.late_writes(old, new) == 0 {
            late(&format!("the old run has ended too early: {}", old.run.stderr()));
        }
    }
}

impl Writer {
    /// Waits until the run's command has written.
    #[track_caller]
    fn of(mut run: Running) -> Self {
        run.wait_for_stdout("\n");
        let fence = run.stdout().trim_end().parse().expect("a fence");
        Self { run, fence }
    }

    /// Waits until the run has ended because it has lost its lock, and nothing of it lives.
    #[track_caller]
    fn ends_as_lost(mut self) {
        eventually(LONG, "the run has ended", || self.run.has_ended() && self.run.processes().is_empty());
        self.run.wait().exited(79).said("lost");
    }
}

// "The store forgets": the next run starts beside the first, which notices that at its next renewal.
on_every_lease_store!(the_store_is_wiped, |store| {
    let resource = Resource::new();
    let call = Lockrun::new(store).key("fence").args(["--ttl", "30s", "--renew-every", "8s", "--kill-after", "1s"]);
    let call = resource.call(call);
    let mut old = Writer::of(call.spawn());
    store.server().forget_everything();
    let mut new = Writer::of(call.spawn());
    resource.is_written_late(&mut old, &new);
    println!("{} writes have come late so far", resource.late_writes(&old, &new));
    old.ends_as_lost();
    assert!(!is_free(store, "fence"), "the old run took the lock of the new one along");
    new.run.kill_everything();
});

// "Two primaries", of which one is a replica that was promoted before it received the lock: each run has a lock, on a
// server of its own.
#[test]
fn a_replica_without_the_lock_is_promoted() {
    judge(|| {
        let primary = Redis::start();
        let replica = Redis::with_options(&["--replicaof", "127.0.0.1", &primary.port().to_string()]);
        is_replicated(&primary, 1);
        cut_off_replicas(&primary);
        let resource = Resource::new();
        let call = |server: &Redis| resource.call(Lockrun::at(&server.url()).key("fence").args(["--ttl", "5s"]));
        let mut old = Writer::of(call(&primary).spawn());
        replica.ask(&["REPLICAOF", "NO", "ONE"]);
        let mut new = Writer::of(call(&replica).spawn());
        resource.is_written_late(&mut old, &new);
        primary.kill();
        old.ends_as_lost();
        new.run.kill_everything();
    });
}

// "The whole machine is paused": the lock passes on, and when the machine resumes, lockrun kills at once what still
// lives. A control group stands for the machine. The kernel can still kill what is frozen in it: the guardian, when its
// time is up, and so the command; but not the command's child.
on_every_lease_store!(the_machine_is_paused, |store| {
    let resource = Resource::new();
    let machine = ControlGroup::need("machine");
    let call =
        Lockrun::new(store).key("fence").args(["--ttl", "4s", "--renew-every", "500ms", "--store-timeout", "1s"]);
    let call = resource.call(call.args(["--kill-after", "2s", "--wait"]));
    let old = Writer::of(call.in_shell(&machine.entering()).spawn_alone());
    machine.freeze();
    let mut new = Writer::of(call.spawn());
    assert!(new.fence > old.fence, "the fence went from {} to {}", old.fence, new.fence);
    assert_ne!(old.run.processes(), Vec::<i32>::new(), "it is frozen, not dead");
    let thawed = Instant::now();
    machine.thaw();
    old.ends_as_lost();
    in_time(thawed.elapsed(), Duration::from_secs(1), "killed at once");
    new.run.kill_everything();
});
