//! Runs scripts: on the server, or on the current primary, and again while a server is away or cannot do what it is
//! asked.

use std::thread;
use std::time::Duration;

use redis::{Arg, Cmd, Value};

use super::connection::Connection;
use super::failover::{Primary, slot_of};
use super::failure::Failure;
use super::url::Server;
use super::{RedisStore, ScriptCache, script};
use crate::sys::backoff::Backoff;
use crate::sys::clock::Moment;

impl RedisStore {
    /// Runs a script as [`Self::run_unless_full`] does. If the server is full, asks again. The last try has a second,
    /// or a quarter of the time: with less it would seem that the server, which does answer, does not.
    pub(super) fn run(&mut self, script: &Cmd, timeout: Duration) -> Result<Value, Failure> {
        let deadline = Moment::now() + timeout;
        let last = Duration::from_secs(1).min(timeout / 4);
        let mut backoff = Backoff::new();
        loop {
            let reply = self.run_unless_full(script, deadline.since(Moment::now()));
            let pause = backoff.next();
            if !reply.as_ref().is_err_and(Failure::is_of_full_server) || Moment::now() + pause + last >= deadline {
                return reply;
            }
            thread::sleep(pause);
        }
    }

    /// Runs a script that is safe to run twice, and returns its reply. Reopens, once, a connection that was closed
    /// while it was idle. If another server has become the primary, asks that one. A failure also says whether a server
    /// may have run the script. A waiter asks a full server again by itself, and hears signals meanwhile.
    pub(super) fn run_unless_full(&mut self, script: &Cmd, timeout: Duration) -> Result<Value, Failure> {
        let deadline = Moment::now() + timeout;
        let mut backoff = Backoff::new();
        loop {
            let reply = match self.witnesses {
                None => self.run_here(script, deadline),
                Some(_) => self.run_at_primary(script, deadline),
            };
            let failure = match reply {
                Ok(reply) => return Ok(reply),
                Err(failure) => failure,
            };
            // What we know of the primary may be wrong.
            self.connection = self.connection.take().filter(|_| self.witnesses.is_none());
            let pause = backoff.next();
            let is_of_a_move = self.witnesses.is_some() && failure.is_of_a_move();
            if !is_of_a_move || Moment::now() + pause >= deadline {
                return Err(failure);
            }
            self.has_resent |= failure.leaves_outcome_open();
            thread::sleep(pause);
        }
    }

    /// Runs a script on the server that a majority calls the primary, when asked after this call began: a reply from a
    /// server that may have been replaced meanwhile does not count.
    fn run_at_primary(&mut self, script: &Cmd, deadline: Moment) -> Result<Value, Failure> {
        let slot = key_of(script).map_or(0, |key| slot_of(&key));
        let known = self.primary.take().filter(|(of, _)| self.connection.is_some() && *of == slot);
        let Some(witnesses) = &mut self.witnesses else { return self.run_here(script, deadline) };
        let (primary, is_asked) = match known {
            Some((_, primary)) => {
                witnesses.ask(deadline);
                (primary, true)
            }
            None => (witnesses.locate(slot, deadline)?, false),
        };
        self.switch_to(&primary.server);
        let reply = self.run_here(&in_term(script, &primary), deadline);
        if let (true, Some(witnesses)) = (is_asked, &mut self.witnesses) {
            let confirmed = witnesses.confirm(slot, &primary, deadline);
            // An error needs no confirmation: it counts whichever server is the primary.
            if reply.is_ok() {
                confirmed?;
            }
        }
        self.primary = Some((slot, primary));
        reply
    }

    /// Makes `server` the one that is asked.
    pub(super) fn switch_to(&mut self, server: &Server) {
        if self.server != *server {
            self.connection = None;
            self.server = server.clone();
        }
    }

    /// Returns the script with the term of the known primary, if there is one.
    pub(super) fn in_known_term(&self, script: &Cmd) -> Cmd {
        self.primary.as_ref().map_or_else(|| script.clone(), |(_, primary)| in_term(script, primary))
    }

    /// Runs a script on the present server; sends its text if the server rejects the hash.
    fn run_here(&mut self, script: &Cmd, deadline: Moment) -> Result<Value, Failure> {
        match self.send(script, deadline) {
            Err(Failure::Rejected(rejection)) => match script::in_full(script, &rejection.error) {
                Some(full) => {
                    self.contact = ScriptCache::Answered;
                    self.send(&full, deadline)
                }
                None => Err(Failure::Rejected(rejection)),
            },
            reply => reply,
        }
    }

    /// Sends a script as it is. Reopens the connection, once, if it was closed while idle.
    fn send(&mut self, script: &Cmd, deadline: Moment) -> Result<Value, Failure> {
        if let Some(connection) = &mut self.connection {
            match request(connection, &mut self.listing_left, script, deadline) {
                Err(Failure::Closed) => {
                    self.connection = None;
                    self.has_resent = true;
                }
                Err(failure) => {
                    self.connection = None;
                    return Err(failure);
                }
                reply => return reply,
            }
        }
        let mut connection = Connection::open(&self.server, self.tls.as_ref(), deadline)?;
        let reply = request(&mut connection, &mut self.listing_left, script, deadline);
        match reply {
            Ok(_) => self.connection = Some(connection),
            Err(Failure::Closed) if self.contact == ScriptCache::NotYet => return Err(Failure::HungUp),
            Err(_) => {}
        }
        if !reply.as_ref().is_err_and(Failure::leaves_outcome_open) {
            self.contact = self.contact.max(ScriptCache::Answered);
        }
        reply
    }

    /// Runs a script that is safe to run twice until it is answered, it is rejected for good, or `timeout` is over. One
    /// attempt takes at most half of that, because a middlebox may have dropped its connection silently.
    pub(super) fn run_until_answered(&mut self, script: &Cmd, timeout: Duration) -> Result<Value, Failure> {
        let until = Moment::now() + timeout;
        let mut backoff = Backoff::new();
        loop {
            let left = until.since(Moment::now());
            let failure = match self.run(script, left.min(timeout / 2)) {
                Ok(reply) => return Ok(reply),
                Err(failure) => failure,
            };
            let pause = backoff.next();
            if !failure.is_transient() || Moment::now() + pause >= until {
                return Err(failure);
            }
            self.has_resent |= failure.leaves_outcome_open();
            thread::sleep(pause);
        }
    }
}

/// Sends a script, and waits for the answer, which counts towards the listing that is under way, if there is one.
fn request(
    connection: &mut Connection,
    listing_left: &mut Option<usize>,
    script: &Cmd,
    deadline: Moment,
) -> Result<Value, Failure> {
    connection.listing_left = *listing_left;
    let reply = connection.request(script, deadline);
    *listing_left = connection.listing_left;
    reply
}

/// Returns the first key of a command that runs a script.
fn key_of(command: &Cmd) -> Option<String> {
    let mut words = command.args_iter();
    let (Some(Arg::Simple(b"EVAL" | b"EVALSHA")), Some(Arg::Simple(key))) = (words.next(), words.nth(2)) else {
        return None;
    };
    String::from_utf8(key.to_vec()).ok()
}

/// Returns the command with the term of `primary` as the last argument of its script, if it runs one.
fn in_term(command: &Cmd, primary: &Primary) -> Cmd {
    let mut command = command.clone();
    if key_of(&command).is_some() {
        command.arg(format!("term:{} {} {}", primary.term, primary.standing, primary.service));
    }
    command
}
