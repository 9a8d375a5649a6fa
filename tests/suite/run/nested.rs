//! Runs inside runs: a run that would wait for itself is refused.

use crate::support::calm::held_in_time;
use crate::support::hand::{acquire, is_held, release, token, until_waiting};
use crate::support::lockrun::PROGRAM;
use crate::support::store::{on_every_lease_store, on_every_store};
use crate::support::{Holder, Lockrun, Store};

/// Returns the shell words of a run inside a command; the store comes from `LOCKRUN_STORE`.
fn inner(words: &str) -> String {
    format!("{PROGRAM} {words}")
}

fn outer(store: &Store, key: &str, script: &str) -> Lockrun {
    Lockrun::bare().env("LOCKRUN_STORE", store.url()).key(key).sh(script)
}

const REFUSED: &str = "it is held by a run that this one is part of";
const REFUSED_SLOTS: &str = "slots are held by runs that this one is part of";

// "A run inside COMMAND that would wait for the very lock it runs under is refused with a message instead of waiting
// for ever": at once, also for a wait with a time limit.
on_every_store!(a_wait_for_oneself_is_refused, |store| {
    for wait in ["--wait", "--wait 10m"] {
        let script = inner(&format!("--key a {wait} -- echo ran"));
        outer(store, "a", &script).run().exited(75).printed("").said(REFUSED);
        let script = inner(&format!("acquire --key a {wait}"));
        outer(store, "a", &script).run().exited(75).printed("").said(REFUSED);
        let script = inner(&format!("--key a -E 9 {wait} -- echo ran"));
        outer(store, "a", &script).run().exited(9).printed("").said(REFUSED);
    }
    assert!(!is_held(store, "a"));
});

// "Refused as when the variables say so", where a program on the way, such as sudo, has dropped them.
on_every_store!(without_its_variables_too, |store| {
    let bare = |words: &str| format!("env -i PATH=\"$PATH\" LOCKRUN_STORE=\"$LOCKRUN_STORE\" {}", inner(words));
    for wait in ["--wait", "--wait 10m"] {
        let script = bare(&format!("--key a {wait} -- echo ran"));
        outer(store, "a", &script).run().exited(75).printed("").said(REFUSED);
        outer(store, "a", &format!("sh -c '{script}; exit $?'")).run().exited(75).printed("").said(REFUSED);
        let by_hand = bare(&format!("acquire --key a {wait}"));
        outer(store, "a", &format!("exec {by_hand}")).run().exited(75).printed("").said(REFUSED);
    }
    // Another lock is not its own.
    outer(store, "a", &bare("--key b --wait -- echo ran")).run().exited(0).printed("ran\n").silent();
    // One that an ancestor keeps no more is waited for; so is one that another process of the shell's holds.
    let ours = "x=$(lockrun acquire --key a --ttl 1s)";
    let script = format!("{}; {}", ours.replace("lockrun", PROGRAM), bare("--key a --wait -- echo ran"));
    outer(store, "c", &script).run().exited(0).printed("ran\n").silent();
});

// ... and at any depth.
on_every_store!(at_any_depth, |store| {
    let depth = |key: &str| {
        let inmost = inner(&format!("--key {key} --wait -- echo ran"));
        let middle = inner(&format!("--key c --wait -- sh -c '{inmost}'"));
        let script = inner(&format!("--key b --wait -- sh -c \"{}\"", middle.replace('"', "\\\"")));
        outer(store, "a", &script).run()
    };
    for key in ["a", "b", "c"] {
        depth(key).exited(75).printed("").said(REFUSED);
    }
    depth("d").exited(0).printed("ran\n").silent();
});

// "When held: say who holds it": without `--wait` the lock is held, as for any other run.
on_every_store!(without_a_wait_it_is_simply_held, |store| {
    outer(store, "a", &inner("--key a --fail -- echo ran")).run().exited(75).printed("").said("is held by");
    outer(store, "a", &inner("--key a --skip -- echo ran")).run().exited(0).printed("").silent();
});

// "Up to N runs hold the lock at once": another slot may come free, so a run that waits for it does not wait for
// itself.
on_every_store!(another_slot_may_be_waited_for, |store| {
    let script = format!("echo ready; read line || :; {}", inner("--key a --slots 2 --wait -- echo ran"));
    let mut run = outer(store, "a", &script).args(["--slots", "2"]).with_open_input();
    run.run.wait_for_line("ready");
    let other = Holder::with(&Lockrun::new(store).key("a").args(["--slots", "2", "--ttl", "10m"]), &[]);
    let run = run.close();
    until_waiting(store, "a", 1);
    other.end();
    run.wait().exited(0).printed("ready\nran\n").silent();
});

// ... but not if outer runs hold all slots, or as many as this one allows beside it, whatever other runs hold.
on_every_store!(all_slots_ones_own_are_refused, |store| {
    let wait = |slots: u32, run: &str| inner(&format!("--key a --slots {slots} --wait 10m -- {run}"));
    let nested = |slots: u32, inmost: &str| {
        let middle = wait(slots, &format!("sh -c '{inmost}'"));
        outer(store, "a", &middle).args(["--slots", &slots.to_string()]).run()
    };
    nested(2, &wait(2, "echo ran")).exited(75).printed("").said(REFUSED_SLOTS).said("2 slots");
    nested(2, &inner("acquire --key a --slots 2 --wait")).exited(75).printed("").said(REFUSED_SLOTS);
    nested(3, &wait(2, "echo ran")).exited(75).printed("").said(REFUSED_SLOTS);
    nested(3, &wait(3, "echo ran")).exited(0).printed("ran\n").silent();
    // Another run was there first: that makes no difference to a run that wants to be alone.
    let other = Holder::with(&Lockrun::new(store).key("a").args(["--slots", "2", "--ttl", "10m"]), &[]);
    let alone = outer(store, "a", &inner("--key a --wait 10m -- echo ran")).args(["--slots", "2"]).run();
    alone.exited(75).printed("").said(REFUSED);
    other.end();
    assert!(!is_held(store, "a"));
});

// "Where this run is nested": every other wait costs no more requests than before.
on_every_lease_store!(only_a_nested_wait_asks_who_holds_the_lock, |store| {
    let server = store.server();
    // It does not renew its lease meanwhile.
    let _holder = Holder::with(&Lockrun::new(store).key("a").args(["--ttl", "10m"]), &[]);
    let asked = |call: Lockrun| {
        let before = server.requests();
        call.key("a").args(["--wait", "0.3"]).command(["echo", "ran"]).run().exited(75);
        server.requests() - before
    };
    let plain = asked(Lockrun::new(store));
    let nested = asked(Lockrun::new(store).env("LOCKRUN_TOKEN", "somebody-elses"));
    held_in_time(nested == plain + 1, &format!("one question: {plain} and {nested} requests"));
});

// "LOCKRUN_TOKEN": a shell that holds the lock by hand would wait for itself as well.
on_every_store!(a_lock_by_hand_is_ones_own_too, |store| {
    let ours = token(store, "a", &["--ttl", "10m"]);
    let mine = || Lockrun::new(store).key("a").env("LOCKRUN_TOKEN", &ours).args(["--wait"]).command(["echo", "ran"]);
    mine().run().exited(75).printed("").said(REFUSED);
    acquire(store, "a", &["--wait"]).env("LOCKRUN_TOKEN", &ours).run().exited(75).printed("").said(REFUSED);
    release(store, "a", &ours).exited(0);
    mine().run().exited(0).printed("ran\n").silent();
});

// "COMMAND finds `LOCKRUN_KEY`, `LOCKRUN_TOKEN`" of its own lock; those of the outer locks come in another variable.
on_every_store!(the_outer_tokens_are_handed_down, |store| {
    let script = inner("--key b -- sh -c 'echo $LOCKRUN_KEY; echo $LOCKRUN_OUTER_TOKENS; echo $LOCKRUN_TOKEN'");
    let output =
        outer(store, "a", &format!("echo $LOCKRUN_TOKEN; echo \"${{LOCKRUN_OUTER_TOKENS-none}}\"; {script}")).run();
    let said = output.exited(0).silent().stdout();
    let [first, none, key, outer, second] = said.lines().collect::<Vec<_>>()[..] else { panic!("{said}") };
    assert_eq!((none, key, outer), ("none", "b", first));
    assert_ne!(first, second);
});
