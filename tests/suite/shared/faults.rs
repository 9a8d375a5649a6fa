//! Readers and writers that are killed, stopped or cut off.

use std::fs;
use std::time::Duration;

use nix::sys::signal::Signal;

use crate::support::calm::in_time;
use crate::support::processes::send;
use crate::support::proxy::Mode;
use crate::support::queue::now;
use crate::support::readers::{READ, SHARED, would_get};
use crate::support::store::{on_every_lease_store, on_every_store};
use crate::support::{Holder, LONG, Lockrun, Queue, Store, eventually, lock_file};

/// The place of a waiter that falls silent, and for how long it may keep the lock unused, with the time that a busy
/// machine needs to start programs.
const SHORT: [&str; 2] = ["--ttl", "4s"];
const UNUSED: Duration = Duration::from_secs(4 + 1 + 2);

// "Killed readers are treated like any holder": the others stay, and a writer gets the lock when the last of them is
// gone.
on_every_store!(a_killed_reader_frees_its_share, |store| {
    let call = Lockrun::new(store).key("killed").args(SHARED).args(["--ttl", "3s"]);
    let (mut killed, other) = (Holder::with(&call, &[]), Holder::with(&call, &[]));
    killed.run().kill_everything();
    assert!(!would_get(store, "killed", &[]), "the other one holds it");
    other.end();
    eventually(LONG, "it is free", || would_get(store, "killed", &[]));
});

// "The lock passes to the command": a reader whose lockrun is killed holds its share as long as its command lives.
#[test]
fn a_reader_without_lockrun_holds_its_share() {
    let store = Store::file();
    let mut reader = Holder::with(&Lockrun::new(&store).key("orphan").args(SHARED), &[]);
    reader.run().signal(Signal::SIGKILL);
    eventually(LONG, "lockrun is dead", || reader.run().has_ended());
    let command = reader.run().command();
    assert!(!would_get(&store, "orphan", &[]) && would_get(&store, "orphan", SHARED));
    send(command, Signal::SIGKILL);
    eventually(LONG, "it is free", || would_get(&store, "orphan", &[]));
}

// The kernel keeps readers and writers apart even if the record is lost.
#[test]
fn a_lost_record_lets_no_writer_in() {
    let store = Store::file();
    let reader = Holder::with(&Lockrun::new(&store).key("lost").args(SHARED), &[]);
    fs::write(lock_file::path(&store, "lost"), "").expect("it is emptied");
    assert!(!would_get(&store, "lost", &[]), "a reader holds it");
    assert!(would_get(&store, "lost", SHARED));
    reader.end();
    let writer = Holder::new(&store, "lost");
    fs::write(lock_file::path(&store, "lost"), "").expect("it is emptied");
    assert!(!would_get(&store, "lost", SHARED), "a writer holds it");
    writer.end();
}

// "A dead waiter costs what a dead holder costs", and so does one that is stopped: a writer that is first keeps the
// readers behind it from sharing the lock with its holders for one lease.
on_every_lease_store!(a_silent_writer_does_not_keep_readers_waiting, |store| {
    for kill in [false, true] {
        let store = &store.another();
        let held = Holder::with(&Lockrun::new(store).key("silent").args(SHARED), &[]);
        let mut queue = Queue::new(store, "silent").with(&SHORT);
        queue.join(1);
        let mut queue = queue.with(SHARED).doing(READ);
        queue.join(2);
        queue.settles();
        if kill {
            queue.kill(0);
        } else {
            queue.stop(0..1);
        }
        let silent_at = now();
        eventually(LONG, "the readers run", || queue.begun().len() == 2);
        in_time(now().saturating_sub(silent_at), UNUSED, "the readers were kept waiting");
        queue.signal_all(Signal::SIGCONT);
        held.end();
        drop(queue.all_end());
    }
});

// "A cut-off reader is treated like any holder": its command is dead before a writer gets the lock.
on_every_lease_store!(a_reader_that_is_cut_off_ends_before_a_writer_begins, |store| {
    let proxy = store.proxy();
    let cut = Holder::with(&Lockrun::at(&proxy.url()).key("cut").args(SHARED).args(["--ttl", "3s"]), &[]);
    let other = Holder::with(&Lockrun::new(store).key("cut").args(SHARED), &[]);
    proxy.set(Mode::Swallow);
    other.end();
    let mut writer = Lockrun::new(store).key("cut").args(["--wait", "20s"]).sh("echo ready").spawn();
    writer.wait_for_line("ready");
    let output = cut.wait();
    assert_eq!(output.status, Some(79), "{output}");
    writer.wait().exited(0);
});
