//! Tests with a server that never stops answering.

use std::io::Write as _;
use std::os::unix::net::UnixListener;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::store::{Address, Backend, Claim, IfHeld, Tried};

/// Returns what `act` makes of a store whose server sends `first`, and then `again` and again, whatever it is asked. Fails if that does
/// not come to an end.
fn with_server<T: Send + 'static>(
    first: &'static [u8],
    again: &'static [u8],
    act: impl FnOnce(&mut dyn Backend) -> T + Send + 'static,
) -> T {
    let directory = TempDir::new().expect("a directory");
    let path = directory.path().join("socket");
    let listener = UnixListener::bind(&path).expect("a socket");
    let (sender, receiver) = mpsc::channel();
    let url = format!("redis+unix://{}", path.display());
    thread::spawn(move || {
        let mut store = Address::parse(&url).expect("is a URL").open(Duration::from_millis(300)).expect("is opened");
        let _ = sender.send(act(store.as_mut()));
    });
    let (mut client, _) = listener.accept().expect("a client");
    client.set_write_timeout(Some(Duration::from_secs(1))).expect("is set");
    let answers = again.repeat(100);
    let give_up_at = Instant::now() + Duration::from_mins(1);
    let mut sent = client.write_all(first);
    while sent.is_ok() && Instant::now() < give_up_at {
        if let Ok(done) = receiver.try_recv() {
            return done;
        }
        sent = client.write_all(&answers);
    }
    receiver.recv_timeout(Duration::from_secs(30)).expect("comes to an end")
}

#[test]
fn a_hand_off_that_never_ends_ends_with_the_time_out() {
    const MINE: &[u8] = b"*5\r\n:1\r\n$1\r\n7\r\n:0\r\n$1\r\na\r\n$1\r\nb\r\n";
    let tried = with_server(MINE, b"*2\r\n$1\r\na\r\n$1\r\nb\r\n", |store| {
        store.try_acquire(&Claim::example(), IfHeld::Leave).expect("is answered")
    });
    assert!(matches!(tried, Tried::Mine(grant) if grant.fence == 7), "{tried:?}");
}
