//! What a run leaves behind, and what its command finds in its environment.

use std::collections::BTreeSet;
use std::fs;

use nix::sys::signal::Signal;

use crate::support::store::{on_every_lease_store, on_every_store};
use crate::support::{Lockrun, Store};

fn call(store: &Store) -> Lockrun {
    Lockrun::new(store).key("clean")
}

/// Returns the value that a run's command saw in this variable.
#[track_caller]
fn seen(store: &Store, name: &str) -> String {
    let output = call(store).sh(&format!("printf %s \"${name}\"")).run();
    output.exited(0).silent().stdout()
}

// "After a clean run a store holds for that key nothing but its fence and its last run", however the run ended.
on_every_lease_store!(only_the_fence_and_the_last_run_stay, |store| {
    let left = || store.server().left("clean", true);
    for (script, status) in [(":", Some(0)), ("exit 3", Some(3)), ("kill -KILL $$", None)] {
        let output = call(store).sh(script).run();
        assert_eq!(output.status, status, "{output}");
        assert_eq!(left(), Vec::<String>::new(), "after {script:?}");
    }
    call(store).command(["/etc"]).run().exited(126);
    call(store).command(["no-such-command"]).run().exited(127);
    let mut run = call(store).sh("echo ready; exec sleep 600").spawn();
    run.wait_for_line("ready");
    assert_ne!(left(), Vec::<String>::new(), "what is held is kept somewhere");
    run.signal(Signal::SIGTERM);
    run.wait().died_of(Signal::SIGTERM);
    assert_eq!(left(), Vec::<String>::new());
});

// "A clean end frees the lock at once": runs follow each other without waiting for a lease.
on_every_store!(the_next_run_starts_at_once, |store| {
    for _ in 0..20 {
        call(store).args(["--fail", "--ttl", "60s"]).command(["true"]).run().exited(0).silent();
    }
});

// "The file store: one never-unlinked file a key", and nothing else.
#[test]
fn the_file_store_keeps_one_file() {
    let store = Store::file();
    let files = || -> Vec<u64> {
        use std::os::unix::fs::MetadataExt;
        let entries = fs::read_dir(store.locks()).expect("the store");
        entries.map(|entry| entry.expect("ours").metadata().expect("ours").ino()).collect()
    };
    call(&store).command(["true"]).run().exited(0);
    let first = files();
    assert_eq!(first.len(), 1);
    call(&store).sh("kill -KILL $$").run();
    call(&store).command(["no-such-command"]).run().exited(127);
    assert_eq!(files(), first, "the same file, by its inode");
}

// "Fence. Each acquisition of a key gets a number greater than every earlier one."
on_every_store!(the_fence_grows, |store| {
    let mut last = 0;
    for _ in 0..10 {
        let fence: u64 = seen(store, "LOCKRUN_FENCE").parse().expect("a number");
        assert!(fence > last, "{fence} after {last}");
        last = fence;
    }
});

// "... also after the store has lost all its data."
on_every_lease_store!(the_fence_survives_a_wiped_server, |store| {
    let server = store.server();
    let mut last = 0;
    for _ in 0..5 {
        for _ in 0..3 {
            let fence: u64 = seen(store, "LOCKRUN_FENCE").parse().expect("a number");
            assert!(fence > last, "{fence} after {last}");
            last = fence;
        }
        server.forget_everything();
    }
});

// "Tokens are a random UUID for each acquisition, never a host name or a pid."
on_every_store!(tokens_are_random, |store| {
    let mut tokens = BTreeSet::new();
    for _ in 0..5 {
        let token = seen(store, "LOCKRUN_TOKEN");
        let groups: Vec<usize> = token.split('-').map(str::len).collect();
        assert_eq!(groups, [8, 4, 4, 4, 12], "{token}");
        assert!(token.chars().all(|c| c == '-' || c.is_ascii_hexdigit()), "{token}");
        assert!(tokens.insert(token), "a token came twice");
    }
});
