//! A PostgreSQL server of the test's own: on a free port of the loopback interface, with its data in a directory that
//! is removed with it. See `pooled` for a server behind a connection pooler.

mod client;
pub(crate) mod impostor;
mod lease_server;
mod pooled;
mod programs;
mod template;

use std::cell::RefCell;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::time::Duration;

use nix::sys::signal::Signal;
use tempfile::TempDir;

use self::client::{Client, Row, lines};
use self::programs::find_server_program;
use super::deadline::{LONG, eventually, happens_within};
use super::lease_server::LeaseServer;
use super::lockrun::Lockrun;
use super::memory;
use super::ports::free_port;
use super::processes::{PATH, children, send};
use super::server::{give, unprivileged};
use super::tls::Certificates;

pub(crate) use self::lease_server::what_holds;
pub(crate) use self::pooled::{Pooled, SESSIONS};

/// Returns a search path on which psql itself comes before Debian's program of that name, which chooses a version in
/// ten times the time that a statement takes.
pub(crate) fn path_of_psql() -> String {
    let psql = find_server_program("psql");
    format!("{}:{PATH}", psql.parent().expect("a directory").display())
}

/// The settings of every server. Without fsync its data survives a kill of its processes, though not a crash of the
/// machine, which no test causes.
const SETTINGS: [&str; 11] = [
    "listen_addresses=127.0.0.1",
    "max_connections=500",
    // The least possible: shared memory for predicate locks, which no test takes, makes a start slow.
    "max_pred_locks_per_transaction=10",
    "shared_buffers=8MB",
    "fsync=off",
    "max_wal_size=32MB",
    // In its directory, so that nothing remains when the server is killed.
    "dynamic_shared_memory_type=mmap",
    "huge_pages=off",
    "shared_preload_libraries=pg_stat_statements",
    "log_line_prefix=%m [%p] %u@%d ",
    "log_checkpoints=off",
];

/// How a server differs from the default.
#[derive(Clone, Default)]
pub(crate) struct Setup {
    /// Settings of the form `NAME=VALUE`.
    pub(crate) settings: Vec<String>,
    /// Lines of `pg_hba.conf` for connections over the network; by default all are trusted.
    pub(crate) access: Vec<String>,
    /// The certificates for TLS, if the server offers it.
    pub(crate) certificates: Option<Certificates>,
    /// If the server is a standby, which accepts no writes: the port of its primary, or 0 if it has none.
    pub(crate) follows: Option<u16>,
}

/// A running server. It is stopped when this is dropped.
pub(crate) struct Postgres {
    directory: TempDir,
    port: u16,
    setup: Setup,
    server: RefCell<Option<Child>>,
    client: RefCell<Option<Client>>,
}

impl Postgres {
    pub(crate) fn start() -> Self {
        Self::with(&Setup::default())
    }

    pub(crate) fn with(setup: &Setup) -> Self {
        for _ in 0..20 {
            let directory = memory::directory();
            template::copy_to(&directory.path().join("data"));
            let (server, client) = (RefCell::new(None), RefCell::new(None));
            let postgres = Self { directory, port: free_port(), setup: setup.clone(), server, client };
            postgres.configure();
            if postgres.launch() {
                return postgres;
            }
        }
        panic!("postgres does not start");
    }

    /// Creates a database; `words` are its name and its options, as in CREATE DATABASE.
    #[track_caller]
    pub(crate) fn create_database(&self, words: &str) {
        template::add_template0(&self.data());
        self.ask(&format!("CREATE DATABASE {words} TEMPLATE template0"));
    }

    /// Starts a server that requires a password for connections over the network, and has this user.
    pub(crate) fn with_password(method: &str, user: &str, password: &str) -> Self {
        let access = vec![format!("host all all 127.0.0.1/32 {method}")];
        let settings = vec![format!("password_encryption={method}")];
        let postgres = Self::with(&Setup { settings, access, ..Setup::default() });
        postgres.ask(&format!("CREATE ROLE {user} LOGIN PASSWORD '{password}'"));
        postgres.ask(&format!("GRANT CREATE ON DATABASE postgres TO {user}"));
        postgres
    }

    /// Starts a server that offers TLS, with these lines in its `pg_hba.conf`.
    pub(crate) fn with_tls(access: &[&str]) -> Self {
        let access = access.iter().map(|&line| line.to_owned()).collect();
        Self::with(&Setup { access, certificates: Some(Certificates::make()), ..Setup::default() })
    }

    /// Starts a standby that replicates this server, and accepts no writes until it is promoted.
    pub(crate) fn standby_of(primary: &Self) -> Self {
        Self::with(&Setup { follows: Some(primary.port), ..Setup::default() })
    }

    /// Writes the files that the server reads when it starts.
    fn configure(&self) {
        let write = |name: &str, text: &str| {
            let path = self.data().join(name);
            fs::write(&path, text).expect("our own directory");
            give(&path);
        };
        let everybody = ["host all all 127.0.0.1/32 trust", "host replication all 127.0.0.1/32 trust"];
        let access = match &*self.setup.access {
            [] => everybody.join("\n"),
            access => access.join("\n"),
        };
        write("pg_hba.conf", &format!("local all postgres trust\n{access}\n"));
        if let Some(primary) = self.setup.follows {
            write("standby.signal", "");
            if primary != 0 {
                let primary = format!("primary_conninfo = 'host=127.0.0.1 port={primary} user=postgres'\n");
                write("postgresql.auto.conf", &primary);
            }
        }
        if let Some(certificates) = &self.setup.certificates {
            for name in ["server.crt", "server.key", "ca.crt"] {
                let text = fs::read_to_string(certificates.path(name)).expect("they were made");
                write(name, &text);
            }
            let key = self.data().join("server.key");
            fs::set_permissions(key, std::os::unix::fs::PermissionsExt::from_mode(0o600)).expect("it was written");
        }
    }

    /// Starts the server. Returns false if it has ended again, as when another program took the port.
    fn launch(&self) -> bool {
        let log = File::create(self.directory.path().join("log")).expect("a log file");
        let mut command = unprivileged(&find_server_program("postgres"), self.directory.path());
        command.arg("-D").arg(self.data()).args(["-p", &self.port.to_string(), "-k"]).arg(self.directory.path());
        command.args(SETTINGS.iter().flat_map(|setting| ["-c", setting]));
        if self.setup.certificates.is_some() {
            let tls = ["ssl=on", "ssl_cert_file=server.crt", "ssl_key_file=server.key", "ssl_ca_file=ca.crt"];
            command.args(tls.iter().flat_map(|setting| ["-c", setting]));
        }
        command.args(self.setup.settings.iter().flat_map(|setting| ["-c", setting]));
        command.stdout(log.try_clone().expect("a second descriptor")).stderr(log);
        let child = command.spawn().expect("postgres starts");
        let pid = child.id();
        *self.server.borrow_mut() = Some(child);
        let mut ended = false;
        eventually(LONG, "postgres is ready", || {
            ended = self.has_ended();
            ended || self.is_ready(pid)
        });
        !ended
    }

    /// Returns whether this process accepts connections, according to its lock file.
    fn is_ready(&self, pid: u32) -> bool {
        let file = fs::read_to_string(self.data().join("postmaster.pid")).unwrap_or_default();
        let lines: Vec<&str> = file.lines().collect();
        lines.first() == Some(&&*pid.to_string()) && lines.get(7).is_some_and(|status| status.trim() == "ready")
    }

    fn has_ended(&self) -> bool {
        let mut server = self.server.borrow_mut();
        server.as_mut().is_none_or(|child| child.try_wait().expect("our own child").is_some())
    }

    fn data(&self) -> PathBuf {
        self.directory.path().join("data")
    }

    /// Returns what the server has logged.
    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.directory.path().join("log")).unwrap_or_default()
    }

    /// Returns the directory of the server's socket.
    pub(crate) fn sockets(&self) -> &Path {
        self.directory.path()
    }

    /// Makes the server present another of its certificates from now on.
    pub(crate) fn shows(&self, name: &str) {
        for kind in ["crt", "key"] {
            let text = fs::read(self.certificates().path(&format!("{name}.{kind}"))).expect("it was made");
            fs::write(self.data().join(format!("server.{kind}")), text).expect("our own directory");
        }
        let reloads = || self.log().matches("reloading configuration files").count();
        let before = reloads();
        self.ask("SELECT pg_reload_conf()");
        eventually(LONG, "it has read them", || reloads() > before);
        // The log line comes before the reload itself.
        self.ask("SELECT pg_sleep(0.1)");
    }

    pub(crate) fn certificates(&self) -> &Certificates {
        self.setup.certificates.as_ref().expect("a server with TLS")
    }

    /// Returns the URL for this user, with these parameters.
    pub(crate) fn url_as(&self, user: &str, parameters: &str) -> String {
        let separator = if parameters.is_empty() { "" } else { "?" };
        format!("postgres://{user}@127.0.0.1:{}/postgres{separator}{parameters}", self.port)
    }

    /// Returns the URL for the superuser.
    pub(crate) fn url(&self) -> String {
        self.url_at(self.port)
    }

    /// Returns the call with variables by which psql finds the server.
    pub(crate) fn known_to(&self, call: Lockrun) -> Lockrun {
        let port = self.port.to_string();
        call.env("PGHOST", "127.0.0.1").env("PGPORT", port).env("PGUSER", "postgres").env("PGDATABASE", "postgres")
    }

    /// Runs a statement. Returns its rows, one per line.
    #[track_caller]
    pub(crate) fn ask(&self, statement: &str) -> String {
        let rows = self.try_ask(statement).unwrap_or_else(|error| panic!("{statement}: {error}"));
        lines(&rows)
    }

    /// Runs a statement that returns one number.
    #[track_caller]
    pub(crate) fn count(&self, statement: &str) -> u64 {
        self.ask(statement).trim().parse().expect("a number")
    }

    /// Revokes the right of every role to call this function of the server. The variant for bytes is not meant.
    #[track_caller]
    pub(crate) fn revoke_call(&self, name: &str) {
        // The arguments are not the same in all versions.
        let function = self.ask(&format!(
            "SELECT oid::regprocedure FROM pg_proc WHERE pronamespace = 'pg_catalog'::regnamespace \
             AND proname = '{name}' AND 'bytea'::regtype <> ALL (proargtypes)"
        ));
        self.ask(&format!("REVOKE EXECUTE ON FUNCTION {} FROM PUBLIC", function.trim_end()));
    }

    /// Runs a statement. Returns its rows.
    fn try_ask(&self, statement: &str) -> io::Result<Vec<Row>> {
        let client = match self.client.take() {
            Some(client) => Ok(client),
            None => Client::local(self.directory.path(), self.port).and_then(|mut client| {
                // So that the tests' own statements are not among the requests that they count.
                client.ask("SET pg_stat_statements.track = 'none'")?;
                Ok(client)
            }),
        };
        let mut client = client?;
        let answer = client.ask(statement)?;
        *self.client.borrow_mut() = Some(client);
        Ok(answer)
    }

    /// Begins a transaction of another client, and runs this statement in it. It is rolled back when it is dropped.
    #[track_caller]
    pub(crate) fn transaction(&self, statement: &str) -> Transaction {
        let mut client = Client::local(self.directory.path(), self.port).expect("the server accepts");
        client.ask("BEGIN").and_then(|_| client.ask(statement)).expect(statement);
        Transaction(client)
    }

    /// Makes the server a standby without a primary, which accepts no writes.
    pub(crate) fn demote(&self) {
        self.stop_in_peace();
        let signal = self.data().join("standby.signal");
        fs::write(&signal, "").expect("our own directory");
        give(&signal);
        self.start_again();
    }

    /// Stops the server by a fast shutdown, as an administrator does: it writes all its data first.
    pub(crate) fn stop_in_peace(&self) {
        self.client.take();
        let mut child = self.server.take().expect("the server runs");
        send(child.id().cast_signed(), Signal::SIGINT);
        eventually(LONG, "it has stopped", || child.try_wait().expect("our own child").is_some());
    }

    /// Returns the first process: the parent of all others, and the only one that starts new ones.
    fn postmaster(&self) -> i32 {
        self.server.borrow().as_ref().expect("the server runs").id().cast_signed()
    }

    /// Stops the server, and kills what is left of it after 10 s.
    fn end(&self) {
        self.client.take();
        let Some(mut child) = self.server.take() else { return };
        let postmaster = child.id().cast_signed();
        let others = children(postmaster);
        for pid in others.iter().chain([&postmaster]) {
            send(*pid, Signal::SIGCONT);
        }
        // An immediate shutdown: no checkpoint, but shared memory is removed.
        send(postmaster, Signal::SIGQUIT);
        if !happens_within(Duration::from_secs(10), || !matches!(child.try_wait(), Ok(None))) {
            for pid in others {
                send(pid, Signal::SIGKILL);
            }
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// An open transaction.
pub(crate) struct Transaction(Client);

impl Transaction {
    #[track_caller]
    pub(crate) fn commit(mut self) {
        self.0.ask("COMMIT").expect("it can be committed");
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        self.end();
    }
}
