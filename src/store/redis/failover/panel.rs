//! Servers that are all asked the same, some of which need not answer.
//!
//! It connects to all of them and reads from all of them at the same time, and never waits for one alone: a server that hangs
//! costs the others nothing.

use std::sync::Arc;
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::{PollFd, PollTimeout, poll};
use redis::Cmd;

use super::{majority, tls_for};
use crate::net::dial::{Dialing, Progress};
use crate::net::resolve::too_slow;
use crate::net::tls::Tls;
use crate::store::redis::connection::{Connection, Failure, Replies};
use crate::store::redis::url::Server;
use crate::sys::clock::Moment;
use crate::sys::wait::readable;

/// How long the rest of an answer may take once its beginning has come, and how old an unanswered question may be when the
/// next one is asked. After this time, the servers that were left aside are asked, too.
pub(super) const REST: Duration = Duration::from_millis(250);

/// The servers, each with its connection.
pub(super) struct Panel {
    members: Vec<Member>,
    /// The latest questions.
    questions: Arc<Vec<Cmd>>,
}

struct Member {
    server: Server,
    /// What TLS needs, if it is used; set at the first connection.
    tls: Option<Tls>,
    line: Line,
    /// The questions that it has not answered yet; only while its line is open.
    owes: Option<Debt>,
    /// Where it stands in the present round.
    part: Part,
    /// Why it has not answered, if it failed last.
    failure: Option<Failure>,
}

enum Line {
    Closed,
    Dialing(Box<Dialing>),
    Open(Connection),
}

struct Debt {
    questions: Arc<Vec<Cmd>>,
    since: Moment,
}

/// Where a member stands in the present round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    /// It is not asked while the others are enough.
    Aside,
    /// It is to be asked as soon as its line is open and it owes no earlier answer.
    ToAsk,
    /// It was asked.
    Asked,
    /// It has answered, or failed.
    Done,
}

impl Panel {
    /// Takes these servers, without connecting.
    pub(super) fn new(servers: &[Server]) -> Self {
        let mut panel = Panel { members: Vec::new(), questions: Arc::default() };
        for server in servers {
            panel.add(server.clone());
        }
        panel
    }

    /// Adds a server, unless it is there already. It is asked from the next round on, or by [`Panel::ask_rest`].
    pub(super) fn add(&mut self, server: Server) {
        if self.servers().all(|it| it.endpoint != server.endpoint) {
            self.members.push(Member {
                server,
                tls: None,
                line: Line::Closed,
                owes: None,
                part: Part::Aside,
                failure: None,
            });
        }
    }

    /// Keeps only these servers, with their connections, and adds the missing ones.
    pub(super) fn become_these(&mut self, servers: Vec<Server>) {
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

    /// Begins a round: sends `questions` to all servers, connecting where necessary, and waits for none. While `enough` of
    /// them are connected, those that have failed are left aside.
    pub(super) fn send(&mut self, questions: &[Cmd], enough: usize, deadline: Moment) {
        self.questions = Arc::new(questions.to_vec());
        for member in &mut self.members {
            member.catch_up(deadline);
        }
        let is_there = |member: &&Member| matches!(member.line, Line::Open(_)) && member.owes.is_none();
        let are_enough = self.members.iter().filter(is_there).count() >= enough;
        for member in &mut self.members {
            let is_away = matches!(member.line, Line::Closed) && member.failure.is_some();
            member.part = if are_enough && is_away { Part::Aside } else { Part::ToAsk };
            member.ask(&self.questions, deadline);
        }
    }

    /// Asks the servers that were left aside, and those that were added since.
    pub(super) fn ask_rest(&mut self, deadline: Moment) {
        for member in self.members.iter_mut().filter(|member| member.part == Part::Aside) {
            member.part = Part::ToAsk;
            member.ask(&self.questions, deadline);
        }
    }

    /// Reads the answers with `read`, which is also given the server, and adds the results to `heard`; ends when `is_enough`
    /// accepts them, all servers have answered or failed, or the deadline comes. If the others turn out not to be enough, the
    /// servers that were left aside are asked, too.
    pub(super) fn hear<V>(
        &mut self,
        mut heard: Vec<V>,
        deadline: Moment,
        mut read: impl FnMut(&Server, Replies) -> Result<V, Failure>,
        is_enough: impl Fn(&[V]) -> bool,
    ) -> Vec<V> {
        let alone_until = Moment::now() + REST.min(half_left(deadline));
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
        self.members.iter_mut().for_each(Member::end_look_up);
    }

    /// Counts the servers that have not answered as failed.
    pub(super) fn give_up(&mut self) {
        self.members.iter_mut().for_each(Member::give_up);
    }

    /// Waits until a server that takes part in the round needs attention. Returns `false` at the deadline, or if none takes
    /// part any more.
    fn await_any(&self, deadline: Moment) -> bool {
        loop {
            let due = self.members.iter().filter_map(Member::due).min();
            let mut fds: Vec<PollFd<'_>> = self.members.iter().filter_map(Member::awaits).collect();
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

    /// Returns the failure that stands for all: a transient one, unless so many servers fail permanently that a little later
    /// there cannot be a majority either.
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
    pub(super) fn complaints(&self) -> Vec<String> {
        self.failures().map(|(server, failure)| format!("{:#}", failure.explain(server))).collect()
    }
}

impl Member {
    /// Reads an answer to an earlier question, if it has come. Drops a connection that was closed, that owes an answer for
    /// too long, or that could not be made in the time of an earlier request.
    fn catch_up(&mut self, deadline: Moment) {
        let connection = match &mut self.line {
            Line::Closed => return,
            Line::Dialing(dialing) if dialing.is_late() => return self.line = Line::Closed,
            Line::Dialing(dialing) => return dialing.set_deadline(deadline),
            Line::Open(connection) => connection,
        };
        let has_come = is_readable(connection);
        match &self.owes {
            Some(debt) if has_come => match connection.receive_all(&debt.questions, deadline.min(Moment::now() + REST))
            {
                Ok(_) => self.owes = None,
                Err(failure) => self.fail(failure),
            },
            Some(debt) if Moment::now().since(debt.since) > REST => self.fail(silent()),
            // Nothing was asked, so this is the end of the stream.
            None if has_come => self.line = Line::Closed,
            _ => {}
        }
    }

    /// Sends the questions if it is to be asked and can be; begins to connect if it is not connected.
    fn ask(&mut self, questions: &Arc<Vec<Cmd>>, deadline: Moment) {
        if self.part != Part::ToAsk {
            return;
        }
        if matches!(self.line, Line::Closed) {
            match self.dial(deadline) {
                Ok(dialing) => self.line = Line::Dialing(Box::new(dialing)),
                Err(failure) => self.fail(failure),
            }
        }
        let (Line::Open(connection), None) = (&mut self.line, &self.owes) else { return };
        match connection.send(questions, deadline) {
            Ok(()) => {
                self.owes = Some(Debt { questions: Arc::clone(questions), since: Moment::now() });
                self.part = Part::Asked;
            }
            Err(failure) => self.fail(failure),
        }
    }

    fn dial(&mut self, deadline: Moment) -> Result<Dialing, Failure> {
        if self.tls.is_none() {
            self.tls = tls_for(&self.server).map_err(|why| Failure::Unreachable(std::io::Error::other(why)))?;
        }
        Dialing::start(&self.server.endpoint, deadline).map_err(Failure::Unreachable)
    }

    /// Returns whether it still takes part in the round.
    fn is_awaited(&self) -> bool {
        matches!(self.part, Part::ToAsk | Part::Asked)
    }

    fn awaits(&self) -> Option<PollFd<'_>> {
        match &self.line {
            _ if !self.is_awaited() => None,
            Line::Closed => None,
            Line::Dialing(dialing) => Some(dialing.awaits()),
            Line::Open(connection) => Some(readable(connection)),
        }
    }

    /// Returns when a connection in progress needs attention.
    fn due(&self) -> Option<Moment> {
        match &self.line {
            Line::Dialing(dialing) if self.is_awaited() => Some(dialing.due()),
            _ => None,
        }
    }

    /// Does what can be done without waiting. If an answer to the questions has come, returns what `read` makes of it.
    fn go_on<V>(
        &mut self,
        questions: &Arc<Vec<Cmd>>,
        deadline: Moment,
        read: &mut impl FnMut(&Server, Replies) -> Result<V, Failure>,
    ) -> Option<V> {
        if !self.is_awaited() {
            return None;
        }
        match std::mem::replace(&mut self.line, Line::Closed) {
            Line::Closed => {}
            Line::Dialing(dialing) => {
                match dialing.go_on(self.tls.as_ref()) {
                    Ok(Progress::Pending(dialing)) => self.line = Line::Dialing(Box::new(dialing)),
                    Ok(Progress::Done(stream)) => self.line = Line::Open(Connection::over(stream, &self.server)),
                    Err(error) => self.fail(Failure::Unreachable(error)),
                }
                self.ask(questions, deadline);
            }
            Line::Open(connection) if !is_readable(&connection) => self.line = Line::Open(connection),
            Line::Open(mut connection) => {
                let asked = self.owes.take().map_or_else(|| Arc::clone(questions), |debt| debt.questions);
                let replies = connection.receive_all(&asked, deadline.min(Moment::now() + REST));
                self.line = Line::Open(connection);
                let is_answer = self.part == Part::Asked;
                match replies.and_then(|replies| is_answer.then(|| read(&self.server, replies)).transpose()) {
                    Ok(Some(voice)) => {
                        (self.part, self.failure) = (Part::Done, None);
                        return Some(voice);
                    }
                    // That was the answer to an earlier question.
                    Ok(None) => self.ask(questions, deadline),
                    Err(failure) => self.fail(failure),
                }
            }
        }
        None
    }

    /// Ends the child process that looks up its name, if it still runs.
    fn end_look_up(&mut self) {
        if matches!(&self.line, Line::Dialing(dialing) if dialing.is_looking_up()) {
            self.fail(Failure::Unreachable(too_slow()));
        }
    }

    /// Ends its part in the round, whose time is over.
    fn give_up(&mut self) {
        if !self.is_awaited() {
            return;
        }
        match std::mem::replace(&mut self.line, Line::Closed) {
            Line::Open(_) => self.fail(silent()),
            Line::Dialing(dialing) => {
                let error = dialing.go_on(self.tls.as_ref()).err();
                self.fail(Failure::Unreachable(error.unwrap_or_else(|| std::io::ErrorKind::TimedOut.into())));
            }
            Line::Closed => {}
        }
    }

    fn fail(&mut self, failure: Failure) {
        self.line = Line::Closed;
        self.owes = None;
        self.part = Part::Done;
        self.failure = Some(failure);
    }
}

/// Returns half of the time that is left.
pub(super) fn half_left(deadline: Moment) -> Duration {
    deadline.since(Moment::now()) / 2
}

fn silent() -> Failure {
    Failure::NoAnswer("did not answer in time")
}

fn is_readable(connection: &Connection) -> bool {
    poll(&mut [readable(connection)], PollTimeout::ZERO).is_ok_and(|count| count > 0)
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
        let mut panel = Panel::new(&servers);
        let question = [redis::cmd("PING")];
        let started = Moment::now();
        for enough in [usize::MAX, 1, usize::MAX, 1] {
            let deadline = Moment::now() + Duration::from_mins(1);
            panel.send(&question, enough, deadline);
            let heard = panel.hear(Vec::new(), deadline, |_, replies| Ok(replies.len()), |heard| !heard.is_empty());
            assert_eq!(heard, [1]);
        }
        // If each were waited for alone, even only for REST, it would take 25 s.
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
        let mut panel = Panel::new(&[server_of(&full), server_of(&living)]);
        answering(living);
        let mut ask = |time: Duration, count: usize| {
            let deadline = Moment::now() + time;
            panel.send(&[redis::cmd("PING")], usize::MAX, deadline);
            panel.hear(Vec::new(), deadline, |_, replies| Ok(replies.len()), |heard| heard.len() >= count)
        };
        // The first server is still being connected to when the time is over.
        assert_eq!(ask(Duration::from_millis(200), 2), [1]);
        answering(full);
        drop(queue);
        assert_eq!(ask(Duration::from_mins(1), 2), [1, 1]);
    }

    #[test]
    fn an_answer_that_comes_late_is_not_taken_for_another_one() {
        let (first, second) = (listener(), listener());
        let mut panel = Panel::new(&[server_of(&first), server_of(&second)]);
        answering(second);
        let deadline = Moment::now() + Duration::from_mins(1);
        let mut ask = |questions: &[Cmd], count: usize| {
            panel.send(questions, usize::MAX, deadline);
            panel.hear(Vec::new(), deadline, |_, replies| Ok(replies.len()), |heard| heard.len() >= count)
        };
        assert_eq!(ask(&[redis::cmd("PING")], 1), [1]);
        // The first server owes an answer to one question, and is to answer two.
        answering(first);
        assert_eq!(ask(&[redis::cmd("PING"), redis::cmd("PING")], 2), [2, 2]);
    }
}
