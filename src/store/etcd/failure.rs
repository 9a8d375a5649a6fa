//! Why a request to etcd failed, and what to do about it.

use std::io;

use anyhow::anyhow;
use nix::errno::Errno;

use super::api::{self, Refused};
use super::http::Response;
use super::url::Cluster;
use crate::net::tls_error::certificate_alert;
use crate::store::record_limit::RecordTooLong;
use crate::store::{RetryClass, StoreError, listing_limit};
use crate::text::escape::escaped;
use crate::text::shell;

/// Why a request failed.
#[derive(Clone, Debug)]
pub(in crate::store) enum Failure {
    /// No member could be reached: none has seen anything of this request.
    Unreachable(String),
    /// The process has no descriptor or memory left for a connection.
    NoResources(String),
    /// The process cannot wait for the answer.
    NoWait(Errno),
    /// The connection was closed before an answer came.
    Closed,
    /// No answer came in time.
    Silent,
    /// An answer came that etcd does not give; says what is wrong with it.
    NotEtcd(&'static str),
    /// Something between us and etcd has answered, with this HTTP status.
    Proxy(u16),
    /// The member rejects our certificate, with this TLS alert.
    BadCertificate(String),
    /// The member rejects our certificate because it has a common name, which could be taken for a user's.
    CommonName,
    /// etcd has rejected the request.
    Refused(ServerError),
    /// What is stored of this lock under an etcd `key` cannot be read.
    Broken { key: String, why: String },
    /// Others changed the lock before each of our attempts.
    Contended,
    /// The listing of all locks has reached its limit.
    ListsTooMuch,
    /// The fence of this lock, which is this number, cannot grow.
    FenceEnds(u64),
    /// The record of this lock would become too long.
    RecordTooLong(RecordTooLong),
}

/// An error message of etcd.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::store) struct ServerError {
    /// A gRPC status code, see "Status codes and their use in gRPC".
    code: u32,
    /// etcd's words.
    message: String,
}

const CANCELLED: u32 = 1;
const INVALID_ARGUMENT: u32 = 3;
const DEADLINE_EXCEEDED: u32 = 4;
const NOT_FOUND: u32 = 5;
const PERMISSION_DENIED: u32 = 7;
const RESOURCE_EXHAUSTED: u32 = 8;
const FAILED_PRECONDITION: u32 = 9;
const UNKNOWN: u32 = 2;
const UNAVAILABLE: u32 = 14;
const UNAUTHENTICATED: u32 = 16;

impl ServerError {
    /// Returns whether the database is full.
    fn is_no_space(&self) -> bool {
        self.code == RESOURCE_EXHAUSTED && self.message.contains("space exceeded")
    }

    /// Returns whether another member, or the same a little later, may accept the request: there is no leader, it has
    /// changed, or there are too many requests.
    fn is_passing(&self) -> bool {
        match self.code {
            CANCELLED | DEADLINE_EXCEEDED | UNAVAILABLE => true,
            RESOURCE_EXHAUSTED => !self.is_no_space(),
            // Raft errors come without a code of their own.
            UNKNOWN => ["leader", "stopped", "timed out", "timeout"].iter().any(|word| self.message.contains(word)),
            _ => false,
        }
    }

    /// Returns whether the token of our log-in is no longer known.
    pub(super) fn is_unknown_token(&self) -> bool {
        self.code == UNAUTHENTICATED
            || self.code == INVALID_ARGUMENT && self.message.contains("revision of auth store is old")
    }

    /// Returns whether the lease does not exist, or no longer.
    pub(super) fn lease_is_missing(&self) -> bool {
        self.code == NOT_FOUND
    }

    /// Returns what to do about it, after a semicolon; empty if that is not known.
    fn advice(&self) -> &'static str {
        let says = |words: &str| self.message.contains(words);
        match self.code {
            _ if self.is_no_space() => {
                "; its database is full: compact and defragment it, disarm the alarm (see `etcdctl alarm list`), and compare the \
                 members' data with `lockrun doctor`"
            }
            _ if says("corrupt") => {
                "; the members' data differ: replace the member that `etcdctl alarm list` names, then disarm the alarm"
            }
            _ if says("learner") => "; it is a learner: name the members that vote in the store's URL",
            _ if says("authentication is not enabled") => {
                "; remove the user and the password from the store's URL, or enable authentication"
            }
            PERMISSION_DENIED => "; grant the user's role the rights to read and write the keys under the prefix",
            INVALID_ARGUMENT | FAILED_PRECONDITION if says("auth") => {
                "; check the user and the password in the store's URL"
            }
            _ if says("user name is empty") => "; name a user and its password in the store's URL",
            UNAVAILABLE | DEADLINE_EXCEEDED => "; see whether a majority of its members is up",
            _ => "",
        }
    }

    /// Returns whether the lease exists already.
    pub(super) fn lease_exists(&self) -> bool {
        self.code == FAILED_PRECONDITION && self.message.contains("lease already exists")
    }
}

impl Failure {
    /// Returns the failure of an operation on a stream.
    pub(super) fn of_stream(error: &io::Error) -> Self {
        if let Some(alert) = certificate_alert(error) {
            return Failure::BadCertificate(alert);
        }
        match error.kind() {
            io::ErrorKind::TimedOut => Failure::Silent,
            io::ErrorKind::InvalidData => Failure::NotEtcd("a message that cannot be read"),
            _ => Failure::Closed,
        }
    }

    /// Returns the failure of an attempt to reach a member.
    pub(super) fn of_dial(error: &io::Error) -> Self {
        match error.raw_os_error().map(Errno::from_raw) {
            // This does not pass by itself.
            Some(Errno::EMFILE | Errno::ENFILE | Errno::ENOMEM) => Failure::NoResources(error.to_string()),
            _ => match certificate_alert(error) {
                Some(alert) => Failure::BadCertificate(alert),
                None => Failure::Unreachable(error.to_string()),
            },
        }
    }

    /// Returns the failure that an answer reports, if any.
    pub(super) fn of_response(response: &Response) -> Option<Self> {
        if response.status == 200 {
            return None;
        }
        let refused = api::read::<Refused>(&response.body).ok().and_then(Refused::code_and_message);
        Some(match refused {
            Some((code, message)) => Failure::Refused(ServerError { code, message }),
            // The answer is not from etcd's gateway, but from etcd itself or from a proxy.
            None if response.status == 400 && response.body.starts_with(b"CommonName ") => Failure::CommonName,
            None => Failure::Proxy(response.status),
        })
    }

    /// Returns whether another member may answer the same request.
    pub(super) fn is_of_member(&self) -> bool {
        match self {
            Failure::Unreachable(_) | Failure::Closed | Failure::Silent | Failure::Proxy(_) | Failure::NotEtcd(_) => {
                true
            }
            Failure::Refused(refusal) => refusal.is_passing(),
            _ => false,
        }
    }

    /// Returns whether an election may be the cause, or a member that does not know of one: a little later the same request
    /// may succeed.
    pub(super) fn is_of_election(&self) -> bool {
        match self {
            Failure::Silent => true,
            Failure::Refused(refusal) => refusal.is_passing() && refusal.code != RESOURCE_EXHAUSTED,
            _ => false,
        }
    }

    /// Returns whether the request may have been carried out all the same.
    pub(super) fn leaves_outcome_open(&self) -> bool {
        // A proposal that timed out may still be accepted.
        self.is_of_member() && !matches!(self, Failure::Unreachable(_))
    }

    /// Returns whether the database is full.
    pub(super) fn is_no_space(&self) -> bool {
        matches!(self, Failure::Refused(refusal) if refusal.is_no_space())
    }

    /// Returns whether the same request may be answered a little later.
    pub(super) fn is_transient(&self) -> bool {
        self.trouble() != RetryClass::Permanent
    }

    /// Returns what kind of trouble it is.
    pub(super) fn trouble(&self) -> RetryClass {
        match self {
            // Of a proxy: Request Timeout, and errors of a server.
            Failure::Unreachable(_) | Failure::Closed | Failure::Silent | Failure::Proxy(408 | 500..) => {
                RetryClass::Unavailable
            }
            // Of a proxy: Too Many Requests.
            Failure::Contended | Failure::Proxy(429) => RetryClass::Busy,
            Failure::Refused(refusal) if refusal.code == RESOURCE_EXHAUSTED && refusal.is_passing() => RetryClass::Busy,
            Failure::Refused(refusal) if refusal.is_passing() => RetryClass::Unavailable,
            _ => RetryClass::Permanent,
        }
    }

    /// Describes the failure: what failed, on what, and what to do about it where that is known.
    pub(super) fn explain(&self, cluster: &Cluster) -> StoreError {
        match self {
            Failure::Unreachable(why) => anyhow!("cannot reach {cluster}: {}", escaped(why)),
            Failure::NoResources(error) => anyhow!("cannot reach {cluster}: {error}"),
            Failure::NoWait(errno) => anyhow!("cannot wait for {cluster}: {}", errno.desc()),
            Failure::Closed if cluster.is_encrypted() => anyhow!("{cluster} closed the connection before it answered"),
            Failure::Closed => {
                anyhow!("{cluster} closed the connection before it answered; if it expects TLS, write etcds://")
            }
            Failure::Silent => anyhow!("{cluster} did not answer in time"),
            Failure::NotEtcd(what) => {
                anyhow!("unexpected reply from {cluster}: {what}; is it etcd, with its JSON gateway?")
            }
            Failure::Proxy(401 | 403) => {
                anyhow!("unexpected reply from {cluster}: a proxy in front of it refused the request")
            }
            Failure::Proxy(404) => anyhow!(
                "unexpected reply from {cluster}: it has no JSON gateway under /v3 (HTTP status 404); lockrun needs etcd 3.4 or later, \
                 without --enable-grpc-gateway=false"
            ),
            Failure::Proxy(status) => anyhow!("unexpected reply from {cluster}: HTTP status {status}"),
            Failure::BadCertificate(alert) => anyhow!(
                "{cluster} rejects the client's certificate (TLS alert {alert}); check cert=FILE and key=FILE in the store's URL"
            ),
            Failure::CommonName => anyhow!(
                "{cluster} rejects the client's certificate because it has a common name; use one without (cert=FILE and key=FILE \
                 in the store's URL)"
            ),
            Failure::Broken { key, why } => anyhow!(
                "its record in {cluster} is broken, so the lock cannot be acquired: {}; once nothing runs under the lock, delete this key: \
                 etcdctl del {}",
                escaped(why),
                escaped(&shell::word(key))
            ),
            Failure::Contended => anyhow!("others have changed the lock in {cluster} all the time; try again"),
            Failure::ListsTooMuch => listing_limit::exceeded(cluster),
            Failure::RecordTooLong(refused) => refused.explain(cluster),
            Failure::FenceEnds(last) => {
                anyhow!("its fence in {cluster} is {last}, and cannot grow any more; use another key")
            }
            Failure::Refused(refusal) => {
                let advice = refusal.advice();
                anyhow!("{cluster} rejects the request: {}{advice}", escaped(&refusal.message))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::etcd::url::parse;

    /// Returns the message about an answer with this body.
    fn said(status: u16, body: &str) -> String {
        failure(status, body).explain(&parse("etcd://db").expect("is a URL")).to_string()
    }

    /// Returns the failure that an answer with this body reports.
    fn failure(status: u16, body: &str) -> Failure {
        let response = Response { status, date: None, body: body.into(), is_last: false };
        Failure::of_response(&response).expect("is a failure")
    }

    #[test]
    fn a_rejected_stream_is_read_like_any_other_request() {
        let message = r#""message":"etcdserver: no leader""#;
        for body in [
            format!(r#"{{"error":"etcdserver: no leader","code":14,{message}}}"#),
            format!(r#"{{"error":{{"grpc_code":14,"http_code":503,{message},"http_status":"Service Unavailable"}}}}"#),
            format!(r#"{{"error":{{"code":14,{message},"details":[]}}}}"#),
            format!(r#"{{"code":14,{message},"details":[]}}"#),
        ] {
            let Failure::Refused(refusal) = failure(503, &body) else { panic!("{body}") };
            assert_eq!((refusal.code, refusal.message.as_str()), (14, "etcdserver: no leader"), "{body}");
        }
        for body in ["{}", "[]", "no JSON", r#"{"error":{}}"#, r#"{"error":7,"code":14}"#] {
            assert!(matches!(failure(503, body), Failure::Proxy(503)), "{body}");
        }
    }

    #[test]
    fn a_load_balancer_without_a_member_or_with_too_much_to_do_passes() {
        use RetryClass::{Busy, Permanent, Unavailable};
        let all =
            [(408, Unavailable), (429, Busy), (502, Unavailable), (400, Permanent), (403, Permanent), (404, Permanent)];
        for (status, trouble) in all {
            assert_eq!(failure(status, "<html>").trouble(), trouble, "{status}");
        }
    }

    #[test]
    fn a_certificate_with_a_common_name_is_recognised() {
        let body = "CommonName of client sending a request against gateway will be ignored and not used as expected\n";
        assert!(said(400, body).contains("because it has a common name; use one without"));
        assert!(said(400, "Bad Request").contains("HTTP status 400"));
    }

    #[test]
    fn a_rejection_says_what_to_do() {
        for (code, message, advice) in [
            (9, "authentication is not enabled", "remove the user and the password"),
            (3, "authentication failed, invalid user ID or password", "check the user and the password"),
            (14, "rpc not supported for learner", "name the members that vote"),
            (14, "no leader", "see whether a majority"),
            (15, "corrupt cluster", "replace the member that"),
        ] {
            let said = said(500, &format!(r#"{{"error":"etcdserver: {message}","code":{code}}}"#));
            assert!(said.contains(advice), "{said}");
        }
    }
}
