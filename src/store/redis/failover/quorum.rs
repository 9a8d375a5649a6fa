//! Servers that are all asked the same, some of which need not answer.
//!
//! It connects to all of them and reads from all of them at the same time, and never waits for one alone: a server that
//! hangs costs the others nothing.

use std::sync::Arc;
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::{PollFd, PollTimeout, poll};
use redis::Cmd;

use super::majority;
use super::voter::{SILENCE_MAX, Voter};
use crate::net::tls::Tls;
use crate::store::redis::connection::Replies;
use crate::store::redis::failure::Failure;
use crate::store::redis::url::Server;
use crate::sys::clock::Moment;

/// The servers, each with its connection.
pub(super) struct Quorum {
    members: Vec<Voter>,
    /// What TLS needs to reach them, if it is used.
    tls: Option<Tls>,
    /// The latest questions.
    questions: Arc<Vec<Cmd>>,
}

impl Quorum {
    /// Takes these servers, which are reached with `tls` if it is used, without connecting.
    pub(super) fn new(servers: &[Server], tls: Option<Tls>) -> Self {
        let mut panel = Quorum { members: Vec::new(), tls, questions: Arc::default() };
        for server in servers {
            panel.add(server.clone());
        }
        panel
    }

    /// Adds a server, unless it is there already. It is asked from the next round on, or by [`Quorum::ask_rest`].
    pub(super) fn add(&mut self, server: Server) {
        if self.servers().all(|it| it.endpoint != server.endpoint) {
            self.members.push(Voter::new(server, self.tls.clone()));
        }
    }

    /// Keeps only these servers, with their connections, and adds the missing ones.
    pub(super) fn replace_members(&mut self, servers: Vec<Server>) {
        self.members.retain(|member| servers.iter().any(|server| server.endpoint == member.server.endpoint));
        for server in servers {
            self.add(server);
        }
    }

    /// Returns the servers.
    pub(super) fn servers(&self) -> impl Iterator<Item = &Server> {
        self.members.iter().map(|member| &member.server)
    }

    /// Returns how many servers there are.
    pub(super) fn len(&self) -> usize {
        self.members.len()
    }

    /// Begins a round: sends `questions` to all servers, connecting where necessary, and waits for none. While `enough`
    /// of them are connected, those that have failed are left aside.
    pub(super) fn send(&mut self, questions: &[Cmd], enough: usize, deadline: Moment) {
        self.questions = Arc::new(questions.to_vec());
        for member in &mut self.members {
            member.catch_up(deadline);
        }
        let are_enough = self.members.iter().filter(|member| member.is_ready()).count() >= enough;
        for member in &mut self.members {
            if are_enough && member.is_away() {
                member.leave_aside();
            } else {
                member.take_part(&self.questions, deadline);
            }
        }
    }

    /// Asks the servers that were left aside, and those that were added since.
    pub(super) fn ask_rest(&mut self, deadline: Moment) {
        for member in self.members.iter_mut().filter(|member| member.is_left_aside()) {
            member.take_part(&self.questions, deadline);
        }
    }

    /// Reads the answers with `read`, which is also given the server, and adds the results to `heard`; ends when
    /// `is_enough` accepts them, all servers have answered or failed, or the deadline comes. If the others turn out not
    /// to be enough, the servers that were left aside are asked, too.
    pub(super) fn read_answers<V>(
        &mut self,
        mut heard: Vec<V>,
        deadline: Moment,
        mut read: impl FnMut(&Server, Replies) -> Result<V, Failure>,
        is_enough: impl Fn(&[V]) -> bool,
    ) -> Vec<V> {
        let alone_until = Moment::now() + SILENCE_MAX.min(half_left(deadline));
        let mut are_alone = true;
        while !is_enough(&heard) {
            let is_silent = !self.await_any(if are_alone { alone_until } else { deadline });
            if is_silent && std::mem::take(&mut are_alone) {
                self.ask_rest(deadline);
                continue;
            }
            if is_silent {
                break;
            }
            for member in &mut self.members {
                heard.extend(member.go_on(&self.questions, deadline, &mut read));
            }
        }
        heard
    }

    /// Ends the child processes that look up names: they must not outlast the request.
    pub(super) fn end_look_ups(&mut self) {
        self.members.iter_mut().for_each(Voter::end_look_up);
    }

    /// Counts the servers that have not answered as failed.
    pub(super) fn give_up(&mut self) {
        self.members.iter_mut().for_each(Voter::give_up);
    }

    /// Waits until a server that takes part in the round needs attention. Returns `false` at the deadline, or if none
    /// takes part any more.
    fn await_any(&self, deadline: Moment) -> bool {
        loop {
            let due = self.members.iter().filter_map(Voter::due).min();
            let mut fds: Vec<PollFd<'_>> = self.members.iter().filter_map(Voter::awaits).collect();
            let now = Moment::now();
            if fds.is_empty() {
                return false;
            }
            let until = due.map_or(deadline, |due| due.min(deadline));
            let left = until.since(now);
            let millis = if left.is_zero() { 0 } else { i32::try_from(left.as_millis() + 1).unwrap_or(i32::MAX) };
            match poll(&mut fds, PollTimeout::try_from(millis).unwrap_or(PollTimeout::MAX)) {
                // What has arrived counts, even if this process was stopped past the deadline.
                Ok(1..) => return true,
                Ok(_) if now >= deadline => return false,
                Ok(_) if now >= until => return true,
                Ok(_) | Err(Errno::EINTR) => {}
                Err(_) => return false,
            }
        }
    }

    /// Returns the servers that have failed, and why.
    pub(super) fn failures(&self) -> impl Iterator<Item = (&Server, &Failure)> {
        self.members.iter().filter_map(|member| Some((&member.server, member.failure.as_ref()?)))
    }

    /// Returns the failure that stands for all: a transient one, unless so many servers fail permanently that a little
    /// later there cannot be a majority either.
    pub(super) fn failure(&self) -> Option<(&Server, &Failure)> {
        let lasting = self.failures().filter(|(_, failure)| !failure.is_transient()).count();
        let may_be_enough = self.members.len() - lasting >= majority(self.members.len());
        let counts = |(_, failure): &(&Server, &Failure)| failure.is_transient() == may_be_enough;
        self.failures().find(counts).or_else(|| self.failures().next())
    }

    /// Returns that failure in words; if it is transient, also the first permanent one, which may be the one to fix.
    pub(super) fn why(&self) -> String {
        let lasting = self.failures().find(|(_, failure)| !failure.is_transient());
        let passing = self.failure().filter(|(_, failure)| failure.is_transient());
        let in_words = |(server, failure): (&Server, &Failure)| format!("; {:#}", failure.explain(server));
        passing.into_iter().chain(lasting).map(in_words).collect()
    }

    /// Returns the failure of each server in words.
    pub(super) fn failure_texts(&self) -> Vec<String> {
        self.failures().map(|(server, failure)| format!("{:#}", failure.explain(server))).collect()
    }
}

/// Returns half of the time that is left.
pub(super) fn half_left(deadline: Moment) -> Duration {
    deadline.since(Moment::now()) / 2
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::{TcpListener, TcpStream};
    use std::thread;

    use super::*;
    use crate::net::endpoint::Endpoint;
    use crate::store::redis::url;

    /// Returns a server whose address is the listener's.
    fn server_of(listener: &TcpListener) -> Server {
        let port = listener.local_addr().expect("its address").port();
        let server = url::parse("redis://127.0.0.1").expect("is a URL").server;
        Server { endpoint: Endpoint::Tcp { host: "127.0.0.1".into(), port, tls: None }, ..server }
    }

    fn listener() -> TcpListener {
        TcpListener::bind("127.0.0.1:0").expect("a free port")
    }

    /// Answers each PING.
    fn answering(listener: TcpListener) {
        thread::spawn(move || {
            for client in listener.incoming() {
                let (mut client, mut asked) = (client.expect("a client"), [0; 4096]);
                while let Ok(length @ 1..) = client.read(&mut asked) {
                    let count = asked[..length].windows(4).filter(|word| word == b"PING").count();
                    if client.write_all("+PONG\r\n".repeat(count).as_bytes()).is_err() {
                        break;
                    }
                }
            }
        });
    }

    #[test]
    fn those_that_are_silent_cost_the_others_nothing() {
        let silent: Vec<TcpListener> = (0..100).map(|_| listener()).collect();
        let living = listener();
        let mut servers: Vec<Server> = silent.iter().map(server_of).collect();
        servers.push(server_of(&living));
        answering(living);
        let mut panel = Quorum::new(&servers, None);
        let question = [redis::cmd("PING")];
        let started = Moment::now();
        for enough in [usize::MAX, 1, usize::MAX, 1] {
            let deadline = Moment::now() + Duration::from_mins(1);
            panel.send(&question, enough, deadline);
            let heard =
                panel.read_answers(Vec::new(), deadline, |_, replies| Ok(replies.len()), |heard| !heard.is_empty());
            assert_eq!(heard, [1]);
        }
        // If each were waited for alone, even only for SILENCE_MAX, it would take 25 s.
        assert!(Moment::now().since(started) < Duration::from_secs(15), "they were waited for");
    }

    #[test]
    fn a_connection_that_could_not_be_made_in_its_time_is_begun_anew() {
        let (full, living) = (listener(), listener());
        nix::sys::socket::listen(&full, nix::sys::socket::Backlog::new(0).expect("a length")).expect("it listens");
        let place = full.local_addr().expect("its address");
        let mut queue = Vec::new();
        while let Ok(waiting) = TcpStream::connect_timeout(&place, Duration::from_millis(200)) {
            queue.push(waiting);
        }
        let mut panel = Quorum::new(&[server_of(&full), server_of(&living)], None);
        answering(living);
        let mut ask = |time: Duration, count: usize| {
            let deadline = Moment::now() + time;
            panel.send(&[redis::cmd("PING")], usize::MAX, deadline);
            panel.read_answers(Vec::new(), deadline, |_, replies| Ok(replies.len()), |heard| heard.len() >= count)
        };
        assert_eq!(ask(Duration::from_mins(1), 1), [1]);
        // The first server is still being connected to when the time of this round is over.
        ask(Duration::ZERO, 2);
        answering(full);
        drop(queue);
        assert_eq!(ask(Duration::from_mins(1), 2), [1, 1]);
    }

    #[test]
    fn an_answer_that_comes_late_is_not_taken_for_another_one() {
        let (first, second) = (listener(), listener());
        let mut panel = Quorum::new(&[server_of(&first), server_of(&second)], None);
        answering(second);
        let deadline = Moment::now() + Duration::from_mins(1);
        let mut ask = |questions: &[Cmd], count: usize| {
            panel.send(questions, usize::MAX, deadline);
            panel.read_answers(Vec::new(), deadline, |_, replies| Ok(replies.len()), |heard| heard.len() >= count)
        };
        assert_eq!(ask(&[redis::cmd("PING")], 1), [1]);
        // The first server owes an answer to one question, and is to answer two.
        answering(first);
        assert_eq!(ask(&[redis::cmd("PING"), redis::cmd("PING")], 2), [2, 2]);
    }
}
