//! Commands that are hard to end: chains of processes that live for a millisecond, scripts that start themselves again,
//! sessions, daemons and trees, of a user without privileges. They are ended in every way in which lockrun ends a
//! command, and no later command may begin before the last sign of life of an earlier one.
//!
//! `SEED` repeats the order of commands, `SECONDS_PER_STORE` lets it last longer: `make storms`.

use std::fs;
use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use super::asked::asked;
use super::workers::Ends;
use crate::support::deadline::happens_within;
use crate::support::pause::paused;
use crate::support::processes::{a_user_without_processes, children, find_program, send};
use crate::support::store::on_every_store;
use crate::support::user::User;
use crate::support::{LONG, Lockrun, Running, Store, eventually, memory};

const KEY: &str = "storm";

/// How many runs want the lock at any time.
const RUNS: usize = 3;

/// How long the test lasts among all the other tests.
const SLICE: u64 = 4;

/// How many processes the commands' user may have, dead ones that are not reaped included. Where lockrun hardly gets a
/// processor, a storm would otherwise use up the machine's process ids, and fail all tests beside it.
const PROCESSES: &str = "--nproc=3000";

/// No process of a command lives longer than so many seconds: an earlier end is lockrun's.
const SECONDS: &str = "20";

/// How the lock is held: every process of a command ends before the lock is free, also if the command ends by itself.
const HOW: [&str; 8] = [
    "--wait",
    "--ttl=3s",
    "--renew-every=300ms",
    "--kill-after=200ms",
    "--store-timeout=1s",
    "--descendants=kill",
    "--max-runtime=1500ms",
    "-v",
];

// "From COMMAND's first instruction until COMMAND and all that lockrun must stop is dead, no other run holds the same
// key."
on_every_store!(of_short_lived_processes, |store| {
    let seed = asked("SEED").unwrap_or_else(|| fastrand::u64(..));
    let time = Duration::from_secs(asked("SECONDS_PER_STORE").unwrap_or(SLICE));
    println!("{}, SEED={seed}, {time:?}\n{}", store.name(), Storm::new(store, seed).rage(time));
});

struct Storm<'a> {
    store: &'a Store,
    user: User,
    directory: tempfile::TempDir,
    random: fastrand::Rng,
    runs: Vec<Running>,
    /// The run whose command was struck last, and when the next one is due.
    struck: Option<PathBuf>,
    strike_at: Instant,
    /// A lockrun that was stopped. It goes on when the next command is struck.
    stopped: Option<i32>,
    ends: Ends,
    /// For how long the machine had been paused before.
    paused: Duration,
}

/// One command, by its own record. Times are those of the boot clock, in seconds.
struct Command {
    fence: u64,
    began: f64,
    last: f64,
    /// How many lanes of processes have shown a sign of life.
    lanes: usize,
}

impl<'a> Storm<'a> {
    fn new(store: &'a Store, seed: u64) -> Self {
        let uid = a_user_without_processes();
        let user = User::new(uid, &[]);
        let directory = memory::directory();
        fs::write(directory.path().join("swarm.pl"), include_str!("swarm.pl")).expect("our own directory");
        chown(directory.path(), Some(uid), None).expect("root may do this");
        if let Store::File(locks) = store {
            chown(locks.path(), Some(uid), None).expect("root may do this");
        }
        let random = fastrand::Rng::with_seed(seed);
        Self {
            store,
            user,
            directory,
            random,
            runs: Vec::new(),
            struck: None,
            strike_at: Instant::now(),
            stopped: None,
            ends: Ends::default(),
            paused: paused(),
        }
    }

    /// Goes on for this long, judges what has happened, and returns a table of it.
    fn rage(mut self, time: Duration) -> String {
        let until = Instant::now() + time;
        let has_few = |storm: &Self| storm.commands().into_iter().filter_map(|fence| storm.command(fence)).count() < 2;
        // However slowly the lock is handed off, two commands must be there to be compared.
        while Instant::now() < until || has_few(&self) && Instant::now() < until + LONG {
            while self.runs.len() < RUNS {
                self.start();
            }
            self.strike();
            self.bury();
            std::thread::sleep(Duration::from_millis(3));
        }
        eventually(LONG * 2, "the last runs end", || {
            self.go_on();
            self.bury();
            self.runs.is_empty()
        });
        self.judge()
    }

    fn start(&mut self) {
        let script = self.directory.path().join("swarm.pl");
        let seed = self.random.u32(..).to_string();
        let [prlimit, perl] = ["prlimit", "perl"].map(find_program);
        let limited = [prlimit.as_path(), Path::new(PROCESSES)];
        let swarm = [perl.as_path(), &script, self.directory.path(), Path::new(&seed), Path::new(SECONDS)];
        let call = Lockrun::new(self.store).key(KEY).args(HOW).command(limited.into_iter().chain(swarm));
        self.runs.push(self.user.call(&call).spawn_alone());
    }

    /// Ends the present command in some way, once, after some time.
    fn strike(&mut self) {
        if Instant::now() < self.strike_at {
            return;
        }
        let Some(latest) = self.commands().into_iter().max() else { return };
        let path = self.directory.path().join(latest.to_string());
        if self.struck.as_ref() == Some(&path) {
            return;
        }
        let began = fs::read_to_string(path.join("began")).unwrap_or_default();
        let Some(parent) = began.split_whitespace().nth(1).and_then(|pid| pid.parse::<i32>().ok()) else { return };
        let is_its_own = |run: &&Running| run.pid() == parent || children(run.pid()).contains(&parent);
        let run = self.runs.iter().position(|run| is_its_own(&run));
        self.go_on();
        if let Some(run) = run.map(|at| &self.runs[at]) {
            match self.random.u8(0..if self.store.has_leases() { 8 } else { 4 }) {
                // It ends by itself, or with --max-runtime.
                0 | 1 => {}
                2 | 3 => run.signal(Signal::SIGTERM),
                4 => run.signal(Signal::SIGKILL),
                5 => send(parent, Signal::SIGKILL),
                6 => {
                    run.signal(Signal::SIGSTOP);
                    self.stopped = Some(run.pid());
                }
                _ => {
                    let call = Lockrun::other("break", self.store).key(KEY);
                    self.user.call(&call).alone();
                }
            }
        }
        self.struck = Some(path);
        self.strike_at = Instant::now() + Duration::from_millis(self.random.u64(20..700));
    }

    /// Continues a stopped lockrun.
    fn go_on(&mut self) {
        if let Some(pid) = self.stopped.take() {
            send(pid, Signal::SIGCONT);
        }
    }

    /// Takes the runs that have ended.
    fn bury(&mut self) {
        for mut run in std::mem::take(&mut self.runs) {
            if !run.has_ended() {
                self.runs.push(run);
                continue;
            }
            let output = run.end();
            assert!(!output.stderr().contains("cannot be killed"), "{output}");
            // It ended by itself, lost its lease, ran for too long, or lost its guardian; or a signal ended it. Or it
            // got no processor from its turn until its lease was almost over, and has started nothing.
            let is_late = output.status == Some(69) && output.stderr().contains("too little of its lease was left");
            assert!(is_late || matches!(output.status, None | Some(0 | 79 | 124 | 125)), "{output}");
            self.ends.count_in(&output);
            let is_clean = happens_within(LONG, || run.processes().is_empty());
            assert!(is_clean, "left behind: {output}");
        }
    }

    /// Returns the fences of the commands that have begun.
    fn commands(&self) -> Vec<u64> {
        let entries = fs::read_dir(self.directory.path()).expect("our own directory");
        let fence = |entry: std::io::Result<fs::DirEntry>| entry.ok()?.file_name().to_str()?.parse().ok();
        entries.filter_map(fence).collect()
    }

    /// Reads when a command lived; `None` if it was ended before it could record its beginning.
    fn command(&self, fence: u64) -> Option<Command> {
        let path = self.directory.path().join(fence.to_string());
        let time = |text: &str| text.split_whitespace().next().and_then(|time| time.parse::<f64>().ok());
        let began = time(&fs::read_to_string(path.join("began")).ok()?)?;
        let lanes = fs::read_dir(&path).expect("our own directory").filter_map(Result::ok);
        let signs: Vec<f64> = lanes.filter_map(|lane| time(&fs::read_to_string(lane.path()).ok()?)).collect();
        Some(Command { fence, began, last: signs.iter().copied().fold(began, f64::max), lanes: signs.len() })
    }

    fn judge(&self) -> String {
        let mut commands: Vec<Command> = self.commands().into_iter().filter_map(|fence| self.command(fence)).collect();
        commands.sort_by(|one, other| one.began.total_cmp(&other.began));
        let mut margin = f64::INFINITY;
        let mut longest = 0.0_f64;
        let mut last = f64::NEG_INFINITY;
        let mut fence = 0;
        let mut wrong = Vec::new();
        for command in &commands {
            margin = margin.min(command.began - last);
            longest = longest.max(command.last - command.began);
            if command.began <= last {
                wrong.push(format!(
                    "{} began {:.3} s before the last sign of life",
                    command.fence,
                    last - command.began
                ));
            }
            if command.fence <= fence {
                wrong.push(format!("the fence {} follows {fence}", command.fence));
            }
            (last, fence) = (last.max(command.last), command.fence);
        }
        let paused = paused().saturating_sub(self.paused);
        assert!(wrong.is_empty(), "{}\nmeanwhile the machine was paused for {paused:.1?}", wrong.join("\n"));
        // Every command has at least three lanes, unless it was ended at once.
        let lanes: usize = commands.iter().map(|command| command.lanes).sum();
        assert!(commands.len() > 1 && lanes >= 2 * commands.len(), "{lanes} lanes of {} commands", commands.len());
        format!(
            "  {} commands, at least {:.1} ms apart, overlaps 0, fences out of order 0, longest life {longest:.2} s; ends: {}",
            commands.len(),
            margin * 1000.0,
            self.ends
        )
    }
}
