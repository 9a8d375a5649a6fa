//! A PostgreSQL server of the test's own: on a free port of the loopback interface, with its data in a directory that goes with
//! it.

use std::fs::{self, File};
use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use nix::sys::signal::Signal;
use nix::unistd::{Uid, User};
use tempfile::TempDir;

use super::birth::Birth;
use super::deadline::{LONG, eventually};
use super::lockrun::Lockrun;
use super::processes::{find_program, send};
use super::redis::free_port;

/// A running server; it is ended when this is dropped.
pub(crate) struct Postgres {
    _directory: TempDir,
    port: u16,
    server: Child,
}

impl Postgres {
    pub(crate) fn start() -> Self {
        for _ in 0..20 {
            if let Some(postgres) = Self::launch() {
                return postgres;
            }
        }
        panic!("postgres does not start");
    }

    /// Makes the data and starts the server; nothing when it ended again, as it does when another took the port.
    fn launch() -> Option<Self> {
        let directory = TempDir::new().expect("a temporary directory");
        let data = directory.path().join("data");
        let log = directory.path().join("log");
        let output = File::create(&log).expect("a log file");
        let command = |name: &str| {
            let mut command = Command::new(find_server_program(name));
            command.env_clear().env("PATH", super::processes::PATH).env("LC_ALL", "C").current_dir(directory.path());
            command.stdin(Stdio::null()).stdout(output.try_clone().expect("a second descriptor"));
            command.stderr(output.try_clone().expect("a second descriptor"));
            // It refuses to run as root.
            if Uid::effective().is_root() {
                let nobody = User::from_name("nobody").expect("users can be looked up").expect("there is nobody");
                chown(directory.path(), Some(nobody.uid.as_raw()), Some(nobody.gid.as_raw())).expect("we are root");
                command.uid(nobody.uid.as_raw()).gid(nobody.gid.as_raw());
            }
            Birth { dies_with_us: true, ..Birth::default() }.prepare(&mut command);
            command
        };
        let made =
            command("initdb").args(["-N", "-A", "trust", "-U", "postgres", "-E", "UTF8", "-D"]).arg(&data).status();
        assert!(made.is_ok_and(|status| status.success()), "initdb: {}", read(&log));
        let port = free_port();
        let settings = ["listen_addresses=127.0.0.1", "unix_socket_directories=", "fsync=off", "max_connections=100"];
        let mut server = command("postgres");
        server.arg("-D").arg(&data).args(["-p", &port.to_string()]);
        server.args(settings.iter().flat_map(|setting| ["-c", setting]));
        let server = server.spawn().expect("postgres starts");
        let mut postgres = Self { _directory: directory, port, server };
        let mut ended = false;
        eventually(LONG, "postgres is ready", || {
            ended = postgres.server.try_wait().expect("our own child").is_some();
            ended || read(&log).contains("ready to accept connections")
        });
        if ended { None } else { Some(postgres) }
    }

    /// The call with an environment in which psql finds the server.
    pub(crate) fn known_to(&self, call: Lockrun) -> Lockrun {
        let port = self.port.to_string();
        call.env("PGHOST", "127.0.0.1").env("PGPORT", port).env("PGUSER", "postgres").env("PGDATABASE", "postgres")
    }

    /// What a statement answers: a line for each row.
    #[track_caller]
    pub(crate) fn ask(&self, statement: &str) -> String {
        let psql = find_program("psql");
        let words = [psql.to_str().expect("a plain path"), "-XAtq", "-v", "ON_ERROR_STOP=1", "-c", statement];
        self.known_to(Lockrun::bare()).command(words).alone().exited(0).stdout()
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        // At once, but so that its own processes and its shared memory go too.
        send(self.server.id().cast_signed(), Signal::SIGQUIT);
        let mut ended = || matches!(self.server.try_wait(), Ok(Some(_)) | Err(_));
        for _ in 0..1000 {
            if ended() {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}

fn read(log: &Path) -> String {
    fs::read_to_string(log).unwrap_or_default()
}

/// Where a program of the server lies: Debian has those of each version in a directory of their own.
fn find_server_program(name: &str) -> PathBuf {
    let versions = fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let found = versions.map(|version| version.path().join("bin").join(name)).find(|path| path.is_file());
    found.unwrap_or_else(|| find_program(name))
}
