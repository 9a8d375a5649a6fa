//! A Redis server of the test's own: on a free port of the loopback interface, with its data in a directory
//! that is removed with it.

use std::cell::RefCell;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};

use nix::sys::signal::Signal;
use tempfile::TempDir;

use super::deadline::{LONG, eventually, happens_within};
use super::lease_server::LeaseServer;
use super::memory;
use super::ports::free_port;
use super::processes::{find_program, send};
use super::redis_keys;
use super::resp::{Client, Reply};
use super::server::server;
use super::tls::Certificates;

/// A running server. It is killed when this is dropped.
pub(crate) struct Redis {
    directory: TempDir,
    port: u16,
    options: Vec<String>,
    password: Option<String>,
    certificates: Option<Certificates>,
    /// The configuration of a Sentinel; `None` for a store.
    sentinel: Option<String>,
    server: RefCell<Option<Child>>,
}

impl Redis {
    pub(crate) fn start() -> Self {
        Self::with_options(&[])
    }

    /// Starts a server that keeps its data even when it is killed.
    pub(crate) fn durable() -> Self {
        Self::with_options(&["--appendonly", "yes", "--appendfsync", "always"])
    }

    /// Starts a server that requires this password.
    pub(crate) fn with_password(password: &str) -> Self {
        Self::build(&["--requirepass", password], Some(password), None, None)
    }

    pub(crate) fn with_options(options: &[&str]) -> Self {
        Self::build(options, None, None, None)
    }

    /// Starts a server that speaks only TLS on its port, and requires client certificates.
    pub(crate) fn with_tls() -> Self {
        Self::with_certificates(&Certificates::make(), &[])
    }

    /// Starts such a server with these certificates. It speaks TLS with other servers, too.
    pub(crate) fn with_certificates(certificates: &Certificates, options: &[&str]) -> Self {
        let options = [&["--tls-replication", "yes"], options].concat();
        Self::build(&options, None, Some(certificates), None)
    }

    /// Starts a Sentinel with this configuration. The tests log in with the password, if there is one.
    pub(crate) fn sentinel(configuration: &str, password: Option<&str>) -> Self {
        Self::build(&[], password, None, Some(configuration))
    }

    /// Starts a Sentinel that speaks only TLS, with its clients and with the servers.
    pub(crate) fn sentinel_with_certificates(configuration: &str, certificates: &Certificates) -> Self {
        Self::build(&["--tls-replication", "yes"], None, Some(certificates), Some(configuration))
    }

    /// A server whose directory is made ready by `prepare`. What it has confirmed outlives its process; and where it
    /// cannot write, it rejects changes instead of ending.
    pub(crate) fn in_directory(prepare: impl Fn(&Path)) -> Self {
        let options = ["--appendonly", "yes", "--appendfsync", "everysec", "--auto-aof-rewrite-min-size", "1mb"];
        Self::build_in(
            || {
                let directory = memory::directory();
                prepare(directory.path());
                directory
            },
            &options,
            None,
            None,
            None,
        )
    }

    fn build(
        options: &[&str],
        password: Option<&str>,
        certificates: Option<&Certificates>,
        sentinel: Option<&str>,
    ) -> Self {
        Self::build_in(memory::directory, options, password, certificates, sentinel)
    }

    fn build_in(
        directory: impl Fn() -> TempDir,
        options: &[&str],
        password: Option<&str>,
        certificates: Option<&Certificates>,
        sentinel: Option<&str>,
    ) -> Self {
        for _ in 0..20 {
            let redis = Self {
                directory: directory(),
                port: free_port(),
                options: options.iter().map(|&one| one.to_owned()).collect(),
                password: password.map(str::to_owned),
                certificates: certificates.cloned(),
                sentinel: sentinel.map(str::to_owned),
                server: RefCell::new(None),
            };
            if redis.launch() {
                return redis;
            }
        }
        panic!("redis-server does not start");
    }

    /// Starts the server. Returns false if it has ended again, as when another program took the port.
    fn launch(&self) -> bool {
        let log = File::create(self.directory.path().join("log")).expect("a log file");
        let mut command = server(&find_program("redis-server"));
        let port = self.port.to_string();
        match &self.sentinel {
            None => {
                // What `CONFIG REWRITE` adds to it outlives a restart. What Sentinels make of a server does.
                File::options().append(true).create(true).open(self.configuration()).expect("our own directory");
                command.args(["redis.conf", "--save", "", "--databases", "16"])
            }
            Some(configuration) => {
                fs::write(self.directory.path().join("sentinel.conf"), configuration).expect("our own directory");
                command.args(["sentinel.conf", "--sentinel"])
            }
        };
        command
            .current_dir(self.directory.path())
            .args(["--bind", "127.0.0.1"])
            .args(["--unixsocket", "redis.sock", "--unixsocketperm", "700"])
            .args(&self.options)
            .stdin(Stdio::null())
            .stderr(log.try_clone().expect("a second descriptor"))
            .stdout(log);
        match &self.certificates {
            None => command.args(["--port", &port]),
            Some(certificates) => {
                command.args(["--port", "0", "--tls-port", &port]).args(certificates.server_options())
            }
        };
        let child = command.spawn().expect("redis-server starts");
        let pid = child.id();
        *self.server.borrow_mut() = Some(child);
        let mut ended = false;
        eventually(LONG, "redis-server is ready", || {
            let mut server = self.server.borrow_mut();
            let child = server.as_mut().expect("just started");
            ended = child.try_wait().expect("our own child").is_some();
            drop(server);
            ended || self.answers_as(pid)
        });
        !ended
    }

    /// Returns whether this process answers, and has loaded its data.
    fn answers_as(&self, pid: u32) -> bool {
        let ours = format!("process_id:{pid}\r\n");
        self.try_ask(&["INFO"]).is_ok_and(
            |reply| matches!(reply, Reply::Text(text) if text.contains(&ours) && !text.contains("\r\nloading:1\r\n")),
        )
    }

    fn configuration(&self) -> PathBuf {
        self.directory.path().join("redis.conf")
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.directory.path().join("redis.sock")
    }

    pub(crate) fn certificates(&self) -> &Certificates {
        self.certificates.as_ref().expect("a server with TLS")
    }

    /// Returns the URL without a user, a password or a database.
    pub(crate) fn url(&self) -> String {
        self.url_at(self.port)
    }

    /// Sends one request over the server's socket. Returns the reply.
    #[track_caller]
    pub(crate) fn ask(&self, words: &[&str]) -> Reply {
        let reply = self.try_ask(words).expect("the server answers");
        assert!(!matches!(reply, Reply::Error(_)), "{words:?}: {reply:?}");
        reply
    }

    /// The same, where it may be away, or answer with an error.
    pub(crate) fn try_ask(&self, words: &[&str]) -> std::io::Result<Reply> {
        let mut client = Client::connect(&self.socket())?;
        if let Some(password) = &self.password {
            client.ask(&["AUTH", password])?;
        }
        client.ask(words)
    }

    /// Returns all keys of database 0, sorted.
    #[track_caller]
    pub(crate) fn keys(&self) -> Vec<String> {
        self.ask(&["KEYS", "*"]).texts()
    }

    fn signal(&self, signal: Signal) {
        let server = self.server.borrow();
        let child = server.as_ref().expect("the server runs");
        send(child.id().cast_signed(), signal);
    }

    fn end(&self) {
        if let Some(mut child) = self.server.borrow_mut().take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl LeaseServer for Redis {
    fn port(&self) -> u16 {
        self.port
    }

    fn url_at(&self, port: u16) -> String {
        format!("redis://127.0.0.1:{port}")
    }

    fn pause(&self) {
        self.signal(Signal::SIGSTOP);
    }

    fn resume(&self) {
        self.signal(Signal::SIGCONT);
    }

    fn kill(&self) {
        self.end();
    }

    fn start_again(&self) {
        // Another program may have the port for a moment.
        if !happens_within(LONG, || self.launch()) {
            let log = fs::read_to_string(self.directory.path().join("log")).unwrap_or_default();
            panic!("redis-server does not start again: {log}");
        }
    }

    fn hang_up(&self) {
        self.ask(&["CLIENT", "KILL", "TYPE", "normal"]);
    }

    fn forget_everything(&self) {
        self.ask(&["FLUSHALL"]);
    }

    fn forget_holders(&self, key: &str) {
        self.ask(&["DEL", &redis_keys::holders(key)]);
    }

    fn word(&self) -> &'static str {
        "EVAL"
    }

    fn requests(&self) -> u64 {
        let statistics = self.ask(&["INFO", "commandstats"]);
        let calls = |line: &str| {
            line.strip_prefix("cmdstat_eval")?.split_once("calls=")?.1.split(',').next()?.parse::<u64>().ok()
        };
        statistics.text().lines().filter_map(calls).sum::<u64>()
    }

    fn round_trips(&self, requests: u64) -> u64 {
        requests
    }

    fn waiting(&self, key: &str) -> Vec<String> {
        let tokens = self.ask(&["ZRANGE", &redis_keys::queue(key), "0", "-1"]);
        tokens.list().iter().map(|token| token.text().to_owned()).collect()
    }

    fn asleep(&self) -> usize {
        let clients = self.ask(&["INFO", "clients"]);
        let count = clients.text().lines().find_map(|line| line.strip_prefix("blocked_clients:"));
        count.expect("the server counts").trim().parse().expect("a count")
    }

    fn left(&self, key: &str, counts_what_goes: bool) -> Vec<String> {
        let mut keys = self.keys();
        keys.retain(|name| !redis_keys::lasting(key).contains(name));
        // The note against late requests of a run that is over holds nothing, and expires.
        keys.retain(|key| {
            !redis_keys::is_mailbox(key) || self.ask(&["LINDEX", key, "0"]) != Reply::Text("cancelled".into())
        });
        if !counts_what_goes {
            // PTTL answers -2 for a key that is gone, and -1 for one that does not expire.
            keys.retain(|key| self.ask(&["PTTL", key]).number() == -1);
        }
        keys
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        self.end();
    }
}
