//! The workers that use the locks.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use nix::time::{ClockId, clock_gettime};

use super::deadlines::Deadlines;
use super::hosts::Host;
use super::runs::Past;
use super::subject::Subject;
use crate::support::processes::{find_program, is_alive, send};
use crate::support::{LONG, Lockrun, Output, Running, eventually};

/// The locks: two of each kind.
pub(super) const LOCKS: [&str; 6] = ["alone1", "slots1", "shared1", "alone2", "slots2", "shared2"];

/// Which kind of lock each worker wants, and how.
const WANTS: [(&str, &[&str]); 11] = [
    ("alone", &["--wait", "20s"]),
    ("alone", &["--wait", "20s"]),
    ("alone", &["--wait", "2s"]),
    ("alone", &[]),
    ("slots", &["--slots=2", "--wait", "20s"]),
    ("slots", &["--slots=2", "--wait", "20s"]),
    ("slots", &["--slots=2"]),
    ("shared", &["--shared", "--wait", "20s"]),
    ("shared", &["--shared", "--wait", "20s"]),
    ("shared", &["--shared"]),
    ("shared", &["--wait", "20s"]),
];

/// Appends the time of the machine's boot clock to a file every few milliseconds, so long; every other one ignores what
/// asks it politely to end.
const COMMAND: &str = r#"
use Time::HiRes qw(clock_gettime usleep);
my ($file, $name, $ms) = @ARGV;
open(my $offsets, '<', '/proc/self/timens_offsets');
my ($ahead) = map { /^boottime +(\d+)/ } $offsets ? <$offsets> : ();
$SIG{TERM} = 'IGNORE' if $ms % 2;
open(my $out, '>>', $file) or die;
my $began = clock_gettime(7);
my $slot = $ENV{LOCKRUN_SLOT} // '';
do {
    my $now = clock_gettime(7);
    syswrite($out, sprintf("%s-%s-%s %d %d\n", $name, $ENV{LOCKRUN_FENCE}, $slot, $$, ($now - ($ahead // 0)) * 1e9));
    usleep(2000);
} while (clock_gettime(7) - $began) * 1000 < $ms;
"#;

/// How long a worker waits if its store cannot be reached, and how often left-over processes are checked.
const PAUSE: Duration = Duration::from_millis(200);

/// One of the processes of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Who {
    Lockrun,
    Guardian,
    Command,
}

/// The time of the boot clock, in nanoseconds.
pub(super) fn now() -> i64 {
    let now = clock_gettime(ClockId::CLOCK_BOOTTIME).expect("there is a boot clock");
    now.tv_sec() * 1_000_000_000 + now.tv_nsec()
}

/// A worker, which runs commands under a lock again and again.
struct Worker {
    number: usize,
    host: usize,
    /// The URL of the store as its host knows it.
    url: String,
    /// How long its leases are.
    ttl: String,
    /// What gives it the clock of its host.
    clock: Option<String>,
    run: Option<(Running, Past)>,
    /// When it starts the next run.
    next_at: Instant,
}

/// All of them.
pub(super) struct Workers {
    all: Vec<Worker>,
    record: PathBuf,
    random: fastrand::Rng,
    ends: Ends,
    past: Vec<Past>,
    deadlines: Option<Deadlines>,
    started: usize,
    /// Runs that have ended and left a process behind.
    left: Vec<Running>,
    /// When those were last checked.
    looked_at: Instant,
}

/// How many runs ended in which way.
#[derive(Default)]
pub(super) struct Ends(BTreeMap<String, usize>);

impl Worker {
    fn start(&mut self, run: usize, record: &Path, random: &mut fastrand::Rng) {
        let (kind, how) = WANTS[self.number % WANTS.len()];
        let of_this_kind = LOCKS.iter().filter(|lock| lock.starts_with(kind));
        let lock = of_this_kind.copied().nth(self.number / WANTS.len()).expect("there are as many sets of locks");
        let how_kept = if how.contains(&"--shared") { "r" } else { "w" };
        let name = format!("{lock}-{how_kept}-{run}");
        // Some live longer than a lease, which has to be renewed.
        let millis = if random.u8(0..12) == 0 { random.u32(1000..4500) } else { random.u32(0..300) }.to_string();
        let perl = find_program("perl");
        let words =
            [perl.as_os_str(), "-e".as_ref(), COMMAND.as_ref(), record.as_ref(), name.as_ref(), millis.as_ref()];
        let call = Lockrun::at(&self.url).key(lock).args(how);
        let call = call.args(["-v", "--ttl", &self.ttl, "--kill-after", "300ms", "--store-timeout", "500ms"]);
        let past = Past {
            number: run,
            lock,
            host: self.host,
            invoked: now(),
            ended: i64::MAX,
            is_refused: false,
            has_released: false,
            has_lost: false,
            error: None,
        };
        let call = call.command(words);
        let run = self.clock.as_ref().map_or_else(|| call.spawn(), |clock| call.in_shell(clock).spawn_alone());
        self.run = Some((run, past));
    }
}

impl Workers {
    pub(super) fn new(sets: usize, subject: &Subject<'_>, hosts: &[Host], record: &Path, seed: u64) -> Self {
        let worker = |number| {
            let host = number % hosts.len();
            Worker {
                number,
                host,
                url: hosts[host].url(),
                clock: hosts[host].clock(),
                ttl: subject.ttl(),
                run: None,
                next_at: Instant::now(),
            }
        };
        Self {
            all: (0..sets * WANTS.len()).map(worker).collect(),
            record: record.to_owned(),
            random: fastrand::Rng::with_seed(seed ^ 1),
            ends: Ends::default(),
            past: Vec::new(),
            deadlines: subject.has_leases().then(|| Deadlines::of(&subject.url())),
            started: 0,
            left: Vec::new(),
            looked_at: Instant::now(),
        }
    }

    /// Checks one worker: if its run has ended, starts the next one.
    pub(super) fn work(&mut self, at: usize) {
        if self.all[at].run.as_mut().is_some_and(|(run, _)| run.has_ended()) {
            self.bury(at);
        }
        if self.all[at].run.is_none() && self.all[at].next_at <= Instant::now() {
            self.all[at].start(self.started, &self.record, &mut self.random);
            self.started += 1;
        }
        if self.looked_at.elapsed() > PAUSE {
            self.left.retain(|run| !run.processes().is_empty());
            self.deadlines.iter_mut().for_each(Deadlines::look);
            self.looked_at = Instant::now();
        }
    }

    fn bury(&mut self, at: usize) {
        let Some((mut run, mut past)) = self.all[at].run.take() else { return };
        let output = run.end();
        past.ended = now();
        let stderr = output.stderr();
        past.is_refused = output.status == Some(75);
        past.has_released = stderr.contains("\" released");
        past.error = matches!(output.status, Some(69 | 125..=127)).then(|| stderr.clone());
        past.has_lost = output.status == Some(79) || stderr.contains("\" is lost, ");
        if let Some(deadlines) = self.deadlines.as_mut().filter(|_| past.has_lost) {
            deadlines.ask(past.number, past.lock, run.pid());
        }
        self.ends.count_in(&output);
        self.past.push(past);
        if output.status == Some(69) {
            // The store cannot be reached: asking again at once would take processor time from the others.
            self.all[at].next_at = Instant::now() + PAUSE;
        }
        // Its command may still hold the lock.
        if !run.processes().is_empty() {
            self.left.push(run);
        }
    }

    /// Sends a signal to these processes of a run, all or none: of the first run, from this worker's on, that has them
    /// all, and a command if it must have one. Returns which run it is.
    pub(super) fn signal(
        &self,
        from: usize,
        has_command: bool,
        who: &[Who],
        signal: Signal,
    ) -> Option<(usize, Vec<i32>)> {
        let runs = self.all.iter().cycle().skip(from).take(self.all.len()).filter_map(|worker| worker.run.as_ref());
        let (number, pids) = runs.into_iter().find_map(|(run, past)| {
            let processes = processes(run.pid());
            let of = |who: &Who| Some(processes.iter().find(|(pid, what)| what == who && is_alive(*pid))?.0);
            if has_command {
                of(&Who::Command)?;
            }
            Some((past.number, who.iter().map(of).collect::<Option<Vec<i32>>>()?))
        })?;
        for &pid in &pids {
            send(pid, signal);
        }
        Some((number, pids))
    }

    pub(super) fn count(&self) -> usize {
        self.all.len()
    }

    /// Waits for the last run of each.
    #[track_caller]
    pub(super) fn finish(mut self) -> Finished {
        eventually(LONG * 2, "the last runs end, and what the dead have left", || {
            for at in 0..self.all.len() {
                if self.all[at].run.as_mut().is_some_and(|(run, _)| run.has_ended()) {
                    self.bury(at);
                }
            }
            self.left.retain(|run| !run.processes().is_empty());
            self.deadlines.iter_mut().for_each(Deadlines::look);
            self.left.is_empty() && self.all.iter().all(|worker| worker.run.is_none())
        });
        self.past.sort_by_key(|run| run.number);
        Finished { ends: self.ends, runs: self.past, deadlines: self.deadlines }
    }
}

/// What is known when the last run has ended.
pub(super) struct Finished {
    pub(super) ends: Ends,
    /// The runs, by their numbers.
    pub(super) runs: Vec<Past>,
    pub(super) deadlines: Option<Deadlines>,
}

/// Returns the processes of this lockrun's run, as far as they descend from it.
fn processes(lockrun: i32) -> Vec<(i32, Who)> {
    let mut found = vec![];
    let mut left = vec![lockrun];
    while let Some(pid) = left.pop() {
        let who = match fs::read_to_string(format!("/proc/{pid}/comm")).as_deref().map(str::trim) {
            Ok("lockrun") => Who::Lockrun,
            Ok("guardian") => Who::Guardian,
            Ok("perl") => Who::Command,
            _ => continue,
        };
        found.push((pid, who));
        let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
        let children = threads.filter_map(|thread| fs::read_to_string(thread.path().join("children")).ok());
        left.extend(
            children.flat_map(|all| all.split_whitespace().filter_map(|one| one.parse().ok()).collect::<Vec<i32>>()),
        );
    }
    found
}

impl Ends {
    pub(super) fn count_in(&mut self, output: &Output) {
        let stderr = output.stderr();
        assert!(!stderr.contains("panicked"), "{output}");
        let end = match (output.status, output.signal) {
            (Some(status @ (64 | 101)), _) => panic!("{status}: {output}"),
            (Some(status), _) => status.to_string(),
            (None, signal) => format!("by signal {}", signal.unwrap_or_default()),
        };
        *self.0.entry(end).or_default() += 1;
    }
}

impl fmt::Display for Ends {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all: Vec<String> = self.0.iter().map(|(end, count)| format!("{end}: {count}")).collect();
        write!(out, "{}", all.join(", "))
    }
}
