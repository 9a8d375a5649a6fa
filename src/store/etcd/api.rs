//! The messages of etcd's version 3 API as its JSON gateway writes them: bytes in base64, 64-bit numbers as strings,
//! and no zero fields. See "gRPC gateway" and "etcd API" in etcd's documentation.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Deserializer};
use serde_json::{Value, json};

use super::failure::Failure;
use super::http::Request;

/// Encodes text as the gateway does.
fn encoded(text: &str) -> String {
    STANDARD.encode(text)
}

/// A key and its value. Every key has a name: an answer must not take much more memory than it has bytes, as a list of
/// `{}` would.
#[derive(Clone, Debug, Default, Deserialize)]
pub(super) struct KeyValue {
    #[serde(deserialize_with = "text")]
    pub(super) key: String,
    #[serde(default, deserialize_with = "text")]
    pub(super) value: String,
    #[serde(default, deserialize_with = "number")]
    pub(super) mod_revision: i64,
    /// The lease to which it is attached; 0: none.
    #[serde(default, deserialize_with = "number")]
    pub(super) lease: i64,
}

/// The content of a range of keys.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Range {
    pub(super) kvs: Vec<KeyValue>,
    /// Whether there are more than were asked for.
    pub(super) more: bool,
    /// How many there are in all.
    #[serde(deserialize_with = "number")]
    pub(super) count: i64,
}

/// The header of every answer.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Header {
    #[serde(deserialize_with = "word")]
    pub(super) cluster_id: String,
    #[serde(deserialize_with = "number")]
    pub(super) revision: i64,
    #[serde(deserialize_with = "word")]
    pub(super) member_id: String,
    #[serde(deserialize_with = "word")]
    pub(super) raft_term: String,
}

/// The answer to a transaction.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Transacted {
    pub(super) header: Header,
    pub(super) succeeded: bool,
    pub(super) responses: Vec<Step>,
}

/// The response to one operation of a transaction: a range, or nothing that matters.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Step {
    pub(super) response_range: Range,
}

/// The answer to a question about a lease.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Lease {
    pub(super) header: Header,
    /// For how many seconds it still lasts; 0 or less: it does not exist.
    #[serde(rename = "TTL", deserialize_with = "number")]
    pub(super) ttl: i64,
}

/// The same, as a message of a stream.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct LeaseMessage {
    pub(super) result: Lease,
}

/// A message of a watch.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct WatchMessage {
    pub(super) result: Events,
}

/// The changes of what is watched, the latest last.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Events {
    pub(super) events: Vec<Event>,
}

/// A change of a key. A deleted key has no value.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Event {
    pub(super) kv: KeyValue,
}

/// The answer to a log-in.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct LoggedIn {
    pub(super) token: String,
}

/// The gateway's answer to a rejected request.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Refused {
    error: RefusedError,
    message: String,
    code: u32,
}

/// The same message again; or, in the answer to a rejected stream, all that the answer says.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
enum RefusedError {
    Message(String),
    OfStream {
        message: String,
        // Gateways of etcd 3.4 and 3.5 write the longer name.
        #[serde(alias = "grpc_code")]
        code: u32,
    },
}

impl Default for RefusedError {
    fn default() -> Self {
        RefusedError::Message(String::new())
    }
}

impl Refused {
    /// Returns the status code of gRPC and etcd's message. `None`: the answer is not the gateway's.
    pub(super) fn code_and_message(self) -> Option<(u32, String)> {
        let (code, message) = match self.error {
            RefusedError::OfStream { message, code } => (code, message),
            RefusedError::Message(error) => (self.code, if error.is_empty() { self.message } else { error }),
        };
        (code != 0 && !message.is_empty()).then_some((code, message))
    }
}

/// Reads an answer.
pub(super) fn read<T: for<'a> Deserialize<'a>>(body: &[u8]) -> Result<T, Failure> {
    serde_json::from_slice(body).map_err(|_| Failure::UnexpectedReply("an answer that is not etcd's"))
}

fn text<'a, D: Deserializer<'a>>(from: D) -> Result<String, D::Error> {
    let encoded = String::deserialize(from)?;
    let bytes = STANDARD.decode(encoded).map_err(serde::de::Error::custom)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

fn number<'a, D: Deserializer<'a>>(from: D) -> Result<i64, D::Error> {
    match Value::deserialize(from)? {
        Value::String(text) => text.parse().map_err(serde::de::Error::custom),
        Value::Number(number) => number.as_i64().ok_or_else(|| serde::de::Error::custom("no whole number")),
        _ => Err(serde::de::Error::custom("no number")),
    }
}

/// Reads an unsigned 64-bit number, as text.
fn word<'a, D: Deserializer<'a>>(from: D) -> Result<String, D::Error> {
    String::deserialize(from)
}

fn request(path: &'static str, body: &Value) -> Request {
    Request { path, body: body.to_string(), asks_for_all: false }
}

/// What a transaction compares before it writes.
pub(super) enum Compare {
    /// That the key's last change was at this revision; 0: that it does not exist.
    Unchanged(String, i64),
    /// That a key is attached to this lease.
    Attached(String, i64),
    /// That no key from `from` up to `to`, exclusive, was written after this revision.
    NoneSince { from: String, to: String, revision: i64 },
}

impl Compare {
    fn json(&self) -> Value {
        match self {
            Compare::Unchanged(key, revision) => {
                json!({ "key": encoded(key), "target": "MOD", "result": "EQUAL", "mod_revision": revision.to_string() })
            }
            Compare::Attached(key, lease) => {
                json!({ "key": encoded(key), "target": "LEASE", "result": "EQUAL", "lease": lease.to_string() })
            }
            Compare::NoneSince { from, to, revision } => {
                let (key, end, next) = (encoded(from), encoded(to), (revision + 1).to_string());
                json!({ "key": key, "range_end": end, "target": "MOD", "result": "LESS", "mod_revision": next })
            }
        }
    }
}

/// One operation in a transaction.
pub(super) enum RequestOp {
    /// Reads a key.
    Get(String),
    /// Reads the first `limit` keys with this prefix, in the order of their names; 0: all.
    GetAll { prefix: String, limit: u32 },
    /// Reads the names of the first `limit` keys from `from` up to `to`, exclusive, in the order of their names.
    Names { from: String, to: String, limit: u32 },
    /// Counts the keys from `from` up to `to`, exclusive.
    Count { from: String, to: String },
    /// Writes a key, attached to a lease (0: to none).
    Put { key: String, value: String, lease: i64 },
    /// Writes an existing key, which stays attached to its lease.
    Change { key: String, value: String },
    /// Deletes a key.
    Delete(String),
}

impl RequestOp {
    fn json(&self) -> Value {
        match self {
            RequestOp::Get(key) => json!({ "request_range": { "key": encoded(key) } }),
            RequestOp::GetAll { prefix, limit } => {
                let end = super::keys::range_end(prefix);
                json!({ "request_range": { "key": encoded(prefix), "range_end": encoded(&end), "limit": limit.to_string() } })
            }
            RequestOp::Names { from, to, limit } => {
                let (from, to, limit) = (encoded(from), encoded(to), limit.to_string());
                json!({ "request_range": { "key": from, "range_end": to, "limit": limit, "keys_only": true } })
            }
            RequestOp::Count { from, to } => {
                json!({ "request_range": { "key": encoded(from), "range_end": encoded(to), "count_only": true } })
            }
            RequestOp::Put { key, value, lease } => {
                json!({ "request_put": { "key": encoded(key), "value": encoded(value), "lease": lease.to_string() } })
            }
            RequestOp::Change { key, value } => {
                json!({ "request_put": { "key": encoded(key), "value": encoded(value), "ignore_lease": true } })
            }
            RequestOp::Delete(key) => json!({ "request_delete_range": { "key": encoded(key) } }),
        }
    }
}

/// Does `then` if all comparisons hold, otherwise `otherwise`; atomically, and as a majority of the members has it.
pub(super) fn transaction<'a>(
    compare: &[Compare],
    then: impl IntoIterator<Item = &'a RequestOp>,
    otherwise: &[RequestOp],
) -> Request {
    let compare: Vec<Value> = compare.iter().map(Compare::json).collect();
    let then: Vec<Value> = then.into_iter().map(RequestOp::json).collect();
    let otherwise: Vec<Value> = otherwise.iter().map(RequestOp::json).collect();
    request("/v3/kv/txn", &json!({ "compare": compare, "success": then, "failure": otherwise }))
}

/// Creates a lease of this many seconds.
pub(super) fn grant(lease: i64, seconds: u64) -> Request {
    request("/v3/lease/grant", &json!({ "ID": lease.to_string(), "TTL": seconds.to_string() }))
}

/// Ends a lease, and deletes the keys that are attached to it.
pub(super) fn revoke(lease: i64) -> Request {
    request("/v3/lease/revoke", &json!({ "ID": lease.to_string() }))
}

/// Renews a lease.
pub(super) fn keep_alive(lease: i64) -> Request {
    request("/v3/lease/keepalive", &json!({ "ID": lease.to_string() }))
}

/// Asks how long a lease still lasts.
pub(super) fn time_to_live(lease: i64) -> Request {
    request("/v3/lease/timetolive", &json!({ "ID": lease.to_string() }))
}

/// Watches a key, and those whose names go on with a slash, from this revision on.
pub(super) fn watch(key: &str, revision: i64) -> Request {
    let (from, to) = (encoded(key), encoded(&super::keys::range_end(&format!("{key}/"))));
    let create = json!({ "key": from, "range_end": to, "start_revision": revision.to_string() });
    request("/v3/watch", &json!({ "create_request": create }))
}

/// Logs in.
pub(super) fn log_in(user: &str, password: &str) -> Request {
    request("/v3/auth/authenticate", &json!({ "name": user, "password": password }))
}

/// Asks a member for its version, the size of its database and its leader.
pub(super) fn member_status() -> Request {
    request("/v3/maintenance/status", &json!({}))
}

/// Asks a member for the hash of its data as of a revision.
pub(super) fn hash(revision: i64) -> Request {
    request("/v3/maintenance/hash", &json!({ "revision": revision.to_string() }))
}

/// Asks for the members of the cluster.
pub(super) fn member_list() -> Request {
    request("/v3/cluster/member/list", &json!({}))
}

/// Asks for the alarms that are active.
pub(super) fn alarms() -> Request {
    request("/v3/maintenance/alarm", &json!({ "action": "GET" }))
}
