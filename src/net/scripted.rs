//! Scripted servers for tests, in place of servers on the network.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::io::{self, ErrorKind, Write as _};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;

thread_local! {
    static SERVERS: RefCell<Option<Servers>> = const { RefCell::new(None) };
}

/// The scripts of the connections still to be made.
struct Servers {
    scripts: VecDeque<Vec<u8>>,
    /// The other ends of the connections made: what is sent to them is not read, and does not fail.
    ends: Vec<UnixStream>,
}

/// Runs `act`. Each connection that this thread makes meanwhile receives the next of the `scripts`, followed by an end
/// of file. When none is left, connections are refused.
pub fn with<T>(scripts: impl IntoIterator<Item = Vec<u8>>, act: impl FnOnce() -> T) -> T {
    let servers = Servers { scripts: scripts.into_iter().collect(), ends: Vec::new() };
    SERVERS.set(Some(servers));
    let done = act();
    SERVERS.set(None);
    done
}

/// Returns the next connection; `None` outside of [`with`].
pub(super) fn next() -> Option<io::Result<UnixStream>> {
    SERVERS.with_borrow_mut(|servers| servers.as_mut().map(Servers::connect))
}

impl Servers {
    fn connect(&mut self) -> io::Result<UnixStream> {
        let script = self.scripts.pop_front().ok_or(ErrorKind::ConnectionRefused)?;
        let (ours, mut end) = UnixStream::pair()?;
        ours.set_nonblocking(true)?;
        end.set_nonblocking(true)?;
        // As much as fits at once.
        end.write_all(&script)
            .or_else(|error| if error.kind() == ErrorKind::WouldBlock { Ok(()) } else { Err(error) })?;
        end.shutdown(Shutdown::Write)?;
        self.ends.push(end);
        Ok(ours)
    }
}
