//! Waiters whose places a disturbance must not cost them.

use super::holder::Holder;
use super::proxy::Proxy;
use super::queue::Queue;
use super::store::Store;

/// Lets ten wait over a network that can be disturbed, does something to the server or the network, and looks whether
/// they run in order all the same, as soon as all of them are back.
#[track_caller]
pub(crate) fn keep_their_places(store: &Store, disturb: impl FnOnce(&Proxy)) {
    let proxy = store.proxy();
    let holder = Holder::new(store, "places");
    let mut queue = Queue::through(&proxy.url(), store, "places");
    queue.join_and_hear(10);
    queue.settles();
    disturb(&proxy);
    queue.settles();
    assert_eq!(queue.length(), 10);
    holder.end();
    queue.end().in_order(0..10);
}
