//! Slots that are held by hand, and what others see of them.

use crate::support::hand::{self, release, renew, status};
use crate::support::slots::Slot;
use crate::support::store::on_every_store;
use crate::support::{Lockrun, Output, Store};

fn acquire(store: &Store, options: &[&str]) -> Output {
    Lockrun::bare().arg("acquire").args(["--store", &store.url(), "--key", "hand", "--slots", "3"]).args(options).run()
}

/// Returns the value of a variable among the assignments that were printed.
fn assigned(output: &Output, name: &str) -> String {
    let printed = output.stdout();
    let value = printed.split_whitespace().find_map(|word| word.strip_prefix(name)?.strip_prefix('='));
    value.unwrap_or_else(|| panic!("no {name}: {output}")).to_owned()
}

// "`lockrun acquire --slots N`": by hand as by a run; the next one gets a slot that is released.
on_every_store!(slots_are_taken_by_hand, |store| {
    let taken: Vec<Output> = (0..3).map(|_| acquire(store, &["--export"]).exited(0).silent()).collect();
    let slots: Vec<String> = taken.iter().map(|output| assigned(output, "LOCKRUN_SLOT")).collect();
    assert_eq!(slots, ["0", "1", "2"]);
    acquire(store, &["--fail"]).exited(75).said("is held by");
    let release = Lockrun::bare().arg("release").args(["--store", &store.url(), "--key", "hand"]);
    release.args(["--token", &assigned(&taken[1], "LOCKRUN_TOKEN")]).run().exited(0);
    let again = acquire(store, &["--json"]).exited(0).silent();
    let answer: serde_json::Value = serde_json::from_str(&again.stdout()).expect("an object");
    assert_eq!(answer["slot"], 1, "{again}");
    let run = Lockrun::new(store).key("hand").args(["--slots", "4"]).sh("echo $LOCKRUN_SLOT").run();
    run.exited(0).printed("3\n");
});

// "By hand": a second acquire under the same token returns the same slot, and takes no other.
on_every_store!(the_same_token_has_one_slot, |store| {
    let _first = Slot::take(&Lockrun::new(store).key("hand").args(["--slots", "3"]));
    let token = "11111111-2222-4333-8444-555555555555";
    let answers = [(); 2].map(|()| acquire(store, &["--export", "--token", token]).exited(0));
    assert_eq!(answers.map(|output| assigned(&output, "LOCKRUN_SLOT")), ["1", "1"]);
    acquire(store, &[]).exited(0);
    acquire(store, &[]).exited(75);
});

// "Status as for one": status shows all holders, each with its slot.
on_every_store!(status_shows_all_holders, |store| {
    let held = [(); 3].map(|()| Slot::take(&Lockrun::new(store).key("hand").args(["--slots", "3"])));
    let look = |options: &[&str]| {
        Lockrun::bare().arg("status").args(["--store", &store.url(), "--key", "hand"]).args(options).run().exited(75)
    };
    let output = look(&["--json"]);
    let answer: serde_json::Value = serde_json::from_str(&output.stdout()).expect("JSON");
    println!("{output}");
    let holders = answer[0]["holders"].as_array().unwrap_or_else(|| panic!("no holders: {output}"));
    let mut slots: Vec<(u64, u64)> = holders
        .iter()
        .map(|holder| (holder["slot"].as_u64().expect("a slot"), holder["fence"].as_u64().expect("a fence")))
        .collect();
    slots.sort_unstable();
    let wanted = held.each_ref().map(|slot| (slot.number.parse().expect("a slot"), slot.fence));
    assert_eq!(slots, wanted);
    let page = look(&[]).stdout();
    for slot in &held {
        assert!(page.contains(&format!("pid {} ", slot.pid())), "{} is missing: {page}", slot.pid());
    }
});

// "Each run acquires the lock only while fewer than its own N hold it", and its slot is "from 0 to N-1": a token that
// holds one of three slots is not told that it holds what the others, or its slot, do not allow. It is told again that
// it holds its slot.
on_every_store!(the_token_of_a_slot_gets_no_lock_that_others_exclude, |store| {
    for token in ["t0", "t1", "t2"] {
        acquire(store, &["--token", token]).exited(0);
    }
    let again = |token: &str, options: &[&str]| {
        hand::acquire(store, "hand", &[&["--json", "--token", token], options].concat()).run()
    };
    for (token, options) in
        [("t0", &[][..]), ("t1", &["--shared"]), ("t2", &["--slots", "2"]), ("t0", &["--wait", "1"])]
    {
        again(token, options).exited(75).printed("").said("is held by");
    }
    hand::acquire(store, "hand", &["--slots", "4", "--token", "t3"]).run().exited(0);
    let repeated = again("t1", &["--slots", "3"]).exited(0).stdout();
    assert!(repeated.contains("\"slot\":1"), "{repeated}");
    for token in ["t1", "t2", "t3"] {
        release(store, "hand", token).exited(0);
    }
    // Nor if it is alone: others may come beside it.
    again("t0", &[]).exited(75).said("is held by");
    again("t0", &["--slots", "3"]).exited(0);
});

// "The holders, the oldest first", however long their leases last.
on_every_store!(status_shows_the_oldest_holder_first, |store| {
    for token in ["t0", "t1", "t2"] {
        acquire(store, &["--token", token]).exited(0);
    }
    renew(store, "hand", "t0", &["--ttl", "1h"]).exited(0);
    let status = status(store, "hand");
    let holders = status["holders"].as_array().expect("an array");
    let slots: Vec<_> = holders.iter().map(|holder| holder["slot"].as_u64().expect("a slot")).collect();
    assert_eq!(slots, [0, 1, 2], "{status}");
});
