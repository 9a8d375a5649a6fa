//! A Redis server of the test's own.

use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use redis::{Cmd, Connection, Pipeline, Value};
use tempfile::TempDir;

/// How long the server may take to start on a busy machine.
const START: Duration = Duration::from_mins(1);

/// A running server, on a socket in a temporary directory. It ends with this value, and also if the test is killed.
pub(super) struct Server {
    connection: Connection,
    _shell: Shell,
    _directory: TempDir,
}

impl Server {
    /// Starts it.
    pub(super) fn start() -> Self {
        let directory = TempDir::new().expect("a directory");
        // The shell reads the end of its standard input when this process is gone, however it ended.
        let shell = Command::new("sh")
            .args(["-c", "redis-server \"$@\" </dev/null >log 2>&1 & cat >/dev/null; kill -KILL $!; wait", "sh"])
            .args(["--port", "0", "--unixsocket", "redis.sock", "--save", "", "--appendonly", "no"])
            .current_dir(directory.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("sh starts");
        let shell = Shell(shell);
        let client = redis::Client::open(format!("unix://{}", directory.path().join("redis.sock").display()));
        let client = client.expect("is an address");
        let begun = Instant::now();
        loop {
            if let Ok(connection) = client.get_connection() {
                return Server { connection, _shell: shell, _directory: directory };
            }
            let log = std::fs::read_to_string(directory.path().join("log")).unwrap_or_default();
            // What the shell says if there is no such program, or what the program says itself.
            let has_failed = begun.elapsed() > START || log.contains("not found") || log.contains("FATAL");
            assert!(!has_failed, "redis-server does not start; this test needs it: {log}");
            thread::sleep(Duration::from_millis(10));
        }
    }

    /// Loads a script, and returns its hash.
    pub(super) fn load(&mut self, text: &str) -> String {
        redis::cmd("SCRIPT").arg("LOAD").arg(text).query(&mut self.connection).expect("is a script")
    }

    /// Deletes all data, then runs the commands, which are sent at once. Returns their replies.
    pub(super) fn play(&mut self, commands: Vec<Cmd>) -> Vec<Value> {
        let mut pipeline = Pipeline::new();
        pipeline.cmd("FLUSHALL").ignore();
        for command in commands {
            pipeline.add_command(command);
        }
        pipeline.query(&mut self.connection).expect("redis-server answers")
    }
}

/// The shell that ends the server.
struct Shell(Child);

impl Drop for Shell {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}
