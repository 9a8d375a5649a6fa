//! Servers that are all asked the same, of which some need not answer.

use std::time::Duration;

use nix::errno::Errno;
use nix::poll::{PollFd, PollTimeout, poll};
use redis::Cmd;

use super::open;
use crate::store::redis::connection::{Connection, Failure, Replies};
use crate::store::redis::url::Server;
use crate::sys::clock::Moment;
use crate::sys::wait::readable;

/// How long the rest of an answer may take whose beginning has come, and an answer without which the others were enough.
const REST: Duration = Duration::from_millis(250);

/// The servers, each with its connection.
pub(super) struct Panel {
    members: Vec<Member>,
}

struct Member {
    server: Server,
    connection: Option<Connection>,
    /// Whether its answer to what was asked last has not been read.
    owes: bool,
    /// Why it has not answered, if it has failed last.
    failure: Option<Failure>,
}

impl Panel {
    /// Takes these servers, not connected yet.
    pub(super) fn new(servers: &[Server]) -> Self {
        let mut panel = Panel { members: Vec::new() };
        for server in servers {
            panel.add(server.clone());
        }
        panel
    }

    /// Adds a server, if it is none of them.
    pub(super) fn add(&mut self, server: Server) {
        if !self.members.iter().any(|member| member.server.endpoint == server.endpoint) {
            self.members.push(Member { server, connection: None, owes: false, failure: None });
        }
    }

    /// Keeps these servers alone, and the connections to them.
    pub(super) fn become_these(&mut self, servers: Vec<Server>) {
        self.members.retain(|member| servers.iter().any(|server| server.endpoint == member.server.endpoint));
        for server in servers {
            self.add(server);
        }
    }

    /// Returns how many they are.
    pub(super) fn len(&self) -> usize {
        self.members.len()
    }

    /// Sends `questions` to all, connecting where that must be. As long as `enough` of them are connected, those that have failed are
    /// left aside: to find out that one is still away takes time.
    pub(super) fn send(&mut self, questions: &[Cmd], enough: usize, deadline: Moment) {
        for member in &mut self.members {
            member.catch_up(questions);
        }
        let count = self.len();
        for at in 0..count {
            let connected = self.members.iter().filter(|member| member.connection.is_some()).count();
            let member = &mut self.members[at];
            if member.connection.is_none() {
                if connected >= enough && member.failure.is_some() {
                    continue;
                }
                let now = Moment::now();
                // One that does not answer must leave time for the others.
                let share = deadline.since(now) / u32::try_from(count - at).unwrap_or(u32::MAX);
                match open(&member.server, now + share) {
                    Ok(connection) => member.connection = Some(connection),
                    Err(failure) => {
                        member.fail(failure);
                        continue;
                    }
                }
            }
            let Some(connection) = &mut member.connection else { continue };
            match connection.send(questions, deadline) {
                Ok(()) => member.owes = true,
                Err(failure) => member.fail(failure),
            }
        }
    }

    /// Reads the answers to what was sent, until `is_enough` says so of what `read` makes of them, all have answered, or the deadline comes.
    /// `read` is given the server, too.
    pub(super) fn hear<V>(
        &mut self,
        questions: &[Cmd],
        deadline: Moment,
        mut read: impl FnMut(&Server, Replies) -> Result<V, Failure>,
        is_enough: impl Fn(&[V]) -> bool,
    ) -> Vec<V> {
        let mut heard = Vec::new();
        while !is_enough(&heard) {
            let ready = self.ready(deadline);
            if ready.is_empty() {
                for member in self.members.iter_mut().filter(|member| member.owes) {
                    member.fail(Failure::NoAnswer("did not answer in time"));
                }
                break;
            }
            for at in ready {
                let member = &mut self.members[at];
                let Some(connection) = &mut member.connection else { continue };
                let by = deadline.min(Moment::now() + REST);
                match connection.receive_all(questions, by).and_then(|replies| read(&member.server, replies)) {
                    Ok(voice) => {
                        (member.owes, member.failure) = (false, None);
                        heard.push(voice);
                    }
                    Err(failure) => member.fail(failure),
                }
            }
        }
        heard
    }

    /// Waits until one of those that owe an answer has sent something. Returns which have; none at the deadline, or if none owes one.
    fn ready(&self, deadline: Moment) -> Vec<usize> {
        let owing: Vec<(usize, &Connection)> = self
            .members
            .iter()
            .enumerate()
            .filter(|(_, member)| member.owes)
            .filter_map(|(at, member)| Some((at, member.connection.as_ref()?)))
            .collect();
        let mut fds: Vec<PollFd<'_>> = owing.iter().map(|(_, connection)| readable(*connection)).collect();
        while !fds.is_empty() {
            let left = deadline.since(Moment::now());
            let millis = if left.is_zero() { 0 } else { i32::try_from(left.as_millis() + 1).unwrap_or(i32::MAX) };
            match poll(&mut fds, PollTimeout::try_from(millis).unwrap_or(PollTimeout::MAX)) {
                Err(Errno::EINTR) => {}
                Err(_) => return Vec::new(),
                Ok(0) if left.is_zero() => return Vec::new(),
                Ok(0) => {}
                Ok(_) => break,
            }
        }
        let is_ready = |fd: &PollFd<'_>| fd.revents().is_some_and(|events| !events.is_empty());
        owing.iter().zip(&fds).filter(|(_, fd)| is_ready(fd)).map(|((at, _), _)| *at).collect()
    }

    /// Returns those that have failed, and why.
    pub(super) fn failures(&self) -> impl Iterator<Item = (&Server, &Failure)> {
        self.members.iter().filter_map(|member| Some((&member.server, member.failure.as_ref()?)))
    }

    /// Returns why the first of those that have failed has.
    pub(super) fn failure(&self) -> Option<(&Server, &Failure)> {
        self.failures().next()
    }

    /// Returns the same in words, of each.
    pub(super) fn complaints(&self) -> Vec<String> {
        self.failures().map(|(server, failure)| format!("{:#}", failure.explain(server))).collect()
    }
}

impl Member {
    /// Reads the answer that is still owed, so that the next one is to what is asked next. Drops a connection that was closed.
    fn catch_up(&mut self, questions: &[Cmd]) {
        let Some(connection) = &mut self.connection else { return };
        let owes = std::mem::take(&mut self.owes);
        let patience = if owes { PollTimeout::try_from(REST).unwrap_or(PollTimeout::ZERO) } else { PollTimeout::ZERO };
        let has_come = poll(&mut [readable(&*connection)], patience).is_ok_and(|count| count > 0);
        match (owes, has_come) {
            (true, true) if connection.receive_all(questions, Moment::now() + REST).is_ok() => {}
            (true, _) => self.fail(Failure::NoAnswer("did not answer in time")),
            // Nothing was asked: this is its end.
            (false, true) => self.connection = None,
            (false, false) => {}
        }
    }

    fn fail(&mut self, failure: Failure) {
        self.connection = None;
        self.owes = false;
        self.failure = Some(failure);
    }
}
