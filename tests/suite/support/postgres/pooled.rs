//! A PostgreSQL server behind pgbouncer in transaction mode: each transaction may run in another session.

use std::cell::RefCell;
use std::fs::{self, File};
use std::io;
use std::process::Child;

use nix::sys::resource::{Resource, getrlimit};
use nix::sys::signal::Signal;
use tempfile::TempDir;

use super::Postgres;
use super::client::{Client, lines};
use crate::support::deadline::{LONG, eventually};
use crate::support::lease_server::LeaseServer;
use crate::support::memory;
use crate::support::ports::free_port;
use crate::support::processes::{find_program, send, state};
use crate::support::server::{give, unprivileged};

/// The number of sessions that the pooler opens at the server, however many clients it has.
pub(crate) const SESSIONS: u64 = 10;

/// A server and its pooler. Both are stopped when this is dropped.
pub(crate) struct Pooled {
    pooler: Pooler,
    postgres: Postgres,
}

impl Pooled {
    pub(crate) fn start() -> Self {
        Self::before(Postgres::start())
    }

    /// Starts a pooler in front of this server.
    pub(crate) fn before(postgres: Postgres) -> Self {
        let pooler = Pooler::before(postgres.port);
        Self { pooler, postgres }
    }

    /// Returns the server behind the pooler.
    pub(crate) fn postgres(&self) -> &Postgres {
        &self.postgres
    }

    /// Runs a statement in each of the pooler's sessions. Returns each answer.
    pub(crate) fn ask_each_session(&self, statement: &str) -> Vec<String> {
        let mut clients = self.take_all_sessions();
        clients.iter_mut().map(|client| lines(&client.ask(statement).expect(statement))).collect()
    }

    /// Returns clients that occupy all of the pooler's sessions until they are dropped.
    pub(crate) fn take_all_sessions(&self) -> Vec<Client> {
        let take = |_| {
            let mut client = Client::at(self.pooler.port, "postgres").expect("the pooler accepts");
            client.ask("BEGIN").expect("there is one");
            client
        };
        (0..SESSIONS).map(take).collect()
    }

    /// Returns the pooler.
    pub(crate) fn pooler(&self) -> &Pooler {
        &self.pooler
    }
}

/// A running pooler. It is killed when this is dropped.
pub(crate) struct Pooler {
    directory: TempDir,
    port: u16,
    child: RefCell<Option<Child>>,
}

impl Pooler {
    fn before(server: u16) -> Self {
        for _ in 0..20 {
            let pooler = Self { directory: memory::directory(), port: free_port(), child: RefCell::new(None) };
            pooler.configure(server);
            if pooler.launch() {
                return pooler;
            }
        }
        panic!("pgbouncer does not start");
    }

    fn configure(&self, server: u16) {
        let write = |name: &str, text: &str| {
            let path = self.directory.path().join(name);
            fs::write(&path, text).expect("our own directory");
            give(&path);
        };
        write("users", "\"postgres\" \"\"\n");
        let lines = [
            "[databases]",
            &format!("* = host=127.0.0.1 port={server}"),
            "[pgbouncer]",
            "listen_addr = 127.0.0.1",
            &format!("listen_port = {}", self.port),
            "unix_socket_dir =",
            "auth_type = trust",
            "auth_file = users",
            "admin_users = postgres",
            "pool_mode = transaction",
            &format!("default_pool_size = {SESSIONS}"),
            "max_client_conn = 2000",
            // By default it lets its clients wait up to 15 s after the server is back.
            "server_login_retry = 1",
        ];
        write("pgbouncer.ini", &lines.join("\n"));
    }

    /// Starts the pooler. Returns false if it has ended again, as when another program took the port.
    fn launch(&self) -> bool {
        let log = File::create(self.directory.path().join("log")).expect("a log file");
        let mut command = unprivileged(&find_program("prlimit"), self.directory.path());
        // Enough descriptors for thousands of clients.
        let (_, most) = getrlimit(Resource::RLIMIT_NOFILE).expect("limits can be read");
        command.arg(format!("--nofile={}:", most.min(8192))).arg(find_program("pgbouncer"));
        command.arg("pgbouncer.ini").stdout(log.try_clone().expect("a second descriptor")).stderr(log);
        *self.child.borrow_mut() = Some(command.spawn().expect("pgbouncer starts"));
        let mut ended = false;
        eventually(LONG, "pgbouncer is ready", || {
            let mut child = self.child.borrow_mut();
            ended = child.as_mut().expect("just started").try_wait().expect("our own child").is_some();
            ended || self.console("SHOW VERSION").is_ok()
        });
        !ended
    }

    /// Runs a command of the pooler's admin console.
    fn console(&self, command: &str) -> io::Result<()> {
        Client::at(self.port, "pgbouncer")?.ask(command).map(drop)
    }

    fn signal(&self, signal: Signal) -> i32 {
        let pid = self.child.borrow().as_ref().expect("the pooler runs").id().cast_signed();
        send(pid, signal);
        pid
    }

    /// Kills the pooler: its port refuses connections.
    pub(crate) fn kill(&self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Starts the pooler again after `kill`, on the same port.
    pub(crate) fn start_again(&self) {
        assert!(self.launch(), "pgbouncer does not start again");
    }
}

impl Drop for Pooler {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Faults hit the server and the pooler; what is stored is the server's.
impl LeaseServer for Pooled {
    fn port(&self) -> u16 {
        self.pooler.port
    }

    fn url_at(&self, port: u16) -> String {
        self.postgres.url_at(port)
    }

    fn pause(&self) {
        let pooler = self.pooler.signal(Signal::SIGSTOP);
        eventually(LONG, "the pooler stands still", || state(pooler) == Some('T'));
        self.postgres.pause();
    }

    fn resume(&self) {
        self.postgres.resume();
        self.pooler.signal(Signal::SIGCONT);
    }

    fn kill(&self) {
        self.pooler.kill();
        self.postgres.kill();
    }

    fn start_again(&self) {
        self.postgres.start_again();
        self.pooler.start_again();
    }

    fn hang_up(&self) {
        // Closes the connections of the clients, and those to the server.
        self.pooler
            .console("KILL postgres")
            .and_then(|()| self.pooler.console("RESUME postgres"))
            .expect("the pooler obeys");
    }

    fn forget_everything(&self) {
        self.postgres.forget_everything();
    }

    fn forget_holders(&self, key: &str) {
        self.postgres.forget_holders(key);
    }

    fn expire(&self, key: &str) {
        self.postgres.expire(key);
    }

    fn word(&self) -> &'static str {
        self.postgres.word()
    }

    fn requests(&self) -> u64 {
        self.postgres.requests()
    }

    fn round_trips(&self, requests: u64) -> u64 {
        self.postgres.round_trips(requests)
    }

    fn waiting(&self, key: &str) -> Vec<String> {
        self.postgres.waiting(key)
    }

    fn asleep(&self) -> usize {
        self.postgres.asleep()
    }

    fn left(&self, key: &str, counts_what_goes: bool) -> Vec<String> {
        self.postgres.left(key, counts_what_goes)
    }
}
