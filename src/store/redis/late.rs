//! Tests of what is not done any more when its time is over.

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
        // What comes next is the answer to what is asked next.
        assert_eq!(store.renew(&claim.key, &claim.token, None).expect("is answered"), Renewed::Mine);
    });
}
