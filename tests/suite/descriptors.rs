//! A machine, or a shell, that grants next to nothing: few descriptors.

use nix::sys::resource::Resource;

use crate::support::birth::Birth;
use crate::support::holder::is_free;
use crate::support::store::on_every_store;
use crate::support::{LONG, Lockrun, Store, eventually};

// "125: lockrun itself failed": when it has too few descriptors to do its part, it does not leave a command without it,
// leaves no lock, and does not die of a fault of its own.
on_every_store!(few_descriptors_leave_nothing_behind, |store| {
    let mut statuses = Vec::new();
    for limit in 3..=16 {
        let key = format!("few-{limit}");
        // A command that does not end by itself: one that was left behind would still be there.
        let call = Lockrun::new(store).key(&key).args(["--ttl", "60s", "--max-runtime", "300ms"]);
        let call = call.command(["sleep", "600"]);
        let limits = vec![(Resource::RLIMIT_NOFILE, limit, limit)];
        let mut run = call.birth(Birth { limits, ..Birth::default() }).spawn();
        eventually(LONG, "the run has ended", || run.has_ended());
        assert_eq!(run.processes(), Vec::<i32>::new(), "left behind with {limit}");
        let output = run.wait();
        let allowed = [69, 124, 125, 126, 127];
        assert!(output.status.is_some_and(|status| allowed.contains(&status)), "limit {limit}: {output}");
        assert!(is_free(store, &key), "the lock is left with {limit}: {output}");
        statuses.push(output.status);
    }
    assert_eq!(statuses.last(), Some(&Some(124)), "{statuses:?}");
});

// "125: lockrun itself failed", "69: the store cannot be reached": COMMAND is not told of the lease that cannot be kept,
// because it does not start.
#[test]
fn a_lease_that_could_not_be_kept_starts_nothing() {
    let store = Store::redis();
    let call = Lockrun::new(&store).key("eight").args(["--ttl", "60s"]).command(["echo", "ran"]);
    let limits = vec![(Resource::RLIMIT_NOFILE, 8, 8)];
    let output = call.birth(Birth { limits, ..Birth::default() }).run();
    assert!(matches!(output.status, Some(69 | 125)), "{output}");
    output.printed("").said("lockrun: ");
    assert!(is_free(&store, "eight"));
}
