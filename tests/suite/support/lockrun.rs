//! The program under test: its calls and their outcomes.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::{Seek, SeekFrom, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use tempfile::TempDir;

use super::birth::Birth;
use super::deadline::{self, LONG, eventually, eventually_some};
use super::memory;
use super::output::{Output, fail, read, text};
use super::processes::{self, MARK, PATH};
use super::reasons;
use super::store::Store;

/// The program that is tested.
pub(crate) const PROGRAM: &str = match option_env!("SUITE_LOCKRUN") {
    Some(program) => program,
    None => env!("CARGO_BIN_EXE_lockrun"),
};

/// Returns a copy of the program that every user can execute, and its temporary directory.
pub(crate) fn program_for_all() -> (TempDir, String) {
    let directory = TempDir::new().expect("a temporary directory");
    fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755)).expect("our own");
    let program = directory.path().join("lockrun");
    // A child process copies it: otherwise a process that another test forks meanwhile would have it open for writing,
    // and the kernel would not execute it.
    let copied = Command::new("cp").arg(PROGRAM).arg(&program).status().expect("cp(1) is there");
    assert!(copied.success(), "the program is copied");
    let path = program.to_str().expect("a plain path").to_owned();
    (directory, path)
}

/// One call of the program, whose environment contains only `PATH`, `HOME` and what the test adds.
#[derive(Clone)]
pub(crate) struct Lockrun {
    args: Vec<OsString>,
    command: Vec<OsString>,
    env: BTreeMap<OsString, OsString>,
    directory: Option<PathBuf>,
    stdin: Vec<u8>,
    birth: Birth,
}

impl Lockrun {
    /// Returns a call that uses this store.
    pub(crate) fn new(store: &Store) -> Self {
        Self::at(&store.url())
    }

    /// Returns a call that uses the store at this URL.
    pub(crate) fn at(url: &str) -> Self {
        Self::bare().args(["--store", url])
    }

    /// Returns a call of one of lockrun's other commands, such as `acquire`, that uses this store.
    pub(crate) fn other(word: &str, store: &Store) -> Self {
        Self::bare().args([word, "--store", &store.url()])
    }

    /// Returns a call without any argument.
    pub(crate) fn bare() -> Self {
        reasons::say_at_once();
        Self {
            args: Vec::new(),
            command: Vec::new(),
            env: BTreeMap::new(),
            directory: None,
            stdin: Vec::new(),
            birth: Birth::default(),
        }
        .env("PATH", PATH)
        .env("HOME", "/nonexistent")
    }

    pub(crate) fn key(self, key: impl AsRef<OsStr>) -> Self {
        // Joined by `=`, so that a name that looks like an option is still a name.
        let mut tied = OsString::from("--key=");
        tied.push(key);
        self.arg(tied)
    }

    pub(crate) fn arg(mut self, arg: impl AsRef<OsStr>) -> Self {
        self.args.push(arg.as_ref().to_owned());
        self
    }

    pub(crate) fn args<A: AsRef<OsStr>>(self, args: impl IntoIterator<Item = A>) -> Self {
        args.into_iter().fold(self, Self::arg)
    }

    /// Sets the command that runs under the lock, after a `--`.
    pub(crate) fn command<A: AsRef<OsStr>>(mut self, words: impl IntoIterator<Item = A>) -> Self {
        self.command = words.into_iter().map(|word| word.as_ref().to_owned()).collect();
        self
    }

    /// Returns a call whose command is a shell script that executes this call as `"$@"`, in the same environment. Start
    /// it with `alone` or `spawn_alone`, without a lock.
    pub(crate) fn in_shell(&self, script: &str) -> Self {
        let words = ["sh", "-c", script, "sh"].map(OsString::from);
        let shell = Self { args: Vec::new(), ..self.clone() };
        shell.command(words.into_iter().chain(self.words()))
    }

    /// Sets a shell script as the command.
    pub(crate) fn sh(self, script: &str) -> Self {
        self.command(["sh", "-c", script])
    }

    pub(crate) fn env(mut self, name: &str, value: impl AsRef<OsStr>) -> Self {
        self.env.insert(name.into(), value.as_ref().to_owned());
        self
    }

    pub(crate) fn directory(mut self, path: &Path) -> Self {
        self.directory = Some(path.to_owned());
        self
    }

    pub(crate) fn stdin(mut self, bytes: impl Into<Vec<u8>>) -> Self {
        self.stdin = bytes.into();
        self
    }

    pub(crate) fn birth(mut self, birth: Birth) -> Self {
        self.birth = birth;
        self
    }

    /// Runs to the end.
    #[track_caller]
    pub(crate) fn run(&self) -> Output {
        self.spawn().wait()
    }

    /// Starts the call. Everything that the run has started is killed when the result is dropped.
    pub(crate) fn spawn(&self) -> Running {
        self.start(&self.words())
    }

    /// Runs the command without lockrun, in the same environment.
    #[track_caller]
    pub(crate) fn alone(&self) -> Output {
        self.spawn_alone().wait()
    }

    /// Starts the command without lockrun.
    pub(crate) fn spawn_alone(&self) -> Running {
        self.start(&self.command)
    }

    /// Returns the argument vector of the whole call, for a shell or a terminal to start.
    pub(crate) fn words(&self) -> Vec<OsString> {
        let mut argv = vec![OsString::from(PROGRAM)];
        argv.extend(self.args.iter().cloned());
        if !self.command.is_empty() {
            argv.push("--".into());
            argv.extend(self.command.iter().cloned());
        }
        argv
    }

    /// Starts the call with a standard input that ends only when the test closes it.
    pub(crate) fn with_open_input(&self) -> Open {
        self.open(&self.words())
    }

    /// Does the same for the command without lockrun.
    pub(crate) fn alone_with_open_input(&self) -> Open {
        self.open(&self.command)
    }

    fn open(&self, argv: &[OsString]) -> Open {
        let (input, end) = nix::unistd::pipe2(nix::fcntl::OFlag::O_CLOEXEC).expect("a pipe");
        Open { run: self.start_with(argv, Stdio::from(input)), end }
    }

    fn start(&self, argv: &[OsString]) -> Running {
        let stdin = if self.stdin.is_empty() { Stdio::null() } else { Stdio::from(holding(&self.stdin)) };
        self.start_with(argv, stdin)
    }

    fn start_with(&self, argv: &[OsString], stdin: Stdio) -> Running {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let mark = format!("{}-{number}", std::process::id());
        let stdout = memory::file();
        let stderr = memory::file();
        let mut command = Command::new(&argv[0]);
        command
            .args(&argv[1..])
            .env_clear()
            .envs(&self.env)
            .env(MARK, &mark)
            .stdin(stdin)
            .stdout(stdout.try_clone().expect("a second descriptor"))
            .stderr(stderr.try_clone().expect("a second descriptor"));
        if let Some(directory) = &self.directory {
            command.current_dir(directory);
        }
        self.birth.clone().prepare(&mut command);
        let child = command.spawn().unwrap_or_else(|error| panic!("cannot start {argv:?}: {error}"));
        Running { child, what: format!("{argv:?}"), mark, stdout, stderr, started: Instant::now() }
    }
}

/// Starts this call with a command that prints its token and waits for the end of its input. Returns when the command
/// runs.
#[track_caller]
pub(crate) fn waiting_for_its_end(call: &Lockrun) -> Open {
    let mut run = call.clone().sh("echo $LOCKRUN_TOKEN; echo ready; read line || :").with_open_input();
    run.run.wait_for_line("ready");
    run
}

fn holding(bytes: &[u8]) -> File {
    let mut file = memory::file();
    file.write_all(bytes).expect("the input is written");
    file.seek(SeekFrom::Start(0)).expect("the input is rewound");
    file
}

/// A run whose command waits for the end of its standard input.
pub(crate) struct Open {
    pub(crate) run: Running,
    end: OwnedFd,
}

impl Open {
    /// Ends the standard input, so that the command continues.
    pub(crate) fn close(self) -> Running {
        drop(self.end);
        self.run
    }

    /// Ends the standard input, and waits for the end of the run.
    #[track_caller]
    pub(crate) fn finish(self) -> Output {
        self.close().wait()
    }
}

/// A run that has been started. Its living processes are killed when this is dropped.
pub(crate) struct Running {
    child: Child,
    what: String,
    mark: String,
    stdout: File,
    stderr: File,
    started: Instant,
}

impl Running {
    pub(crate) fn pid(&self) -> i32 {
        self.child.id().cast_signed()
    }

    fn first(&self) -> processes::First {
        processes::First { pid: self.pid(), started: self.started }
    }

    /// Returns the standard output so far.
    pub(crate) fn stdout(&self) -> String {
        text(&read(&self.stdout))
    }

    /// Returns the standard error so far.
    pub(crate) fn stderr(&self) -> String {
        text(&read(&self.stderr))
    }

    pub(crate) fn signal(&self, signal: Signal) {
        processes::send(self.pid(), signal);
    }

    /// Waits until the command has printed this line.
    #[track_caller]
    pub(crate) fn wait_for_line(&mut self, line: &str) {
        self.wait_until(line, |run| run.has_line(line));
    }

    /// Waits until standard output contains this text.
    #[track_caller]
    pub(crate) fn wait_for_stdout(&mut self, words: &str) {
        self.wait_until(words, |run| run.stdout().contains(words));
    }

    /// Waits until standard error contains this text.
    #[track_caller]
    pub(crate) fn wait_for_stderr(&mut self, words: &str) {
        self.wait_until(words, |run| run.stderr().contains(words));
    }

    /// Returns whether the command has printed this line.
    pub(crate) fn has_line(&self, line: &str) -> bool {
        self.stdout().lines().any(|one| one == line)
    }

    /// Waits until this is `seen`. Returns false if the run has ended without it.
    #[track_caller]
    pub(crate) fn comes_to(&mut self, seen: impl Fn(&Self) -> bool) -> bool {
        let mut ended = false;
        let what = self.what.clone();
        eventually_some(LONG, &what, || {
            if seen(self) || ended {
                return Some(seen(self));
            }
            ended = self.has_ended();
            None
        })
    }

    /// Waits until this is `seen`, which is what is `wanted` of the run. Fails the test with the run's output if the
    /// run ends without it.
    #[track_caller]
    pub(crate) fn wait_until(&mut self, wanted: &str, seen: impl Fn(&Self) -> bool) {
        let mut ended = None;
        eventually(LONG, &format!("{wanted:?} from {}", self.what), || {
            if seen(self) {
                return true;
            }
            if let Some(status) = ended {
                let (stdout, stderr) = (self.stdout(), self.stderr());
                fail(&stderr, &format!("{} ended without {wanted:?}, {status}: {stdout:?} {stderr:?}", self.what));
            }
            ended = self.child.try_wait().expect("our own child");
            false
        });
    }

    /// Returns whether the run has ended.
    pub(crate) fn has_ended(&mut self) -> bool {
        self.child.try_wait().expect("our own child").is_some()
    }

    /// Waits for the end of the run, and kills the processes that it has left behind.
    #[track_caller]
    pub(crate) fn wait(mut self) -> Output {
        self.end()
    }

    /// Waits for the end of the run, and calls `look` while the processes that it has left behind still live.
    #[track_caller]
    pub(crate) fn wait_and_leave(mut self, look: impl FnOnce(Output)) {
        let output = self.end();
        look(output);
    }

    /// Waits for the end of the run. The processes that it has left behind live on until this is dropped.
    #[track_caller]
    pub(crate) fn end(&mut self) -> Output {
        let (began, mut pause) = (Instant::now(), Duration::from_millis(1));
        let status = loop {
            if let Some(status) = self.child.try_wait().expect("our own child") {
                break status;
            }
            let is_late = began.elapsed() > LONG * 2;
            assert!(!is_late, "{} does not end; so far: {:?} {:?}", self.what, self.stdout(), self.stderr());
            std::thread::sleep(pause);
            pause = (pause * 2).min(deadline::PAUSE);
        };
        self.output(status)
    }

    /// Returns the living processes of this run, including lockrun's own.
    pub(crate) fn processes(&self) -> Vec<i32> {
        processes::marked(&self.mark, Some(self.first()))
    }

    /// Returns this run's other processes of lockrun.
    pub(crate) fn guardians(&self) -> Vec<i32> {
        let program = fs::canonicalize(PROGRAM).expect("the program is there");
        let mut found = self.processes();
        found.retain(|pid| *pid != self.pid());
        found.retain(|pid| fs::read_link(format!("/proc/{pid}/exe")).is_ok_and(|exe| exe == program));
        found
    }

    /// Returns the command: the only process of the run beside lockrun's own. While it executes another program, its
    /// environment, and so its mark, cannot be read, so this waits for it.
    #[track_caller]
    pub(crate) fn command(&self) -> i32 {
        eventually_some(LONG, "there is its command, and nothing else", || {
            let others: Vec<i32> = self.processes().into_iter().filter(|pid| *pid != self.pid()).collect();
            (others.len() == 1).then(|| others[0])
        })
    }

    /// Kills lockrun and everything that it has started, as a power cut would. Returns when none is left.
    pub(crate) fn kill_everything(&mut self) {
        let dying = processes::kill_marked(&self.mark, Some(self.first()));
        let _ = self.child.wait();
        let is_dead = |pid: &i32| !processes::is_alive(*pid);
        eventually(LONG, "every process of the run is dead", || {
            self.processes().is_empty() && dying.iter().all(is_dead)
        });
    }

    fn output(&self, status: ExitStatus) -> Output {
        Output {
            what: self.what.clone(),
            status: status.code(),
            signal: status.signal(),
            core: status.core_dumped(),
            stdout: read(&self.stdout),
            stderr: read(&self.stderr),
            took: self.started.elapsed(),
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        processes::kill_marked(&self.mark, Some(self.first()));
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
