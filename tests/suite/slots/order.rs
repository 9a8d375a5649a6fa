//! Waiting in turn for one of several slots.

use crate::support::crowd;
use crate::support::slots::{SharedRecord, Slot, wait_for_eight};
use crate::support::store::on_every_store;

// "With slots: at most N do", also when many wait for a lock; all of them get it.
on_every_store!(many_wait_for_slots, |store| {
    let _turn = crowd::turn();
    let (mut queue, held) = wait_for_eight(store, "eight", 200);
    held.into_iter().for_each(Slot::end);
    SharedRecord::read(&queue.all_end(), 8).in_any_order(0..200);
    queue.nothing_is_left();
});
