//! What becomes of a value when its command has ended.

use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use tempfile::TempDir;

use crate::support::holder::write_script;

use crate::support::sequence::{Reserver, fail, next, peek, reserve, reserved};
use crate::support::store::on_every_store;
use crate::support::{LONG, Lockrun, eventually};

// "1 starts, 2 starts, 2 succeeds, 1 succeeds; next is 3."
on_every_store!(ends_out_of_order, |store| {
    let call = reserve(store, "1");
    let (one, two) = (Reserver::begin(&call), Reserver::begin(&call));
    assert_eq!((one.value.as_str(), two.value.as_str()), ("1", "2"));
    two.end(0);
    assert_eq!(peek(&call), "3");
    one.end(0);
    assert_eq!(next(&call), "3");
});

// "COMMAND ends with 0: the value becomes the last one": in order, too, and not before.
on_every_store!(ends_in_order, |store| {
    let call = reserve(store, "1");
    let one = Reserver::begin(&call);
    let two = Reserver::begin(&call.clone().args(["--on-failure", "free"]));
    one.end(0);
    assert_eq!(peek(&call), "3");
    two.end(7);
    assert_eq!(next(&call), "2");
    assert_eq!(next(&call), "3");
});

// "1 fails, nothing else: next is 1 again after its lease", and not before.
on_every_store!(a_failed_value_comes_up_again_after_its_lease, |store| {
    let began = Instant::now();
    let call = reserve(store, "1").args(["--ttl", "2s"]);
    assert_eq!(fail(&call), "1");
    // The first run afterwards gets it, without any help.
    eventually(LONG, "its lease has run out", || reserved(store).is_empty());
    assert!(began.elapsed() >= Duration::from_secs(2), "after {:?}", began.elapsed());
    assert_eq!(next(&call), "1");
    assert_eq!(next(&call), "2");
});

// "Otherwise the last value stays, and the reservation stays until its ttl runs out": also if a signal ended the
// command.
on_every_store!(a_failed_value_stays_reserved, |store| {
    let call = reserve(store, "1").args(["--ttl", "1h"]);
    assert_eq!(fail(&call), "1");
    let killed = call.clone().sh("kill -KILL $$").run();
    killed.died_of(Signal::SIGKILL).silent();
    let mut ended = Reserver::begin(&call.clone().args(["--on-failure", "keep"]));
    ended.run().signal(Signal::SIGTERM);
    eventually(LONG, "it has ended", || ended.run().has_ended());
    let mut kept = reserved(store);
    kept.sort();
    assert_eq!(kept, ["1", "2", "3"]);
    assert_eq!(next(&call), "4");
    assert_eq!(next(&call), "5");
});

// "`--on-failure free`: freed at once."
on_every_store!(a_failed_value_can_be_freed_at_once, |store| {
    let call = reserve(store, "1").args(["--ttl", "1h", "--on-failure", "free"]);
    assert_eq!(fail(&call), "1");
    call.clone().sh("kill -KILL $$").run().died_of(Signal::SIGKILL);
    assert_eq!(reserved(store), Vec::<String>::new());
    assert_eq!(next(&call), "1");
});

// "A value that succeeded never comes up again": not even when an earlier value is used after it, by a run that began
// later.
on_every_store!(the_sequence_never_goes_back, |store| {
    let directory = TempDir::new().expect("a temporary directory");
    let program = write_script(directory.path(), "next", "#!/bin/sh\necho $(($1 + 1))\n");
    for (key, how) in [("stepped", ["--step", "1"]), ("called", ["--next", &program])] {
        let call = Lockrun::bare().args(["reserve", "--store", &store.url(), "--key", key, "--from", "1"]);
        goes_forward(&call.args(how).args(["--on-failure", "free"]));
    }
});

#[track_caller]
fn goes_forward(call: &Lockrun) {
    assert_eq!(next(call), "1");
    let (two, three) = (Reserver::begin(call), Reserver::begin(call));
    assert_eq!(fail_with(two), "2");
    let again = Reserver::begin(call);
    assert_eq!((three.value.as_str(), again.value.as_str()), ("3", "2"));
    assert_eq!(three.end(0).status, Some(0));
    assert_eq!(again.end(0).status, Some(0));
    assert_eq!(next(call), "4");
}

fn fail_with(run: Reserver) -> String {
    let value = run.value.clone();
    run.end(7);
    value
}

// "126, 127: COMMAND cannot be executed, is not found": nothing was done with the value, which is free at once.
on_every_store!(a_command_that_cannot_be_run_uses_no_value, |store| {
    let call = reserve(store, "1").args(["--ttl", "1h"]);
    call.clone().command(["/no/such/program"]).run().exited(127).said("not found");
    let text = tempfile::NamedTempFile::new().expect("a file");
    let path = text.path().to_str().expect("a plain path");
    call.clone().command([path]).run().exited(126).said(path);
    assert_eq!(reserved(store), Vec::<String>::new());
    assert_eq!(next(&call), "1");
});

// "`--max-runtime DURATION`: then TERM, KILL, exit 124": such a command has failed, whatever its exit status.
on_every_store!(a_command_that_took_too_long_has_failed, |store| {
    let call = reserve(store, "1").args(["--ttl", "1h"]);
    // Long enough for a shell to set its trap, even on a busy machine.
    let bounded = call.clone().args(["--max-runtime", "1.5s"]);
    bounded.clone().command(["sleep", "600"]).run().exited(124).said("--max-runtime");
    assert_eq!(reserved(store), ["1"]);
    bounded
        .sh("exec 2>/dev/null; trap 'exit 0' TERM; while :; do sleep 0.01; done")
        .run()
        .exited(124)
        .said("--max-runtime");
    assert_eq!(reserved(store).len(), 2);
    assert_eq!(next(&call), "3");
});
