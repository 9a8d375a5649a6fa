//! A test of what is tried again.

use std::time::Duration;

use crate::net::scripted;
use crate::store::{Acquired, Address, Claim, IfHeld};

// Nothing else would release a lock that never expires.
#[test]
fn cancelling_what_was_granted_is_tried_again() {
    const MINE: &[u8] = b"*3\r\n:1\r\n$1\r\n7\r\n:0\r\n";
    const CANCELLED: &[u8] = b"*2\r\n:1\r\n:0\r\n";
    let mut store = Address::parse("redis://h").expect("is a URL").open(Duration::from_mins(1)).expect("is opened");
    let claim = Claim::example();
    // A request whose connection turns out closed is sent again at once; that connection is closed, too.
    scripted::with([MINE, b"", b"", CANCELLED].map(<[u8]>::to_vec), || {
        let tried = store.try_acquire(&claim, IfHeld::Leave).expect("is answered");
        assert!(matches!(tried, Acquired::Mine(_)), "{tried:?}");
        assert!(store.cancel(&claim, false), "it is given up at once");
    });
}
