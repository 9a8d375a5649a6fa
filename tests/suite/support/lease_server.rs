//! The server of a lease store: faults that can be injected, and what it stores of its locks.

/// What the contracts need of the server of any lease store.
pub(crate) trait LeaseServer {
    /// Returns the port of the loopback interface on which the server listens.
    fn port(&self) -> u16;

    /// Returns the store's URL with another port, such as a proxy's.
    fn url_at(&self, port: u16) -> String;

    /// Stops its processes without ending them: connections stay, and nothing is answered.
    fn pause(&self);

    /// Continues the server after `pause`.
    fn resume(&self);

    /// Kills the server: its port refuses connections.
    fn kill(&self);

    /// Starts the server again after `kill`, on the same port and with its data.
    fn start_again(&self);

    /// Closes the connections of all its clients.
    fn hang_up(&self);

    /// Deletes everything that lockrun has stored.
    fn forget_everything(&self);

    /// Deletes the holders of this lock, and nothing else.
    fn forget_holders(&self, key: &str);

    /// Makes the leases of this lock expire, without any client noticing.
    fn expire(&self, key: &str) {
        self.forget_holders(key);
    }

    /// Returns a word that occurs in each request that acquires, renews or releases a lock. If the request takes
    /// several round trips, the word is in the last of them, which makes the change.
    fn word(&self) -> &'static str;

    /// Returns how many requests of clients the server has carried out: acquisitions, renewals and the like.
    fn requests(&self) -> u64;

    /// Returns how many requests `requests` counts for so many questions that change nothing, and changes of a lock
    /// with several holders.
    fn requests_of(&self, questions: u64, changes: u64) -> u64 {
        questions + changes
    }

    /// Returns how many round trips at most a new connection takes for so many requests, one after the other.
    fn round_trips(&self, requests: u64) -> u64;

    /// Returns how many messages a client sends when it ends, which nobody answers.
    fn farewells(&self) -> u64 {
        0
    }

    /// Returns how many connections to the server a client makes. It sends its requests over the last one.
    fn connections_of_a_client(&self) -> u64 {
        1
    }

    /// Returns whether programs other than lockrun keep connecting to the server, so that the number of connections
    /// says nothing.
    fn is_monitored(&self) -> bool {
        false
    }

    /// Returns what a proxy at this port must replace in the server's answers, and by what: the address to which they
    /// send the client.
    fn rewritten(&self, _port: u16) -> Option<(String, String)> {
        None
    }

    /// Returns the tokens in the queue of this lock, those of dead waiters included, in their order.
    fn waiting(&self, key: &str) -> Vec<String>;

    /// Returns how many waiters sleep until they are woken.
    fn asleep(&self) -> usize;

    /// Returns what the server stores of any lock, apart from the lasting data of this one (such as its fence and last
    /// run). Without `counts_what_goes`, leaves out what expires by itself.
    fn left(&self, key: &str, counts_what_goes: bool) -> Vec<String>;
}
