//! Who may share a lock, and when.

use crate::support::hand::status;
use crate::support::readers::{SHARED, join_reader, read_beside, would_get};
use crate::support::slots::Slot;
use crate::support::store::on_every_store;
use crate::support::{Holder, Lockrun, Queue};

fn reader(store: &crate::support::Store, key: &str) -> Holder {
    Holder::with(&Lockrun::new(store).key(key).args(SHARED), &[])
}

// "Beside other shared holders, never beside an exclusive one."
on_every_store!(readers_share_and_writers_do_not, |store| {
    let readers = [(); 3].map(|()| reader(store, "k"));
    assert!(would_get(store, "k", SHARED));
    assert!(
        !would_get(store, "k", &["-x"]) && !would_get(store, "k", &[]) && !would_get(store, "k", &["--slots", "9"])
    );
    for held in readers {
        assert!(!would_get(store, "k", &[]));
        held.end();
    }
    let writer = Holder::with(&Lockrun::new(store).key("k").arg("-e"), &[]);
    assert!(!would_get(store, "k", SHARED) && !would_get(store, "k", &[]));
    writer.end();
    let slot = Slot::take(&Lockrun::new(store).key("k").args(["--slots", "3"]));
    assert!(!would_get(store, "k", SHARED) && would_get(store, "k", &["--slots", "3"]));
    slot.end();
    assert!(would_get(store, "k", SHARED));
});

// "A reader who comes after a waiting writer waits behind it."
on_every_store!(a_waiting_writer_is_not_overtaken, |store| {
    let held = reader(store, "turn");
    let mut queue = Queue::new(store, "turn");
    queue.join(1);
    assert!(!would_get(store, "turn", SHARED), "a writer waits");
    let mut queue = join_reader(store, queue);
    queue.join(1);
    held.end();
    let written = queue.all_end();
    let begun = queue.begun();
    assert_eq!(begun, ["0", "1", "2"], "{written}");
});

// "Readers who stand next to each other start together."
on_every_store!(readers_next_to_each_other_start_together, |store| {
    let writer = Holder::new(store, "together");
    let mut queue = Queue::new(store, "together").with(SHARED).doing(&read_beside(4));
    queue.join(4);
    let mut queue = queue.by(&store.url()).doing("");
    queue.join(1);
    let mut queue = join_reader(store, queue);
    writer.end();
    // Each of the first four ends only when all of them have begun.
    let written = queue.all_end();
    let begun = queue.begun();
    assert_eq!((&begun[4], &begun[5]), (&"4".to_owned(), &"5".to_owned()), "{written}");
    queue.nothing_is_left();
});

// "`status` shows who holds it shared."
on_every_store!(status_shows_who_shares, |store| {
    let held = [reader(store, "seen"), reader(store, "seen")];
    let seen = status(store, "seen");
    let holders = seen["holders"].as_array().expect("an array");
    assert_eq!(holders.len(), 2, "{seen}");
    assert!(holders.iter().all(|holder| holder["shared"] == true && holder["slot"].is_null()), "{seen}");
    let table = Lockrun::other("status", store).run().exited(0).stdout();
    assert_eq!(table.matches(" shared ").count(), 2, "{table}");
    for reader in held {
        reader.end();
    }
    let _writer = Holder::new(store, "seen");
    assert_eq!(status(store, "seen")["holders"][0]["shared"], false);
});

// "A run inside COMMAND that would wait for a lock around it is refused": a reader inside a writer, and the other way
// around. A reader inside another shares the lock, unless a writer waits: that one waits for the outer reader.
on_every_store!(a_run_does_not_wait_for_itself, |store| {
    let url = store.url();
    let inner = |options: &[&str]| {
        let words = [&[crate::support::lockrun::PROGRAM, "--store", &url, "--key=n", "-w", "5"], options].concat();
        words.into_iter().chain(["echo", "ran"]).map(str::to_owned).collect::<Vec<_>>()
    };
    let outer = |options: &[&str]| Lockrun::new(store).key("n").args(options);
    outer(SHARED).command(inner(SHARED)).run().exited(0).printed("ran\n");
    outer(SHARED).command(inner(&[])).run().exited(75).said("refusing to wait").printed("");
    outer(&[]).command(inner(SHARED)).run().exited(75).said("refusing to wait").printed("");
    let output = outer(SHARED)
        .command(inner(&["--slots", "3"]))
        .run()
        .exited(75)
        .said("it is held by a run that this one is part of");
    output.printed("");
    let go = "echo ready; read line || :; exec \"$@\"";
    let words = ["sh", "-c", go, "sh"].map(str::to_owned).into_iter().chain(inner(SHARED));
    let mut run = outer(SHARED).command(words).with_open_input();
    run.run.wait_for_line("ready");
    let mut queue = Queue::new(store, "n");
    queue.join(1);
    run.close().wait().exited(75).said("refusing to wait");
    drop(queue.all_end());
});
