//! A MariaDB server of the test's own: on a free port of the loopback interface, with its data in a directory that is
//! removed with it.

mod client;

use std::cell::RefCell;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::LazyLock;

use nix::sys::signal::Signal;
use nix::unistd::Uid;
use serde_json::Value;
use tempfile::TempDir;

use self::client::{Client, Row};
use super::deadline::{LONG, eventually};
use super::lease_server::LeaseServer;
use super::memory;
use super::ports::free_port;
use super::processes::{find_program, send, state};
use super::server::{give, unprivileged};
use super::tls::Certificates;

/// The database.
const DATABASE: &str = "locks";

/// The settings that the data depend on: small, since each test has a copy.
const DATA_SETTINGS: [&str; 6] = [
    "--innodb-data-file-path=ibdata1:4M:autoextend",
    "--innodb-autoextend-increment=1",
    "--innodb-log-file-size=4M",
    "--innodb-buffer-pool-size=8M",
    "--innodb-undo-tablespaces=0",
    "--innodb-temp-data-file-path=ibtmp1:1M:autoextend",
];

/// The other settings of every server.
const SETTINGS: [&str; 5] = [
    "--bind-address=127.0.0.1",
    "--max-connections=500",
    "--performance-schema=0",
    "--skip-name-resolve",
    "--innodb-flush-log-at-trx-commit=1",
];

/// A running server. It is killed when this is dropped.
pub(crate) struct Mariadb {
    directory: TempDir,
    port: u16,
    settings: Vec<String>,
    server: RefCell<Option<Child>>,
    client: RefCell<Option<Client>>,
}

impl Mariadb {
    pub(crate) fn start() -> Self {
        Self::with(&[])
    }

    /// Starts a server with these options.
    pub(crate) fn with(settings: &[&str]) -> Self {
        for _ in 0..20 {
            let directory = memory::directory();
            copy(&TEMPLATE, &directory.path().join("data"));
            let settings = settings.iter().map(|&setting| setting.to_owned()).collect();
            let (server, client) = (RefCell::new(None), RefCell::new(None));
            let mariadb = Self { directory, port: free_port(), settings, server, client };
            if mariadb.launch() {
                return mariadb;
            }
        }
        panic!("mariadbd does not start");
    }

    /// Starts a server that offers TLS with these certificates.
    pub(crate) fn with_tls(certificates: &Certificates) -> Self {
        // The server, which is not root, must be able to read its key.
        let place = memory::directory();
        fs::set_permissions(place.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755)).expect("our own");
        let option = |option: &str, name: &str| {
            let path = place.path().join(name);
            fs::copy(certificates.path(name), &path).expect("they were made");
            give(&path);
            format!("--ssl-{option}={}", path.display())
        };
        let options = [option("ca", "ca.crt"), option("cert", "server.crt"), option("key", "server.key")];
        Self::with(&options.each_ref().map(String::as_str))
    }

    fn launch(&self) -> bool {
        let log = File::create(self.directory.path().join("log")).expect("a log file");
        let path = |name: &str| self.directory.path().join(name).display().to_string();
        let mut command = unprivileged(&find_program("mariadbd"), self.directory.path());
        command.arg("--no-defaults").args(DATA_SETTINGS).args(SETTINGS);
        command.args(["--datadir", &path("data"), "--socket", &path("socket"), "--pid-file", &path("pid")]);
        command.args(["--tmpdir", &path("")]);
        command.args(["--port", &self.port.to_string()]).args(&self.settings);
        command.stdout(log.try_clone().expect("a second descriptor")).stderr(log);
        *self.server.borrow_mut() = Some(command.spawn().expect("mariadbd starts"));
        let mut ended = false;
        eventually(LONG, "mariadbd is ready", || {
            let mut server = self.server.borrow_mut();
            ended = server.as_mut().is_none_or(|child| child.try_wait().expect("our own child").is_some());
            ended || Client::connect(&self.socket(), "").is_ok()
        });
        !ended
    }

    fn socket(&self) -> PathBuf {
        self.directory.path().join("socket")
    }

    fn pid(&self) -> i32 {
        let server = self.server.borrow();
        i32::try_from(server.as_ref().expect("it runs").id()).expect("a process id")
    }

    /// Returns the URL for this user, with these parameters.
    pub(crate) fn url_as(&self, user: &str, parameters: &str) -> String {
        let separator = if parameters.is_empty() { "" } else { "?" };
        format!("mysql://{user}@127.0.0.1:{}/{DATABASE}{separator}{parameters}", self.port)
    }

    /// Runs a statement. Returns its rows.
    pub(crate) fn try_ask(&self, statement: &str) -> io::Result<Vec<Row>> {
        let client = self.client.take();
        let mut client = client.map_or_else(|| Client::connect(&self.socket(), DATABASE), Ok)?;
        let answer = client.ask(statement);
        // After a restart, or an error, the next statement gets another connection.
        if answer.is_ok() {
            *self.client.borrow_mut() = Some(client);
        }
        answer
    }

    /// Runs a statement. Returns its rows, one per line.
    #[track_caller]
    pub(crate) fn ask(&self, statement: &str) -> String {
        let rows = self.try_ask(statement).unwrap_or_else(|error| panic!("{statement}: {error}"));
        let line = |row: &Row| row.iter().map(|it| it.as_deref().unwrap_or_default()).collect::<Vec<_>>().join("|");
        rows.iter().map(|row| line(row) + "\n").collect()
    }

    /// Runs a statement that returns one number.
    #[track_caller]
    pub(crate) fn count(&self, statement: &str) -> u64 {
        self.ask(statement).trim().parse().expect("a number")
    }

    /// Runs a statement. Returns its rows, or none while there are no tables.
    #[track_caller]
    fn stored(&self, statement: &str) -> Vec<Row> {
        match self.try_ask(statement) {
            Ok(rows) => rows,
            // ER_NO_SUCH_TABLE
            Err(error) if error.to_string().contains("error 1146") => Vec::new(),
            Err(error) => panic!("{statement}: {error}"),
        }
    }

    /// Changes the state of a lock.
    #[track_caller]
    pub(crate) fn edit(&self, key: &str, change: impl FnOnce(&mut Value)) {
        let key = quoted(key);
        let state = self.ask(&format!("SELECT state FROM lockrun_locks WHERE k = {key}"));
        let mut state = serde_json::from_str(&state).expect("JSON");
        change(&mut state);
        self.ask(&format!("UPDATE lockrun_locks SET state = {} WHERE k = {key}", quoted(&state.to_string())));
    }

    /// Adds a waiter that never asks again, and whose place lasts.
    #[track_caller]
    pub(crate) fn add_waiter(&self, key: &str, waiter: &Value) {
        let token = quoted(waiter["token"].as_str().expect("a token"));
        let (key, waiter) = (quoted(key), quoted(&waiter.to_string()));
        self.ask(&format!(
            "INSERT INTO lockrun_waiters SELECT {key}, COALESCE(MAX(place), 0) + 1, {token}, {waiter}, 9000000000000 \
             FROM lockrun_waiters WHERE k = {key}"
        ));
    }
}

impl Drop for Mariadb {
    fn drop(&mut self) {
        self.kill();
    }
}

impl LeaseServer for Mariadb {
    fn port(&self) -> u16 {
        self.port
    }

    fn url_at(&self, port: u16) -> String {
        format!("mysql://root@127.0.0.1:{port}/{DATABASE}?tls=disabled")
    }

    fn pause(&self) {
        send(self.pid(), Signal::SIGSTOP);
        eventually(LONG, "it stands still", || matches!(state(self.pid()), None | Some('T' | 'Z')));
    }

    fn resume(&self) {
        send(self.pid(), Signal::SIGCONT);
    }

    fn kill(&self) {
        if let Some(mut server) = self.server.borrow_mut().take() {
            let _ = server.kill();
            let _ = server.wait();
        }
        self.client.take();
    }

    fn start_again(&self) {
        assert!(self.launch(), "mariadbd does not start again");
    }

    fn hang_up(&self) {
        let others = self.ask("SELECT ID FROM information_schema.PROCESSLIST WHERE ID <> CONNECTION_ID()");
        for id in others.lines() {
            // It may have ended by itself.
            let _ = self.try_ask(&format!("KILL {id}"));
        }
    }

    fn forget_everything(&self) {
        // A client that uses one table may wait for another that is already dropped.
        let drop = "DROP TABLE IF EXISTS lockrun_version, lockrun_locks, lockrun_waiters";
        self.ask("SET SESSION lock_wait_timeout = 1");
        eventually(LONG, "everything is deleted", || self.try_ask(drop).is_ok());
    }

    fn forget_holders(&self, key: &str) {
        self.edit(key, |state| state["holders"] = Value::Array(Vec::new()));
    }

    fn expire(&self, key: &str) {
        self.edit(key, |state| {
            for holder in state["holders"].as_array_mut().into_iter().flatten() {
                holder["lease"]["ends_ms"] = Value::from(1);
            }
        });
    }

    fn word(&self) -> &'static str {
        // `READ COMMITTED` occurs in the first half.
        ";COMMIT"
    }

    fn requests(&self) -> u64 {
        // Each operation is a transaction, and so are the renewal of a place and a page of a listing.
        let status = self.ask("SHOW GLOBAL STATUS LIKE 'Com_begin'");
        status.trim().rsplit('|').next().and_then(|count| count.parse().ok()).expect("a number")
    }

    fn round_trips(&self, requests: u64) -> u64 {
        // The login, and the two halves of each transaction.
        1 + 2 * requests
    }

    fn farewells(&self) -> u64 {
        1
    }

    fn waiting(&self, key: &str) -> Vec<String> {
        let key = quoted(key);
        let tokens = self.stored(&format!("SELECT token FROM lockrun_waiters WHERE k = {key} ORDER BY place"));
        tokens.into_iter().flatten().flatten().collect()
    }

    fn asleep(&self) -> usize {
        let asleep = self.stored("SELECT COUNT(*) FROM lockrun_waiters WHERE ends_ms > UNIX_TIMESTAMP(NOW(6)) * 1000");
        asleep.first().map_or(0, |row| row[0].as_ref().and_then(|count| count.parse().ok()).expect("a number"))
    }

    fn left(&self, key: &str, counts_what_goes: bool) -> Vec<String> {
        let mut left = Vec::new();
        for row in self.stored("SELECT k, state FROM lockrun_locks ORDER BY k") {
            let [Some(name), Some(state)] = &row[..] else { panic!("{row:?}") };
            if name == key {
                let state = serde_json::from_str(state).expect("JSON");
                left.extend(
                    super::postgres::what_holds(&state, counts_what_goes).map(|what| format!("{name}: {what}")),
                );
            } else {
                left.push(format!("{name}: all"));
            }
        }
        if counts_what_goes {
            let waiters = self.stored("SELECT CONCAT(k, ': the waiter ', token) FROM lockrun_waiters ORDER BY place");
            left.extend(waiters.into_iter().flatten().flatten());
        }
        left
    }
}

/// The data of an empty server, created once for all tests: a copy takes a tenth of the time.
static TEMPLATE: LazyLock<PathBuf> = LazyLock::new(|| {
    let template = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("mariadb-of-{}", Uid::effective()));
    if !template.is_dir() {
        let place = memory::directory();
        let data = place.path().join("data");
        let mut install = unprivileged(&find_program("mariadb-install-db"), place.path());
        install.args(["--no-defaults", "--auth-root-authentication-method=normal", "--skip-test-db"]);
        run(install.arg(format!("--datadir={}", data.display())).args(DATA_SETTINGS));
        // A directory is a database.
        fs::create_dir(data.join(DATABASE)).expect("our own directory");
        give(&data.join(DATABASE));
        // Another suite may make it at the same time: the first complete one is used.
        let copied = TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).expect("a temporary directory");
        copy(&data, &copied.path().join("data"));
        let moved = fs::rename(copied.path().join("data"), &template);
        assert!(moved.is_ok() || template.is_dir(), "{}: {moved:?}", template.display());
    }
    template
});

fn copy(from: &Path, to: &Path) {
    run(Command::new("cp").arg("-a").arg(from).arg(to));
}

#[track_caller]
fn run(command: &mut Command) {
    let output = command.stdin(Stdio::null()).output().expect("the program starts");
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
}

/// Quotes a text for a statement.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\\', "\\\\").replace('\'', "''"))
}
