//! A client of the cluster: it asks one member at a time, and the next one if that fails.

use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::api::{self, LoggedIn};
use super::failure::Failure;
use super::http::{Connection, Request, Response};
use super::url::Cluster;
use crate::lock::state::millis;
use crate::net::endpoint::Endpoint;
use crate::net::tls::{Tls, Verification};
use crate::sys::backoff::Backoff;
use crate::sys::clock::Moment;

/// The least time that a member is given while others may answer.
const SHARE_MIN: Duration = Duration::from_millis(100);

/// The same for a log-in and what follows it: etcd takes a while to check a password.
const LOGIN_SHARE_MIN: Duration = Duration::from_millis(300);

/// A client of the cluster.
pub(super) struct Client {
    pub(super) cluster: Cluster,
    /// What TLS needs to reach the members, if it is used.
    tls: Option<Tls>,
    /// The member that is asked.
    pub(super) member: usize,
    connection: Option<Connection>,
    /// Whether the connection has been idle since before the present operation: it may have been closed for unrelated
    /// reasons.
    is_idle: bool,
    /// The token of our log-in.
    token: Option<String>,
    /// What the clock of the member that has answered last showed.
    pub(super) clock: Option<MemberClock>,
    /// How long the last answer took.
    pub(super) round_trip: Duration,
    /// How many bytes the answers had.
    pub(super) received: usize,
    /// Whether an unanswered write may have been carried out since this was last set to `false`.
    pub(super) may_be_done: bool,
}

/// What a member's clock showed, in milliseconds of Unix time, and when.
pub(super) type MemberClock = (u64, Moment);

/// Whether a flight changes anything.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Effect {
    Reads,
    Writes,
}

impl Client {
    /// Returns a client that is not connected yet. Fails if TLS is impossible with these members or files, and says
    /// why.
    pub(super) fn new(cluster: Cluster) -> Result<Self, String> {
        // All members are reached with the same files.
        let files = cluster.members.first().and_then(Endpoint::tls_files);
        let tls = files.map(|files| Tls::for_servers(&cluster.members, files, Verification::Full)).transpose()?;
        Ok(Client {
            cluster,
            tls,
            member: 0,
            connection: None,
            is_idle: false,
            token: None,
            clock: None,
            round_trip: Duration::ZERO,
            received: 0,
            may_be_done: false,
        })
    }

    /// Returns the time, in milliseconds of Unix time: what the member's clock showed at its last answer, plus the time
    /// since then. Setting our clock has no effect. Fails if no member has said what its clock shows.
    pub(super) fn now_ms(&self) -> Result<u64, Failure> {
        let (unix_ms, at) = self.clock.ok_or(Failure::UnexpectedReply("an answer without a date"))?;
        Ok(unix_ms.saturating_add(millis(Moment::now().since(at))))
    }

    /// Begins an operation.
    pub(super) fn begin(&mut self) {
        self.is_idle = true;
    }

    /// Sends the requests in one flight, and returns their answers, including rejections. Members are tried in turn,
    /// each with its share of the time.
    ///
    /// A member without a leader loses what it is asked, and one that was just cut off does not know it yet. So as soon
    /// as one member has not answered, the others get shorter shares, and are asked again and again: a new leader may
    /// be there a little later.
    pub(super) fn exchange(
        &mut self,
        flight: &[Request],
        effect: Effect,
        deadline: Moment,
    ) -> Result<Vec<Response>, Failure> {
        let members = self.cluster.members.len();
        let mut failures: Vec<(usize, Failure)> = Vec::new();
        let mut backoff = Backoff::new();
        loop {
            let now = Moment::now();
            let has_elections = failures.iter().any(|(_, failure)| failure.is_of_election());
            let must_log_in = self.cluster.login.is_some() && self.token.is_none();
            let least = if must_log_in { LOGIN_SHARE_MIN } else { SHARE_MIN }.max(4 * self.round_trip);
            // The leader may be among the members that have failed. Then the next one loses what it is asked, so it
            // gets no more time because of them. But a process that has had no answer yet has nothing to lose, and its
            // first may take long.
            let failed = if self.round_trip.is_zero() { failures.len() } else { 0 };
            let share = share(deadline.since(now), members, failed, has_elections, least);
            let was_idle = std::mem::take(&mut self.is_idle) && self.connection.is_some();
            let failure = match self.ask(flight, effect, now + share) {
                Ok(responses) => return Ok(responses),
                Err(failure) => failure,
            };
            self.connection = None;
            if matches!(failure, Failure::Closed) && was_idle {
                continue;
            }
            if !failure.is_of_member() {
                return Err(failure);
            }
            failures.push((self.member, failure));
            self.member = (self.member + 1) % members;
            if failures.len().is_multiple_of(members) {
                let last_round = &failures[failures.len() - members..];
                let goes_on = members > 1 && last_round.iter().any(|(_, failure)| failure.is_of_election());
                let pause = backoff.next();
                if !goes_on || Moment::now() + pause >= deadline {
                    break;
                }
                thread::sleep(pause);
            }
        }
        // The member that was asked first may be the leader that is away, so do not ask it first the next time.
        self.member = (self.member + 1) % members;
        Err(self.worst(failures))
    }

    /// Returns the failure that says most about why no member has answered.
    fn worst(&self, mut failures: Vec<(usize, Failure)>) -> Failure {
        let all_unreachable = failures.iter().all(|(_, failure)| matches!(failure, Failure::Unreachable { .. }));
        if all_unreachable && failures.len() > 1 {
            let (mut reasons, mut advice) = (Vec::new(), Vec::new());
            for (at, failure) in failures {
                let Failure::Unreachable { why, advice: what_to_do } = failure else { continue };
                reasons.push(format!("{}: {why}", self.cluster.members[at]));
                // The same for several members is said once.
                if !advice.contains(&what_to_do) {
                    advice.push(what_to_do);
                }
            }
            return Failure::Unreachable { why: reasons.join("; "), advice: advice.concat() };
        }
        let rank = |failure: &Failure| match failure {
            Failure::Rejected(rejection) if !rejection.is_of_proxy() => 3,
            Failure::UnexpectedReply(_) | Failure::Rejected(_) => 2,
            Failure::Closed | Failure::Silent => 1,
            _ => 0,
        };
        failures.sort_by_key(|(_, failure)| rank(failure));
        match failures.pop() {
            Some((_, Failure::Closed)) if self.clock.is_none() => Failure::HungUp,
            worst => worst.map_or(Failure::Closed, |(_, failure)| failure),
        }
    }

    /// Asks the present member. Logs in again, once, if the member no longer knows our log-in.
    fn ask(&mut self, flight: &[Request], effect: Effect, deadline: Moment) -> Result<Vec<Response>, Failure> {
        let mut logs_in = true;
        let mut responses = Vec::new();
        loop {
            self.log_in(deadline)?;
            let mut connection = self.take_connection(deadline)?;
            let sent_at = Moment::now();
            let answers = converse(&mut connection, &flight[responses.len()..], self.token.as_deref(), deadline);
            let failure = match answers {
                Ok(more) => {
                    self.received += more.iter().map(|response| response.body.len()).sum::<usize>();
                    self.round_trip = Moment::now().since(sent_at);
                    self.keep_connection(connection, &more);
                    responses.extend(more);
                    if responses.len() < flight.len() {
                        // The member has closed the connection, and has not carried out the rest; but a proxy may have
                        // sent it on.
                        self.may_be_done |= effect == Effect::Writes;
                        continue;
                    }
                    if let Some(date) = responses.iter().rev().find_map(|response| response.date) {
                        self.clock = Some((member_ms(our_ms(), date), Moment::now()));
                    }
                    let of_member = |response| Failure::of_response(response).filter(Failure::is_of_member);
                    match responses.iter().find_map(of_member) {
                        Some(failure) => failure,
                        None if logs_in && self.token.is_some() && responses.iter().any(has_no_token) => {
                            self.token = None;
                            logs_in = false;
                            responses.clear();
                            continue;
                        }
                        None => return Ok(responses),
                    }
                }
                Err(failure) => failure,
            };
            if effect == Effect::Writes && failure.leaves_outcome_open() {
                self.may_be_done = true;
            }
            return Err(failure);
        }
    }

    fn take_connection(&mut self, deadline: Moment) -> Result<Connection, Failure> {
        self.connection.take().map_or_else(|| self.dial(deadline), Ok)
    }

    /// Keeps the connection for the next request, unless the member closes it after these answers.
    fn keep_connection(&mut self, connection: Connection, answers: &[Response]) {
        self.connection = answers.iter().all(|answer| !answer.is_last).then_some(connection);
    }

    /// Opens another connection to the present member.
    pub(super) fn dial(&self, deadline: Moment) -> Result<Connection, Failure> {
        let member = &self.cluster.members[self.member];
        Connection::open(member, self.tls.as_ref(), deadline).map_err(|error| Failure::of_dial(&error, &self.cluster))
    }

    fn log_in(&mut self, deadline: Moment) -> Result<(), Failure> {
        let (Some((user, password)), None) = (&self.cluster.login, &self.token) else { return Ok(()) };
        let request = api::log_in(user, password);
        let mut connection = self.take_connection(deadline)?;
        let responses = converse(&mut connection, &[request], None, deadline)?;
        self.keep_connection(connection, &responses);
        let response = responses.first().ok_or(Failure::Closed)?;
        if let Some(failure) = Failure::of_response(response) {
            return Err(failure);
        }
        self.token = Some(api::read::<LoggedIn>(&response.body)?.token);
        Ok(())
    }

    /// Opens a separate connection to the present member, and watches `key` there, as [`api::watch`] says.
    pub(super) fn watch(&self, key: &str, revision: i64, deadline: Moment) -> Result<Connection, Failure> {
        let mut connection = self.dial(deadline)?;
        let request = api::watch(key, revision);
        connection.start_stream(request, self.token.as_deref(), "\"created\":true", deadline)?;
        Ok(connection)
    }
}

/// Returns how much of the time `left` the next of so many members gets, but not below `least`: an equal share among
/// those that have not `failed`, or a shorter one if there may be an election.
fn share(left: Duration, members: usize, failed: usize, has_elections: bool, least: Duration) -> Duration {
    let parts = if has_elections { 2 * members } else { members.saturating_sub(failed) };
    let parts = u32::try_from(parts.max(1)).unwrap_or(u32::MAX);
    (left / parts).max(least).min(left)
}

/// Sends the requests in one flight, and reads their answers; fewer if the member closes the connection after one of
/// them.
fn converse(
    connection: &mut Connection,
    flight: &[Request],
    token: Option<&str>,
    deadline: Moment,
) -> Result<Vec<Response>, Failure> {
    connection.send(flight, token, deadline)?;
    let mut responses: Vec<Response> = Vec::new();
    while responses.len() < flight.len() && responses.last().is_none_or(|last| !last.is_last) {
        responses.push(connection.receive(deadline)?);
    }
    Ok(responses)
}

fn has_no_token(response: &Response) -> bool {
    matches!(Failure::of_response(response), Some(Failure::Rejected(rejection)) if rejection.is_unknown_token())
}

/// How exact the time of a member is, in milliseconds: an answer's date is in whole seconds.
pub(super) const DATE_DOUBT_MS: u64 = 999;

/// Returns what our clock shows, in milliseconds of Unix time.
fn our_ms() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_millis()).unwrap_or(u64::MAX)
}

/// Returns the milliseconds of a clock that shows this `date`, in whole seconds: ours supplies the fraction, unless the
/// two disagree.
fn member_ms(our_ms: u64, date: u64) -> u64 {
    let least = date.saturating_mul(1000);
    our_ms.clamp(least, least.saturating_add(DATE_DOUBT_MS))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::scripted;
    use crate::store::etcd::url::parse;

    #[test]
    fn the_same_advice_is_said_once() {
        let Ok(client) = Client::new(parse("etcd://a,b,c").expect("is right")) else { panic!("needs no files") };
        let failure = |why: &str, advice: &str| Failure::Unreachable { why: why.into(), advice: advice.into() };
        let all = ["; write etcd://", "", "; write etcd://"].map(|advice| failure("no", advice));
        let worst = client.worst(all.into_iter().enumerate().collect()).explain(&client.cluster).to_string();
        assert!(worst.ends_with(": a:2379: no; b:2379: no; c:2379: no; write etcd://"), "{worst}");
    }

    #[test]
    fn each_member_gets_a_share_of_the_time() {
        let ms = Duration::from_millis;
        let share = |left, failed, has_elections| share(ms(left), 3, failed, has_elections, ms(100));
        assert_eq!([0, 1, 2].map(|failed| share(600, failed, false)), [ms(200), ms(300), ms(600)]);
        assert_eq!(share(1200, 1, true), ms(200));
        for has_elections in [false, true] {
            assert_eq!(share(150, 0, has_elections), ms(100), "the least");
            assert_eq!(share(30, 0, has_elections), ms(30), "all that is left");
        }
    }

    /// Returns an answer with this body, after which the member keeps the connection or closes it.
    fn answer(body: &str, connection: &str) -> String {
        format!("HTTP/1.1 200 OK\r\nConnection: {connection}\r\nContent-Length: {}\r\n\r\n{body}", body.len())
    }

    #[test]
    fn what_follows_a_closed_connection_is_sent_over_another_one() {
        let cluster = parse("etcd://127.0.0.1").expect("is a URL");
        let mut client = Client::new(cluster).expect("needs no files");
        let deadline = Moment::now() + Duration::from_mins(1);
        let (first, rest) = (answer("1", "close"), [answer("2", "keep-alive"), answer("3", "Close")].concat());
        let bodies = scripted::with([first, rest, answer("4", "keep-alive")].map(String::into_bytes), || {
            let mut ask = |count| {
                let flight = vec![api::alarms(); count];
                let responses = client.exchange(&flight, Effect::Writes, deadline).expect("all are answered");
                responses.into_iter().map(|response| response.body).collect::<Vec<_>>().concat()
            };
            [ask(3), ask(1)].concat()
        });
        assert_eq!(String::from_utf8_lossy(&bodies), "1234");
    }

    #[test]
    fn a_clock_is_compared_by_whole_seconds() {
        for (ours, date, shown) in [(5_000, 5, 5_000), (5_999, 5, 5_999), (6_200, 5, 5_999), (3_000, 5, 5_000)] {
            assert_eq!(member_ms(ours, date), shown, "{ours} {date}");
        }
    }
}
