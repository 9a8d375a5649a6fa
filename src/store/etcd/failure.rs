//! Why a request to etcd failed: what only etcd, or a proxy in front of it, reports.

use super::api::{self, Refused};
use super::http::Response;
use super::url::Cluster;
use crate::net::endpoint::{Endpoint, TlsFiles};
use crate::store::RetryClass;
use crate::store::failure::{self, Peer, Rejection};
use crate::text::escape::escaped;
use crate::text::shell;

/// The beginning of the words with which a member rejects a certificate that has a common name.
const COMMON_NAME: &str = "CommonName ";

/// Why a request failed.
pub(in crate::store) type Failure = failure::Failure<ServerError>;

/// An answer that rejects a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::store) struct ServerError {
    /// A gRPC status code, see "Status codes and their use in gRPC".
    code: u32,
    /// etcd's words.
    message: String,
    /// The HTTP status of an answer that is not that of etcd's gateway, but of a proxy, or of etcd itself. The code is
    /// 0.
    status: Option<u16>,
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

impl Peer for Cluster {
    const QUESTION: &'static str = "; is it etcd, with its JSON gateway?";

    fn tls_files(&self) -> Option<&TlsFiles> {
        self.members.first().and_then(Endpoint::tls_files)
    }

    fn spellings(&self) -> Option<(&'static str, &'static str)> {
        Some(("etcd://", "etcds://"))
    }
}

impl Rejection for ServerError {
    type Server = Cluster;

    fn retry_class(&self) -> RetryClass {
        match self.status {
            // Request Timeout, and errors of a server.
            Some(408 | 500..) => RetryClass::Unavailable,
            // Too Many Requests.
            Some(429) => RetryClass::Busy,
            _ if self.code == RESOURCE_EXHAUSTED && self.is_passing() => RetryClass::Busy,
            _ if self.is_passing() => RetryClass::Unavailable,
            _ => RetryClass::Permanent,
        }
    }

    fn leaves_outcome_open(&self) -> bool {
        // A proposal that timed out may still be accepted.
        self.is_of_member()
    }

    fn explain(&self, cluster: &Cluster) -> String {
        match self.status {
            Some(401 | 403) => format!("unexpected reply from {cluster}: a proxy in front of it refused the request"),
            Some(404) => format!(
                "unexpected reply from {cluster}: it has no JSON gateway under /v3 (HTTP status 404); lockrun needs \
                 etcd 3.4 or later, without --enable-grpc-gateway=false"
            ),
            _ if self.is_of_common_name() => format!(
                "{cluster} rejects the client's certificate because it has a common name; use one without (cert=FILE \
                 and key=FILE in the store's URL)"
            ),
            Some(status) => format!("unexpected reply from {cluster}: HTTP status {status}"),
            None => format!("{cluster} rejects the request: {}{}", escaped(&self.message), self.advice()),
        }
    }
}

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

    /// Returns whether another member may answer the same request.
    fn is_of_member(&self) -> bool {
        self.is_of_proxy() || self.is_passing()
    }

    /// Returns whether a proxy has answered.
    pub(super) fn is_of_proxy(&self) -> bool {
        self.status.is_some() && !self.is_of_common_name()
    }

    /// Returns whether the member rejects our certificate because it has a common name, which could be taken for a
    /// user's.
    fn is_of_common_name(&self) -> bool {
        self.status == Some(400) && self.message.starts_with(COMMON_NAME)
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

    /// Returns whether the lease exists already.
    pub(super) fn lease_exists(&self) -> bool {
        self.code == FAILED_PRECONDITION && self.message.contains("lease already exists")
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
}

impl Failure {
    /// Returns the failure that an answer reports, if any.
    pub(super) fn of_response(response: &Response) -> Option<Self> {
        if response.status == 200 {
            return None;
        }
        let refused = api::read::<Refused>(&response.body).ok().and_then(Refused::code_and_message);
        // What a proxy says is not needed, and could be long.
        let is_of_common_name = response.body.starts_with(COMMON_NAME.as_bytes());
        let other = || (0, if is_of_common_name { COMMON_NAME.to_owned() } else { String::new() });
        let status = refused.is_none().then_some(response.status);
        let (code, message) = refused.unwrap_or_else(other);
        Some(Failure::Rejected(ServerError { code, message, status }))
    }

    /// Returns the failure of a lock of which the value under an etcd `key` cannot be read.
    pub(super) fn of_broken(key: &str, why: &str) -> Self {
        let delete = shell::word(key);
        Failure::Broken(format!("{why}; once nothing runs under the lock, delete this key: etcdctl del {delete}"))
    }

    /// Returns whether another member may answer the same request.
    pub(super) fn is_of_member(&self) -> bool {
        match self {
            Failure::Unreachable { .. }
            | Failure::Closed
            | Failure::HungUp
            | Failure::Silent
            | Failure::UnexpectedReply(_) => true,
            Failure::Rejected(rejection) => rejection.is_of_member(),
            _ => false,
        }
    }

    /// Returns whether an election may be the cause, or a member that does not know of one: a little later the same
    /// request may succeed.
    pub(super) fn is_of_election(&self) -> bool {
        match self {
            Failure::Silent => true,
            Failure::Rejected(rejection) => rejection.is_passing() && rejection.code != RESOURCE_EXHAUSTED,
            _ => false,
        }
    }

    /// Returns whether the database is full.
    pub(super) fn is_no_space(&self) -> bool {
        matches!(self, Failure::Rejected(rejection) if rejection.is_no_space())
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
            let Failure::Rejected(rejection) = failure(503, &body) else { panic!("{body}") };
            assert_eq!((rejection.code, rejection.message.as_str()), (14, "etcdserver: no leader"), "{body}");
        }
        for body in ["{}", "[]", "no JSON", r#"{"error":{}}"#, r#"{"error":7,"code":14}"#] {
            assert!(matches!(failure(503, body), Failure::Rejected(rejection) if rejection.is_of_proxy()), "{body}");
        }
    }

    #[test]
    fn a_load_balancer_without_a_member_or_with_too_much_to_do_passes() {
        use RetryClass::{Busy, Permanent, Unavailable};
        let all =
            [(408, Unavailable), (429, Busy), (502, Unavailable), (400, Permanent), (403, Permanent), (404, Permanent)];
        for (status, retry_class) in all {
            assert_eq!(failure(status, "<html>").retry_class(), retry_class, "{status}");
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
