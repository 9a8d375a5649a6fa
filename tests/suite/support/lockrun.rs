//! The program under test: how it is called, and what came of it.

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
use super::deadline::{LONG, eventually, eventually_some};
use super::output::{Output, fail, read, text};
use super::processes::{self, MARK, PATH};
use super::store::Store;

/// The program that is tested.
pub(crate) const PROGRAM: &str = env!("CARGO_BIN_EXE_lockrun");

/// A copy of the program where every user can execute it, and the directory that goes with it.
pub(crate) fn program_for_all() -> (TempDir, String) {
    let directory = TempDir::new().expect("a temporary directory");
    fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755)).expect("our own");
    let program = directory.path().join("lockrun");
    // By a process of its own: one of ours that another test forks meanwhile would have it open for writing, and it could not be
    // executed.
    let copied = Command::new("cp").arg(PROGRAM).arg(&program).status().expect("cp(1) is there");
    assert!(copied.success(), "the program is copied");
    let path = program.to_str().expect("a plain path").to_owned();
    (directory, path)
}

/// One call of the program, with an environment that holds only `PATH`, `HOME` and what the test adds.
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
    /// A call that uses this store.
    pub(crate) fn new(store: &Store) -> Self {
        Self::at(&store.url())
    }

    /// A call that uses the store at this URL.
    pub(crate) fn at(url: &str) -> Self {
        Self::bare().args(["--store", url])
    }

    /// A call of one of lockrun's other commands, such as `acquire`, that uses this store.
    pub(crate) fn other(word: &str, store: &Store) -> Self {
        Self::bare().args([word, "--store", &store.url()])
    }

    /// A call without any argument.
    pub(crate) fn bare() -> Self {
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
        // Tied to the option, a name that looks like one is a name all the same.
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

    /// The command that runs under the lock, after a `--`.
    pub(crate) fn command<A: AsRef<OsStr>>(mut self, words: impl IntoIterator<Item = A>) -> Self {
        self.command = words.into_iter().map(|word| word.as_ref().to_owned()).collect();
        self
    }

    /// A shell script that executes this call as `"$@"`, in the call's surroundings. To start by `alone` or `spawn_alone`, under
    /// no lock.
    pub(crate) fn in_shell(&self, script: &str) -> Self {
        let words = ["sh", "-c", script, "sh"].map(OsString::from);
        let shell = Self { args: Vec::new(), ..self.clone() };
        shell.command(words.into_iter().chain(self.words()))
    }

    /// The command is a shell script.
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

    /// Starts; the guard kills everything that the run has started when it goes.
    pub(crate) fn spawn(&self) -> Running {
        self.start(&self.words())
    }

    /// Runs the same command without the program, in the same surroundings.
    #[track_caller]
    pub(crate) fn alone(&self) -> Output {
        self.spawn_alone().wait()
    }

    /// Starts the command without the program.
    pub(crate) fn spawn_alone(&self) -> Running {
        self.start(&self.command)
    }

    /// The argument vector of the whole call, for a shell or a terminal to start.
    pub(crate) fn words(&self) -> Vec<OsString> {
        let mut argv = vec![OsString::from(PROGRAM)];
        argv.extend(self.args.iter().cloned());
        if !self.command.is_empty() {
            argv.push("--".into());
            argv.extend(self.command.iter().cloned());
        }
        argv
    }

    /// Starts; the command's standard input has no end before it is told to finish.
    pub(crate) fn with_open_input(&self) -> Open {
        self.open(&self.words())
    }

    /// The same for the command without the program.
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
        let stdout = tempfile::tempfile().expect("a temporary file");
        let stderr = tempfile::tempfile().expect("a temporary file");
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

/// Starts this call with a command that tells its token and waits for its end; returns when the command runs.
#[track_caller]
pub(crate) fn waiting_for_its_end(call: &Lockrun) -> Open {
    let mut run = call.clone().sh("echo $LOCKRUN_TOKEN; echo ready; read line || :").with_open_input();
    run.run.wait_for_line("ready");
    run
}

fn holding(bytes: &[u8]) -> File {
    let mut file = tempfile::tempfile().expect("a temporary file");
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
    /// Lets the command go on.
    pub(crate) fn close(self) -> Running {
        drop(self.end);
        self.run
    }

    /// Lets the command end, and gives the end of the run.
    #[track_caller]
    pub(crate) fn finish(self) -> Output {
        self.close().wait()
    }
}

/// A run that has been started. When it is dropped, every process of it that still lives is killed.
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

    /// What is on standard output so far.
    pub(crate) fn stdout(&self) -> String {
        text(&read(&self.stdout))
    }

    /// What is on standard error so far.
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

    /// Waits until there is this text on standard output.
    #[track_caller]
    pub(crate) fn wait_for_stdout(&mut self, words: &str) {
        self.wait_until(words, |run| run.stdout().contains(words));
    }

    /// Waits until there is this text on standard error.
    #[track_caller]
    pub(crate) fn wait_for_stderr(&mut self, words: &str) {
        self.wait_until(words, |run| run.stderr().contains(words));
    }

    /// Whether the command has printed this line.
    pub(crate) fn has_line(&self, line: &str) -> bool {
        self.stdout().lines().any(|one| one == line)
    }

    /// Waits until this is `seen`; false if the run has ended without it.
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

    #[track_caller]
    fn wait_until(&mut self, wanted: &str, seen: impl Fn(&Self) -> bool) {
        let mut ended = None;
        eventually(LONG, &format!("{wanted:?} from {}", self.what), || {
            if seen(self) {
                return true;
            }
            let (stdout, stderr) = (self.stdout(), self.stderr());
            if let Some(status) = ended {
                fail(&stderr, &format!("{} ended without {wanted:?}, {status}: {stdout:?} {stderr:?}", self.what));
            }
            ended = self.child.try_wait().expect("our own child");
            false
        });
    }

    /// Whether it has ended.
    pub(crate) fn has_ended(&mut self) -> bool {
        self.child.try_wait().expect("our own child").is_some()
    }

    /// The end of it; what it has left behind is killed.
    #[track_caller]
    pub(crate) fn wait(mut self) -> Output {
        self.end()
    }

    /// The end of it, to look at while what it has left behind still lives.
    #[track_caller]
    pub(crate) fn wait_and_leave(mut self, look: impl FnOnce(Output)) {
        let output = self.end();
        look(output);
    }

    /// The end of it; what it has left behind lives on until this is dropped.
    #[track_caller]
    pub(crate) fn end(&mut self) -> Output {
        let mut pause = Duration::from_millis(1);
        let status = loop {
            if let Some(status) = self.child.try_wait().expect("our own child") {
                break status;
            }
            let (stdout, stderr) = (self.stdout(), self.stderr());
            assert!(self.started.elapsed() < LONG * 2, "{} does not end; so far: {stdout:?} {stderr:?}", self.what);
            std::thread::sleep(pause);
            pause = (pause * 2).min(Duration::from_millis(10));
        };
        self.output(status)
    }

    /// The living processes of this run, the program's own included.
    pub(crate) fn processes(&self) -> Vec<i32> {
        processes::marked(&self.mark, Some(self.first()))
    }

    /// The other processes of lockrun that belong to this run.
    pub(crate) fn guardians(&self) -> Vec<i32> {
        let program = fs::canonicalize(PROGRAM).expect("the program is there");
        let mut found = self.processes();
        found.retain(|pid| *pid != self.pid());
        found.retain(|pid| fs::read_link(format!("/proc/{pid}/exe")).is_ok_and(|exe| exe == program));
        found
    }

    /// The only process beside the program's own, its command. In the moment in which that executes another program it belongs to
    /// nobody that can be told, so it is waited for.
    #[track_caller]
    pub(crate) fn command(&self) -> i32 {
        eventually_some(LONG, "there is its command, and nothing else", || {
            let others: Vec<i32> = self.processes().into_iter().filter(|pid| *pid != self.pid()).collect();
            (others.len() == 1).then(|| others[0])
        })
    }

    /// Kills the program and all that it has started, as a power cut would; returns when none is left.
    pub(crate) fn kill_everything(&mut self) {
        processes::kill_marked(&self.mark, Some(self.first()));
        let _ = self.child.wait();
        eventually(LONG, "every process of the run is dead", || self.processes().is_empty());
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
