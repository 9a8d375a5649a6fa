//! Tests of what ends when its time is over, and of what is tried again before that.

use std::time::Duration;

use crate::net::scripted;
use crate::store::{Address, Claim, IfHeld, Renewed, Tried};

// A server could name waiters to be asked about for ever.
#[test]
fn a_hand_off_is_not_pursued_after_the_time_out() {
    const MINE: &[u8] = b"*5\r\n:1\r\n$1\r\n7\r\n:0\r\n$1\r\na\r\n$1\r\nb\r\n";
    const RENEWED: &[u8] = b"*1\r\n:1\r\n";
    let mut store = Address::parse("redis://h").expect("is a URL").open(Duration::ZERO).expect("is opened");
    let claim = Claim::example();
    scripted::with([[MINE, RENEWED].concat()], || {
        let tried = store.try_acquire(&claim, IfHeld::Leave).expect("is answered");
        assert!(matches!(tried, Tried::Mine(_)), "{tried:?}");
        // If the client had pursued the hand-off, it would have read this reply there.
        assert_eq!(store.renew(&claim.key, &claim.token, None).expect("is answered"), Renewed::Mine);
    });
}

// Nothing else would release a lock that never expires.
#[test]
fn cancelling_what_was_granted_is_tried_again() {
    const MINE: &[u8] = b"*5\r\n:1\r\n$1\r\n7\r\n:0\r\n$0\r\n\r\n$0\r\n\r\n";
    const CANCELLED: &[u8] = b"*4\r\n:1\r\n$0\r\n\r\n$0\r\n\r\n:0\r\n";
    let mut store = Address::parse("redis://h").expect("is a URL").open(Duration::from_mins(1)).expect("is opened");
    let claim = Claim::example();
    // A request whose connection turns out closed is sent again at once; that connection is closed, too.
    scripted::with([MINE, b"", b"", CANCELLED].map(<[u8]>::to_vec), || {
        let tried = store.try_acquire(&claim, IfHeld::Leave).expect("is answered");
        assert!(matches!(tried, Tried::Mine(_)), "{tried:?}");
        assert!(store.cancel(&claim, false), "it is given up at once");
    });
}
