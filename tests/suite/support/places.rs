//! Waiters that must keep their places through a disturbance.

use super::holder::Holder;
use super::proxy::Proxy;
use super::queue::Queue;
use super::store::Store;

/// Starts ten waiters behind a proxy, disturbs the server or the network, waits until all waiters are back, and asserts
/// that they still run in order.
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
