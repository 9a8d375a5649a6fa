//! Waiting in turn for one of several slots.

use std::time::Duration;

use crate::support::calm::{judge, late};
use crate::support::crowd;
use crate::support::hand::{break_lock, token};
use crate::support::proxy::Mode;
use crate::support::queue::WAIT_FOR_THE_END;
use crate::support::slots::{SharedRecord, Slot, TELL, wait_for_eight};
use crate::support::store::on_every_store;
use crate::support::{Etcd, LONG, Queue, Store, eventually};

// "With slots: at most N do", also when many wait for a lock; all of them get it.
on_every_store!(many_wait_for_slots, |store| {
    let _turn = crowd::turn_at(store);
    let (mut queue, held) = wait_for_eight(store, "eight", 100);
    held.into_iter().for_each(Slot::end);
    SharedRecord::read(&queue.all_end(), 8).in_any_order(0..100);
    queue.nothing_is_left();
});

// "Waiters get the lock in the order in which they came", also when many slots become free at once: on etcd one claim
// succeeds after another, which takes seconds if etcd is far away. Those that succeed last are not passed over.
#[test]
fn many_slots_of_a_distant_etcd_go_to_the_first_waiters() {
    const SLOTS: usize = 8;
    const WAITERS: usize = 12;
    let options = ["--slots", "8", "--ttl", "10m"];
    judge(|| {
        let _turn = crowd::turn();
        let store = Store::Etcd(Etcd::of(1));
        let proxy = store.proxy();
        (0..SLOTS).for_each(|_| drop(token(&store, "distant", &options)));
        let body = format!("{TELL}; {WAIT_FOR_THE_END}");
        let mut queue = Queue::through(&proxy.url(), &store, "distant").with(&options).doing(&body);
        queue.join(WAITERS);
        queue.settles();
        proxy.set(Mode::Delay(Duration::from_millis(250)));
        break_lock(&store, "distant", &["--now"]).exited(0);
        eventually(LONG, "all slots are used", || queue.begun().len() == SLOTS);
        let first: Vec<usize> = queue.begun().iter().map(|tag| tag.parse().expect("a number")).collect();
        if first.iter().any(|number| *number >= SLOTS) {
            late(&format!("{first:?} were the first"));
        }
        proxy.set(Mode::Pass);
        queue.let_them_end();
        SharedRecord::read(&queue.all_end(), SLOTS).in_any_order(0..WAITERS);
        queue.nothing_is_left();
    });
}
