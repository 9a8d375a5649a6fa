//! An etcd cluster of the test's own: on free ports of the loopback interface, with its data in directories that are
//! removed with it.

use std::cell::RefCell;
use std::fs::File;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use nix::sys::signal::Signal;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::deadline::{LONG, eventually};
use super::lease_server::LeaseServer;
use super::memory;
use super::ports::free_port;
use super::processes::{find_program, send};
use super::server::server;
use super::tls::Certificates;

/// How long the place of a waiter lasts that the test itself has put into a queue.
const DEAD_PLACE: Duration = Duration::from_secs(10);

/// The prefix of all keys.
const PREFIX: &str = "lockrun/";

/// A cluster. Its members are killed when this is dropped.
pub(crate) struct Etcd {
    members: Vec<Member>,
}

/// A member.
pub(crate) struct Member {
    directory: TempDir,
    port: u16,
    peers: u16,
    /// The member's name.
    name: String,
    /// The names and addresses of all members.
    cluster: String,
    certificates: Option<Certificates>,
    server: RefCell<Option<Child>>,
}

/// A key, as it is stored.
#[derive(Debug)]
pub(crate) struct Stored {
    pub(crate) key: String,
    pub(crate) value: String,
    pub(crate) lease: String,
}

impl Etcd {
    /// Starts a cluster for the contracts, of one member, or as many as `SUITE_ETCD_MEMBERS` says.
    pub(crate) fn start() -> Self {
        let asked = std::env::var("SUITE_ETCD_MEMBERS").ok();
        Self::of(asked.map_or(1, |asked| asked.parse().expect("SUITE_ETCD_MEMBERS is a number")))
    }

    /// Starts a cluster of so many members.
    pub(crate) fn of(count: usize) -> Self {
        Self::configured(count, None)
    }

    /// Starts a cluster of one member that speaks TLS with its clients, and requires their certificates.
    pub(crate) fn with_tls(certificates: &Certificates) -> Self {
        Self::configured(1, Some(certificates))
    }

    fn configured(count: usize, certificates: Option<&Certificates>) -> Self {
        for _ in 0..20 {
            let names: Vec<_> = (0..count).map(|number| (format!("m{number}"), free_port())).collect();
            let peers: Vec<_> = names.iter().map(|(name, port)| format!("{name}=http://127.0.0.1:{port}")).collect();
            let member = |(name, port): &(String, u16)| Member::new(name, *port, &peers.join(","), certificates);
            let members: Vec<_> = names.iter().map(member).collect();
            members.iter().for_each(Member::launch);
            if members.iter().all(Member::is_ready) {
                return Etcd { members };
            }
        }
        panic!("etcd does not start");
    }

    /// Starts a killed cluster again whose authentication is on.
    pub(crate) fn start_again_with_users(&self) {
        self.members.iter().for_each(Member::launch);
        eventually(LONG, "etcd is ready", || self.log_in("root").is_some());
    }

    /// Starts a cluster of two members whose data differ: each is restored from the snapshot of another cluster.
    pub(crate) fn diverged() -> Self {
        let origins = ["one", "other"].map(|value| {
            let origin = Etcd::of(1);
            origin.put("lockrun/x", value);
            origin.members[0].save_snapshot();
            origin
        });
        let peers = [free_port(), free_port()];
        let cluster = format!("m0=http://127.0.0.1:{},m1=http://127.0.0.1:{}", peers[0], peers[1]);
        let member = |(number, port): (usize, &u16)| Member::new(&format!("m{number}"), *port, &cluster, None);
        let members: Vec<_> = peers.iter().enumerate().map(member).collect();
        for (member, origin) in members.iter().zip(&origins) {
            let snapshot = origin.members[0].directory.path().join("snapshot");
            member.restore_snapshot(snapshot.to_str().expect("a plain name"));
            member.launch();
        }
        members.iter().for_each(Member::comes_back);
        Etcd { members }
    }

    /// Replaces a cluster of one member by one that is restored from a snapshot of it.
    pub(crate) fn restore(&self) {
        let [member] = &self.members[..] else { panic!("one member") };
        member.save_snapshot();
        member.kill();
        std::fs::remove_dir_all(member.directory.path().join("data")).expect("the old data are removed");
        member.restore_snapshot("snapshot");
        member.start_again();
    }

    fn log_in(&self, user: &str) -> Option<String> {
        let login = json!({ "name": user, "password": "secret" });
        let answer = self.members[0].try_ask("/v3/auth/authenticate", &login).ok()?;
        answer["token"].as_str().map(str::to_owned)
    }

    /// Sends one request to the first member as this user, whose password is `secret`.
    #[track_caller]
    pub(crate) fn ask_as(&self, user: &str, path: &str, body: &Value) -> Value {
        let token = self.log_in(user).expect("the user is let in");
        self.members[0].try_ask_with(&format!("Authorization: {token}\r\n"), path, body).expect("etcd answers")
    }

    /// Returns the members, in their order in the URL.
    pub(crate) fn members(&self) -> &[Member] {
        &self.members
    }

    /// Returns the leader.
    pub(crate) fn leader(&self) -> &Member {
        self.members.iter().find(|member| member.leads()).expect("there is a leader")
    }

    /// Returns the URL of these members, in this order.
    pub(crate) fn url_of(members: &[&Member]) -> String {
        let places: Vec<_> = members.iter().map(|member| format!("127.0.0.1:{}", member.port)).collect();
        format!("etcd://{}", places.join(","))
    }

    /// Sends one request to the members in turn. Returns the first answer, in JSON.
    #[track_caller]
    pub(crate) fn ask(&self, path: &str, body: &Value) -> Value {
        let mut answers = self.members.iter().map(|member| member.try_ask(path, body));
        answers.find_map(Result::ok).expect("a member answers")
    }

    /// Returns the keys with this prefix, in their order.
    #[track_caller]
    pub(crate) fn keys(&self, prefix: &str) -> Vec<Stored> {
        let end = format!("{prefix}\u{7f}");
        let body = json!({ "key": STANDARD.encode(prefix), "range_end": STANDARD.encode(end) });
        let answer = self.ask("/v3/kv/range", &body);
        let text = |field: &Value| {
            let bytes = STANDARD.decode(field.as_str().unwrap_or_default()).expect("base64");
            String::from_utf8(bytes).expect("text")
        };
        let stored = |kv: &Value| Stored {
            key: text(&kv["key"]),
            value: text(&kv["value"]),
            lease: kv["lease"].as_str().unwrap_or("0").to_owned(),
        };
        answer["kvs"].as_array().into_iter().flatten().map(stored).collect()
    }

    #[track_caller]
    pub(crate) fn delete(&self, key: &str) {
        self.ask("/v3/kv/deleterange", &json!({ "key": STANDARD.encode(key) }));
    }

    #[track_caller]
    pub(crate) fn put(&self, key: &str, value: &str) {
        self.ask("/v3/kv/put", &json!({ "key": STANDARD.encode(key), "value": STANDARD.encode(value) }));
    }

    /// Deletes the record of a lock, and nothing else.
    #[track_caller]
    pub(crate) fn delete_record(&self, key: &str) {
        self.delete(&record_of(key));
    }

    /// Changes the record of a lock.
    #[track_caller]
    pub(crate) fn edit(&self, key: &str, change: impl FnOnce(&mut Value)) {
        let name = record_of(key);
        let stored = self.keys(&name).into_iter().find(|stored| stored.key == name).expect("the lock was used");
        let mut state = serde_json::from_str(&stored.value).expect("JSON");
        change(&mut state);
        self.put(&name, &state.to_string());
    }

    /// Adds a waiter that is dead.
    #[track_caller]
    pub(crate) fn add_waiter(&self, key: &str, waiter: &Value) {
        self.add_waiter_for(DEAD_PLACE, key, waiter);
    }

    /// As [`Self::add_waiter`], with a place that lasts for so long.
    pub(crate) fn add_waiter_for(&self, place: Duration, key: &str, waiter: &Value) {
        let token = waiter["token"].as_str().expect("a word");
        let name = format!("{PREFIX}queue/{}/{:016x}-{token}", encoded(key), 1);
        let lease = self.ask("/v3/lease/grant", &json!({ "TTL": place.as_secs() }))["ID"].clone();
        let mut waiter = waiter.clone();
        waiter["place_ms"] = json!(1000 * place.as_secs());
        waiter["ends_ms"] = waiter["place_ms"].clone();
        let (name, waiter) = (STANDARD.encode(name), STANDARD.encode(waiter.to_string()));
        self.ask("/v3/kv/put", &json!({ "key": name, "value": waiter, "lease": lease }));
    }

    /// Returns the number of leases, used or not.
    pub(crate) fn leases(&self) -> usize {
        self.ask("/v3/lease/leases", &json!({}))["leases"].as_array().map_or(0, Vec::len)
    }

    /// Returns how many requests to revoke a lease were answered.
    pub(crate) fn revocations(&self) -> u64 {
        self.members.iter().map(|member| member.figure("grpc_server_handled_total", "\"LeaseRevoke\"")).sum()
    }

    /// Returns the lease keys of a lock's holders.
    pub(crate) fn lease_keys(&self, key: &str) -> Vec<Stored> {
        self.keys(&format!("{PREFIX}lease/{}/", encoded(key)))
    }

    /// Returns the rows of its queue.
    pub(crate) fn rows(&self, key: &str) -> Vec<Stored> {
        self.keys(&format!("{PREFIX}queue/{}/", encoded(key)))
    }
}

impl Member {
    fn new(name: &str, peers: u16, cluster: &str, certificates: Option<&Certificates>) -> Self {
        Self {
            directory: memory::directory(),
            port: free_port(),
            peers,
            name: name.to_owned(),
            cluster: cluster.to_owned(),
            certificates: certificates.cloned(),
            server: RefCell::new(None),
        }
    }

    /// Starts the member.
    fn launch(&self) {
        let log = File::create(self.directory.path().join("log")).expect("a log file");
        let scheme = if self.certificates.is_some() { "https" } else { "http" };
        let (client, peer) =
            (format!("{scheme}://127.0.0.1:{}", self.port), format!("http://127.0.0.1:{}", self.peers));
        let mut command = server(&find_program("etcd"));
        command
            .current_dir(self.directory.path())
            .args(["--name", &self.name, "--data-dir", "data", "--initial-cluster", &self.cluster])
            .args(["--listen-client-urls", &client, "--advertise-client-urls", &client])
            .args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer])
            // The shortest lease is one and a half election time-outs, in whole seconds.
            .args(["--heartbeat-interval", "50", "--election-timeout", "500"])
            .args([
                "--logger",
                "zap",
                "--log-level",
                if self.certificates.is_some() { "info" } else { "error" },
                "--log-outputs",
                "stderr",
            ])
            .env("GOMAXPROCS", "2")
            .stdin(Stdio::null())
            .stderr(log.try_clone().expect("a second descriptor"))
            .stdout(log);
        if let Some(certificates) = &self.certificates {
            let [ca, cert, key] = ["ca.crt", "server.crt", "server.key"].map(|name| certificates.path(name));
            command.args(["--client-cert-auth", "--trusted-ca-file", &ca, "--cert-file", &cert, "--key-file", &key]);
        }
        *self.server.borrow_mut() = Some(command.spawn().expect("etcd starts"));
    }

    /// Saves its data in a file `snapshot` in its directory.
    fn save_snapshot(&self) {
        self.control(&["--endpoints", &format!("127.0.0.1:{}", self.port), "snapshot", "save", "snapshot"]);
    }

    /// Begins with the data in this file, as a member of its cluster.
    fn restore_snapshot(&self, file: &str) {
        let peer = format!("http://127.0.0.1:{}", self.peers);
        let identity = ["--name", &self.name, "--initial-advertise-peer-urls", &peer, "--data-dir", "data"];
        let cluster = ["--initial-cluster", &self.cluster, "--initial-cluster-token", "restored"];
        self.control(&[&["snapshot", "restore", file][..], &identity, &cluster].concat());
    }

    /// Runs etcdctl in the member's directory.
    fn control(&self, words: &[&str]) {
        let mut command = Command::new(find_program("etcdctl"));
        command.current_dir(self.directory.path()).args(words).env("ETCDCTL_API", "3");
        let output = command.output().expect("etcdctl starts");
        assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
    }

    /// Waits until the member accepts requests. Returns false if it has ended, as when another program took the port.
    fn is_ready(&self) -> bool {
        let mut ended = false;
        eventually(LONG, "etcd is ready", || {
            let mut server = self.server.borrow_mut();
            ended = server.as_mut().expect("just started").try_wait().expect("our own child").is_some();
            drop(server);
            // With TLS it answers only clients with a certificate, which the tests' client has not.
            let answers = || self.try_ask("/v3/kv/range", &json!({ "key": STANDARD.encode("x") })).is_ok();
            ended || if self.certificates.is_some() { self.log().contains("serving client traffic") } else { answers() }
        });
        !ended
    }

    fn try_ask(&self, path: &str, body: &Value) -> Result<Value, String> {
        self.try_ask_with("", path, body)
    }

    fn try_ask_with(&self, head: &str, path: &str, body: &Value) -> Result<Value, String> {
        let body = body.to_string();
        let request = format!("POST {path} HTTP/1.0\r\n{head}Content-Length: {}\r\n\r\n{body}", body.len());
        let answer = self.exchange(&request)?;
        let (head, body) = answer.split_once("\r\n\r\n").ok_or("no head")?;
        if !head.contains(" 200 ") {
            return Err(answer.clone());
        }
        serde_json::from_str(body).map_err(|error| error.to_string())
    }

    fn exchange(&self, request: &str) -> Result<String, String> {
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port)).map_err(|error| error.to_string())?;
        stream.set_read_timeout(Some(LONG)).expect("a time-out");
        stream.write_all(request.as_bytes()).map_err(|error| error.to_string())?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).map_err(|error| error.to_string())?;
        Ok(answer)
    }

    /// Returns the member's log.
    fn log(&self) -> String {
        std::fs::read_to_string(self.directory.path().join("log")).expect("a log file")
    }

    /// Returns one of the member's metrics, by name and a part of its labels.
    fn figure(&self, name: &str, label: &str) -> u64 {
        // A killed member has none.
        let answer = self.exchange("GET /metrics HTTP/1.0\r\n\r\n").unwrap_or_default();
        let lines = answer.lines().filter(|line| line.starts_with(name) && line.contains(label));
        let number = |line: &str| line.rsplit_once(' ')?.1.parse::<f64>().ok();
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        lines.filter_map(number).map(|number| number as u64).sum()
    }

    /// Returns whether the member considers itself the leader.
    fn leads(&self) -> bool {
        let status = self.try_ask("/v3/maintenance/status", &json!({}));
        status.is_ok_and(|status| status["leader"] == status["header"]["member_id"])
    }

    /// Stops the member's process without ending it.
    pub(crate) fn pause(&self) {
        self.signal(Signal::SIGSTOP);
    }

    /// Continues the member.
    pub(crate) fn resume(&self) {
        self.signal(Signal::SIGCONT);
    }

    /// Starts the member again after it was killed, on the same ports and with its data.
    pub(crate) fn start_again(&self) {
        self.launch();
        self.comes_back();
    }

    fn comes_back(&self) {
        assert!(self.is_ready(), "etcd does not start again: {}", self.log());
    }

    fn signal(&self, signal: Signal) {
        let server = self.server.borrow();
        send(server.as_ref().expect("the server runs").id().cast_signed(), signal);
    }

    /// Kills the member.
    pub(crate) fn kill(&self) {
        if let Some(mut child) = self.server.borrow_mut().take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Returns the key of a lock's record.
fn record_of(key: &str) -> String {
    format!("{PREFIX}state/{}", encoded(key))
}

/// Returns a lock's name as its keys contain it.
fn encoded(key: &str) -> String {
    let plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"-_.~".contains(byte);
    key.bytes().map(|byte| if plain(&byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") }).collect()
}

impl LeaseServer for Etcd {
    fn port(&self) -> u16 {
        self.members[0].port
    }

    fn url_at(&self, port: u16) -> String {
        let members: Vec<_> = self.members.iter().collect();
        if port == self.port() { Self::url_of(&members) } else { format!("etcd://127.0.0.1:{port}") }
    }

    fn pause(&self) {
        self.members.iter().for_each(Member::pause);
    }

    fn resume(&self) {
        self.members.iter().for_each(Member::resume);
    }

    fn kill(&self) {
        self.members.iter().for_each(Member::kill);
    }

    fn start_again(&self) {
        self.members.iter().for_each(Member::launch);
        self.members.iter().for_each(Member::comes_back);
    }

    fn hang_up(&self) {
        // etcd has no command for that.
        LeaseServer::kill(self);
        LeaseServer::start_again(self);
    }

    fn forget_everything(&self) {
        let body = json!({ "key": STANDARD.encode(PREFIX), "range_end": STANDARD.encode("lockrun0") });
        self.ask("/v3/kv/deleterange", &body);
    }

    fn forget_holders(&self, key: &str) {
        for held in self.lease_keys(key) {
            self.delete(&held.key);
        }
        self.edit(key, |state| {
            state.as_object_mut().expect("an object").remove("holders");
        });
    }

    fn expire(&self, key: &str) {
        for held in self.lease_keys(key) {
            self.ask("/v3/lease/revoke", &json!({ "ID": held.lease }));
        }
        self.edit(key, |state| {
            for holder in state["holders"].as_array_mut().into_iter().flatten() {
                holder["lease"]["ends_ms"] = Value::from(1);
            }
        });
    }

    fn word(&self) -> &'static str {
        // A request that only reads contains no put.
        "request_put"
    }

    fn requests(&self) -> u64 {
        self.members.iter().map(|member| member.figure("grpc_server_handled_total", "\"Txn\"")).sum()
    }

    fn requests_of(&self, questions: u64, changes: u64) -> u64 {
        // The first change of a lock reads it before that; the next one begins with what the first has left.
        questions + changes + 1
    }

    fn round_trips(&self, requests: u64) -> u64 {
        // Each writes the lock; the first one reads it before that.
        requests + 1
    }

    fn waiting(&self, key: &str) -> Vec<String> {
        let token = |row: Stored| {
            let row: Value = serde_json::from_str(&row.value).expect("JSON");
            row["token"].as_str().expect("a word").to_owned()
        };
        self.rows(key).into_iter().map(token).collect()
    }

    fn asleep(&self) -> usize {
        let rows = self.keys(&format!("{PREFIX}queue/"));
        let watchers: u64 = self.members.iter().map(|it| it.figure("etcd_debugging_mvcc_watcher_total", "")).sum();
        rows.len().min(usize::try_from(watchers).expect("a few"))
    }

    fn left(&self, key: &str, counts_what_goes: bool) -> Vec<String> {
        let mut left = Vec::new();
        let state = format!("{PREFIX}state/{}", encoded(key));
        for stored in self.keys(PREFIX) {
            if stored.key == state {
                let record: Value = serde_json::from_str(&stored.value).expect("JSON");
                let lasts = |holder: &&Value| counts_what_goes || holder["lease"]["ends_ms"].is_null();
                let holders = record["holders"].as_array().into_iter().flatten().filter(lasts);
                left.extend(holders.map(|holder| format!("{key}: the holder {}", holder["token"])));
            } else if stored.key.starts_with(&format!("{PREFIX}state/")) {
                left.push(format!("{}: all", stored.key));
            } else if stored.key != format!("{PREFIX}fence") && (counts_what_goes || stored.lease == "0") {
                left.push(stored.key);
            }
        }
        left
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.kill();
    }
}
