//! Those who want the locks.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use nix::sys::signal::Signal;

use crate::support::processes::{find_program, is_alive, send};
use crate::support::{LONG, Lockrun, Output, Running, eventually};

/// The locks.
pub(super) const LOCKS: [&str; 3] = ["alone", "slots", "shared"];

/// How many may have a slot at once.
pub(super) const SLOTS: usize = 2;

/// Which lock each worker wants, and how.
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

/// Appends the time of the boot clock to a file every few milliseconds, so long; every other one ignores what asks it politely to end.
const COMMAND: &str = r#"
use Time::HiRes qw(clock_gettime usleep);
my ($file, $name, $ms) = @ARGV;
$SIG{TERM} = 'IGNORE' if $ms % 2;
open(my $out, '>>', $file) or die;
my $began = clock_gettime(7);
do {
    my $now = clock_gettime(7);
    syswrite($out, sprintf("%s-%s %d %d\n", $name, $ENV{LOCKRUN_FENCE}, $$, $now * 1e9));
    usleep(2000);
} while (clock_gettime(7) - $began) * 1000 < $ms;
"#;

/// One that works under a lock, again and again.
struct Worker {
    number: usize,
    /// The URL of the store as its host knows it.
    url: String,
    run: Option<Running>,
    runs: usize,
}

/// All of them.
pub(super) struct Workers {
    all: Vec<Worker>,
    record: PathBuf,
    random: fastrand::Rng,
    ends: Ends,
    /// Runs that have ended, and left a process behind.
    left: Vec<Running>,
}

/// How many runs ended in which way.
#[derive(Default)]
pub(super) struct Ends(BTreeMap<String, usize>);

impl Worker {
    fn start(&mut self, record: &Path, random: &mut fastrand::Rng) {
        let (lock, how) = WANTS[self.number];
        let how_kept = if how.contains(&"--shared") { "r" } else { "w" };
        let name = format!("{lock}-{how_kept}-{}-{}", self.number, self.runs);
        let millis = random.u32(0..300).to_string();
        let perl = find_program("perl");
        let words =
            [perl.as_os_str(), "-e".as_ref(), COMMAND.as_ref(), record.as_ref(), name.as_ref(), millis.as_ref()];
        let call = Lockrun::at(&self.url).key(lock).args(how);
        let call = call.args(["--ttl", "3s", "--kill-after", "300ms", "--store-timeout", "500ms"]);
        self.run = Some(call.command(words).spawn());
        self.runs += 1;
    }
}

impl Workers {
    pub(super) fn new(urls: &[String], record: &Path, seed: u64) -> Self {
        let url = |number: usize| urls[number % urls.len()].clone();
        let worker = |number| Worker { number, url: url(number), run: None, runs: 0 };
        Self {
            all: (0..WANTS.len()).map(worker).collect(),
            record: record.to_owned(),
            random: fastrand::Rng::with_seed(seed ^ 1),
            ends: Ends::default(),
            left: Vec::new(),
        }
    }

    /// Looks after those whose run has ended: they start the next one.
    pub(super) fn work(&mut self) {
        for at in 0..self.all.len() {
            if self.all[at].run.as_mut().is_none_or(Running::has_ended) {
                self.bury(at);
                self.all[at].start(&self.record, &mut self.random);
            }
        }
    }

    fn bury(&mut self, at: usize) {
        let Some(mut run) = self.all[at].run.take() else { return };
        self.ends.count_in(&run.end());
        // Its command may hold the lock still.
        if !run.processes().is_empty() {
            self.left.push(run);
        }
        self.left.retain(|run| !run.processes().is_empty());
    }

    /// Sends a signal to a process of this name in the run of a worker. Says whether there was one.
    pub(super) fn signal(&self, worker: usize, name: &str, signal: Signal) -> Option<i32> {
        let run = self.all[worker % self.all.len()].run.as_ref()?;
        let named =
            |pid: &i32| std::fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|comm| comm.trim() == name);
        let pid = run.processes().into_iter().find(named).filter(|pid| is_alive(*pid))?;
        send(pid, signal);
        Some(pid)
    }

    pub(super) fn count(&self) -> usize {
        self.all.len()
    }

    /// Lets the last run of each come to its end.
    #[track_caller]
    pub(super) fn finish(mut self) -> Ends {
        for at in 0..self.all.len() {
            self.bury(at);
        }
        eventually(LONG, "what the dead have left ends", || {
            self.left.retain(|run| !run.processes().is_empty());
            self.left.is_empty()
        });
        self.ends
    }
}

impl Ends {
    fn count_in(&mut self, output: &Output) {
        let stderr = output.stderr();
        assert!(!stderr.contains("panicked"), "{output}");
        let end = match (output.status, output.signal) {
            (Some(status @ (64 | 101)), _) => panic!("{status}: {output}"),
            (Some(status), _) => status.to_string(),
            (None, signal) => format!("by signal {}", signal.unwrap_or_default()),
        };
        *self.0.entry(end).or_default() += 1;
    }

    pub(super) fn count(&self) -> usize {
        self.0.values().sum()
    }
}

impl fmt::Display for Ends {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all: Vec<String> = self.0.iter().map(|(end, count)| format!("{end}: {count}")).collect();
        write!(out, "({})", all.join(", "))
    }
}
