//! Nonsense answers, from servers or from something in between: a clear error, in bounded time and memory.

use nix::sys::resource::Resource;

use crate::support::birth::Birth;
use crate::support::proxy::Mode;
use crate::support::store::on_every_lease_store;
use crate::support::{Holder, Lockrun, Output};

/// The most memory that a call may take; most of that is its code and its threads' stacks.
const MEMORY: u64 = 256 << 20;

/// How many calls of each kind get nonsense for an answer.
const CALLS: u64 = 4;

// Every reply may be cut short, doubled, mixed with noise, nested without an end, announced as longer than any memory,
// or never end. No call hangs, dies of it, writes what was sent to the terminal, or runs COMMAND beside the holder.
on_every_lease_store!(nonsense_is_an_error, |store| {
    let holder = Holder::new(store, "held");
    let proxy = store.proxy();
    let kinds: [(&[&str], &[&str]); 7] = [
        (&["--key", "held"], &["--", "echo", "ran"]),
        (&["--key", "held", "--wait", "1s"], &["--", "echo", "ran"]),
        (&["--key", "held", "--shared"], &["--", "echo", "ran"]),
        (&["--key", "free", "--ttl", "3s", "--kill-after", "200ms"], &["--", "sh", "-c", "echo ran; exec sleep 1.2"]),
        (&["acquire", "--key", "hand", "--ttl", "5s"], &[]),
        (&["status", "--json"], &[]),
        (&["doctor"], &[]),
    ];
    let mut failed = 0;
    for (number, (options, command)) in (0..).zip(kinds) {
        for seed in 0..CALLS {
            proxy.set(Mode::Garble(seed * 1000 + number * 100));
            let limits = vec![(Resource::RLIMIT_AS, MEMORY, MEMORY)];
            let url = proxy.url();
            let call = Lockrun::bare().args(options).args(["--store", &url, "--store-timeout", "500ms"]).args(command);
            let output = call.birth(Birth { limits, ..Birth::default() }).run();
            is_in_order(&output, seed);
            failed += u64::from(!matches!(output.status, Some(0 | 75)));
            let is_held = options.contains(&"held");
            assert!(!is_held || output.stdout().is_empty(), "{seed}: COMMAND ran beside the holder: {output}");
        }
    }
    assert!(failed > CALLS, "only {failed} calls have met nonsense");
    holder.end();
});

#[track_caller]
fn is_in_order(output: &Output, seed: u64) {
    let documented = [0, 1, 2, 69, 75, 79, 125];
    assert!(output.status.is_some_and(|status| documented.contains(&status)), "{seed}: {output}");
    let said = output.stderr();
    assert!(!said.contains("internal error") && !said.contains('\u{1b}') && said.len() < 4000, "{seed}: {output}");
}
