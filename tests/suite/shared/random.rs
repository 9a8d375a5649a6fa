//! Readers and writers at random.

use crate::support::Queue;
use crate::support::readers::{SHARED, WORK, judge};
use crate::support::store::on_every_store;

/// Returns the number of readers; `SUITE_READERS` sets another. There is a writer for every ten, and two more.
fn readers() -> usize {
    std::env::var("SUITE_READERS").ok().map_or(30, |asked| asked.parse().expect("SUITE_READERS is a number"))
}

// "Many readers or one writer": a writer runs alone, readers run beside readers; all run.
on_every_store!(readers_and_writers_at_random, |store| {
    let readers = readers();
    let writers = readers.div_ceil(10) + 2;
    let queue = Queue::new(store, "random");
    let mut runs = Vec::new();
    for number in 0..readers + writers {
        // Spread evenly, and all at once.
        let is_writer = number % (readers + writers).div_ceil(writers) == 0;
        let (tag, mode): (_, &[&str]) =
            if is_writer { (format!("w{number}"), &[]) } else { (format!("r{number}"), SHARED) };
        let call = queue.newcomer_doing(&tag, mode, WORK).args(["--wait", "--ttl", "10m"]);
        runs.push(call.spawn());
    }
    let total = runs.len();
    for run in runs {
        run.wait().exited(0).silent();
    }
    let written = queue.written();
    let most = judge(&written, &[]);
    assert_eq!(queue.begun().len(), total, "{written}");
    assert!(most > 1, "no two readers at once: {written}");
});
