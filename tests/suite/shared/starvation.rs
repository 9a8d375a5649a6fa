//! Readers that keep coming do not keep a writer from the lock.

use crate::support::beside::beside;
use crate::support::store::on_every_store;
use crate::support::{LONG, Lockrun, Queue, eventually};

/// How many readers come at once, again and again.
const READERS: usize = 4;

// "Readers cannot starve a writer": it gets the lock when the readers that held it before it came have ended.
on_every_store!(readers_that_come_for_ever_do_not_starve_a_writer, |store| {
    let mut queue = Queue::new(store, "flood");
    let reader = |number| {
        let call = queue.newcomer(&format!("r{number}"), &["--shared", "--wait"]);
        move || drop(call.run().exited(0).silent())
    };
    beside((0..READERS).map(reader).collect(), || {
        let flood = || queue.begun().len() > 4 * READERS;
        eventually(LONG, "the readers are coming", flood);
        let before = queue.begun().len();
        let came = Lockrun::new(store).key("flood").arg("--wait").sh("echo the writer").run();
        let after = queue.begun().len();
        came.exited(0).printed("the writer\n");
        // Some begin while the program of the writer starts, and after it has ended.
        let overtook = after - before;
        assert!(overtook <= 10 * READERS, "{overtook} readers went before the writer");
    });
    drop(queue.all_end());
});
