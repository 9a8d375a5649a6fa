//! The server of a lease store: what can happen to it, and what it knows of its locks.

/// What the contracts ask of the server of a lease store, whichever it is.
pub(crate) trait LeaseServer {
    /// The port of the loopback interface on which it listens.
    fn port(&self) -> u16;

    /// The URL under which it is reached at another port, such as a proxy's.
    fn url_at(&self, port: u16) -> String;

    /// Stops its process without ending it: connections stay, nothing is answered.
    fn pause(&self);

    /// Continues it after `pause`.
    fn resume(&self);

    /// Kills it: its port refuses connections.
    fn kill(&self);

    /// Starts it again after `kill`, on the same port and with its data.
    fn start_again(&self);

    /// Closes the connections of all its clients.
    fn hang_up(&self);

    /// Deletes all that it has stored.
    fn forget_everything(&self);

    /// Deletes the holders of this lock, and nothing else.
    fn forget_holders(&self, key: &str);

    /// Lets the leases of this lock have run out, which nobody has noticed.
    fn expire(&self, key: &str) {
        self.forget_holders(key);
    }

    /// A word that stands in what a client sends to take a lock, to renew it or to release it. Where that takes several round trips, in
    /// the last of them, by which it is done.
    fn word(&self) -> &'static str;

    /// How many requests of its clients it has carried out: acquisitions, renewals and the like.
    fn requests(&self) -> u64;

    /// How many requests it counts for questions that change nothing, and for changes of a lock that has several holders.
    fn requests_of(&self, questions: u64, changes: u64) -> u64 {
        questions + changes
    }

    /// How many round trips a new connection takes for as many such requests, one after the other, at the most.
    fn round_trips(&self, requests: u64) -> u64;

    /// How many connections to it a client has. It makes its requests over the last one.
    fn connections_of_a_client(&self) -> u64 {
        1
    }

    /// Whether others than lockrun connect to it again and again, so that the number of connections says nothing.
    fn is_monitored(&self) -> bool {
        false
    }

    /// What a proxy at this port writes instead of what, in the server's answers: where they tell the client where to go.
    fn rewritten(&self, _port: u16) -> Option<(String, String)> {
        None
    }

    /// Whether it wakes its waiters; if not, they look again and again.
    fn wakes_waiters(&self) -> bool {
        true
    }

    /// The tokens of those that stand in the queue of this lock, the dead included, in their order.
    fn waiting(&self, key: &str) -> Vec<String>;

    /// How many clients sleep at the server until they are woken.
    fn asleep(&self) -> usize;

    /// What it keeps of this lock besides what stays of every lock for ever, and of others; without what goes by itself, if that does
    /// not count.
    fn left(&self, key: &str, counts_what_goes: bool) -> Vec<String>;
}
