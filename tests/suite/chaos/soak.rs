//! A lock that is held and used for a long time: memory and descriptors do not grow, and nothing that it protects is
//! lost.
//!
//! `MINUTES` asks for more than a slice, which is too short to show growth: `make soak`.

use std::fs;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use tempfile::TempDir;

use super::asked::asked;
use crate::support::processes::children;
use crate::support::store::on_every_store;
use crate::support::{LONG, Lockrun, Running, Store, eventually, hand};

const KEY: &str = "soak";

const WAITERS: usize = 3;

/// Runs the call again and again until a file exists, and prints how often.
const LOOP: &str = r#"n=0; until [ -e "$end" ]; do "$@" || exit; n=$((n + 1)); sleep 0.5; done; echo $n"#;

/// Increments a number in a file, which two at once would get wrong.
const COUNT_ON: &str = r#"read n <"$0"; echo $((n + 1)) >"$0""#;

/// How often is measured, and after how many ticks `status` runs.
const TICK: Duration = Duration::from_secs(1);
const STATUS_EVERY: usize = 5;

/// By how much memory may differ at the end, in kB: a few pages.
const A_FEW_PAGES: i64 = 64;

/// How long the test lasts among all the other tests.
const SLICE: Duration = Duration::from_secs(4);

// "A second run at the same time means corrupted data; a lock that stays means that nothing runs at all."
on_every_store!(held_and_used, |store| {
    let asked = asked("MINUTES").map(|minutes| Duration::from_secs(60 * minutes));
    let curves = soak(store, asked.unwrap_or(SLICE));
    let growing: Vec<String> = curves.iter().filter(|curve| curve.grows()).map(Curve::shown).collect();
    assert!(asked.is_none() || growing.is_empty(), "{} grows:\n{}", store.name(), growing.join("\n"));
});

/// Returns how the figures of all processes have changed.
fn soak(store: &Store, time: Duration) -> Vec<Curve> {
    let directory = TempDir::new().expect("a temporary directory");
    // Renewed often, but not lost because a busy store does not answer for seconds.
    let call = Lockrun::new(store).key(KEY).args(["--ttl", "30s", "--renew-every", "500ms"]);
    let mut holder = call.clone().sh("echo ready; exec sleep 86400").spawn();
    holder.wait_for_line("ready");
    let mut waiters: Vec<Running> = (0..WAITERS).map(|_| call.clone().args(["--wait", "-v"]).sh(":").spawn()).collect();
    for waiter in &mut waiters {
        waiter.wait_for_stderr("waiting");
    }
    let counters = Counters::start(store, directory.path());
    let mut curves: Vec<Curve> = curves(&holder, &waiters);
    let until = Instant::now() + time;
    for tick in 0.. {
        if Instant::now() >= until {
            break;
        }
        thread::sleep(TICK);
        curves.iter_mut().for_each(Curve::measure);
        if tick % STATUS_EVERY == 0 {
            let status = hand::status(store, KEY);
            assert_eq!(status["holders"][0]["pid"], holder.pid(), "{status}");
        }
    }
    let runs = counters.end();
    // When it is free, they get the lock one after the other.
    holder.signal(Signal::SIGTERM);
    eventually(LONG, "the holder ends", || holder.has_ended());
    holder.wait().died_of(Signal::SIGTERM);
    eventually(LONG, "the waiters have run", || waiters.iter_mut().all(Running::has_ended));
    for waiter in waiters {
        waiter.wait().exited(0);
    }
    let lines: Vec<String> = curves.iter().map(Curve::shown).collect();
    println!("{}: {time:?}, {runs} runs counted\n{}", store.name(), lines.join("\n"));
    curves
}

/// Two loops that increment a number in one file, in turn.
struct Counters {
    loops: Vec<Running>,
    directory: PathBuf,
}

impl Counters {
    fn start(store: &Store, directory: &Path) -> Self {
        let count = directory.join("count");
        fs::write(&count, "0\n").expect("our own file");
        let command = ["sh", "-c", COUNT_ON, count.to_str().expect("a plain path")];
        let call = Lockrun::new(store).key("count").arg("--wait").command(command);
        let call = call.env("end", directory.join("end")).in_shell(LOOP);
        Self { loops: (0..2).map(|_| call.spawn_alone()).collect(), directory: directory.to_owned() }
    }

    /// Ends them, and returns how many runs have counted. Fails if one has not.
    fn end(mut self) -> u64 {
        fs::write(self.directory.join("end"), "").expect("our own file");
        eventually(LONG, "those who count end", || self.loops.iter_mut().all(Running::has_ended));
        let number = |text: &str| text.trim().parse::<u64>().expect("a number");
        let runs = self.loops.into_iter().map(|one| number(&one.wait().exited(0).stdout())).sum();
        let count = fs::read_to_string(self.directory.join("count")).expect("our own file");
        assert_eq!(number(&count), runs, "no run is lost");
        runs
    }
}

/// How one figure of a process changes.
struct Curve {
    name: String,
    pid: i32,
    figure: fn(i32) -> Option<i64>,
    /// By how much it may differ at the end.
    tolerance: i64,
    seen: Vec<i64>,
}

/// Returns the curves of a run's processes. Memory that is shared counts only in part, so private memory is measured,
/// too.
fn curves(holder: &Running, waiters: &[Running]) -> Vec<Curve> {
    let of_run = |name: &str, run: &Running| {
        let guardian = children(run.pid()).into_iter().find(|pid| comm(*pid) == "guardian");
        let guardian = guardian.map(|pid| (format!("guardian of {name}"), pid));
        [(name.to_owned(), run.pid())].into_iter().chain(guardian).collect::<Vec<_>>()
    };
    let waiting = waiters.iter().zip(1..).flat_map(|(run, number)| of_run(&format!("waiter {number}"), run));
    let all = of_run("holder", holder).into_iter().chain(waiting);
    let of_process = |(name, pid): (String, i32)| {
        let curve = |what: &str, figure, tolerance| Curve {
            name: format!("{name}: {what}"),
            pid,
            figure,
            tolerance,
            seen: vec![],
        };
        [
            curve("PSS, kB", |pid| rollup(pid, "Pss:"), i64::MAX),
            curve("PSS of its own, kB", |pid| rollup(pid, "Pss_Anon:"), A_FEW_PAGES),
            curve("descriptors", |pid| i64::try_from(fs::read_dir(format!("/proc/{pid}/fd")).ok()?.count()).ok(), 0),
        ]
    };
    all.flat_map(of_process).collect()
}

fn comm(pid: i32) -> String {
    fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default().trim().to_owned()
}

/// Returns a figure of a process's memory.
fn rollup(pid: i32, field: &str) -> Option<i64> {
    let all = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).ok()?;
    all.lines().find_map(|line| line.strip_prefix(field)?.trim().strip_suffix(" kB")?.parse().ok())
}

impl Curve {
    fn measure(&mut self) {
        let figure = (self.figure)(self.pid);
        self.seen.push(figure.unwrap_or_else(|| panic!("{} is gone", self.name)));
    }

    /// Returns the curve without its beginning, while everything starts up.
    fn settled(&self) -> &[i64] {
        &self.seen[self.seen.len() / 10..]
    }

    /// Returns whether it is greater in the last third than in the first one.
    fn grows(&self) -> bool {
        let settled = self.settled();
        let third = settled.len() / 3;
        median(&settled[settled.len() - third..]) > median(&settled[..third]).saturating_add(self.tolerance)
    }

    /// Returns how much it grows per hour, by least squares.
    #[allow(clippy::cast_precision_loss)]
    fn slope(&self) -> f64 {
        let settled = self.settled();
        let count = settled.len() as f64;
        let middle = (count - 1.0) / 2.0;
        let mean = settled.iter().sum::<i64>() as f64 / count;
        let (mut above, mut below) = (0.0, 0.0);
        for (at, seen) in settled.iter().enumerate() {
            let off = at as f64 - middle;
            above += off * (*seen as f64 - mean);
            below += off * off;
        }
        above / below * (3600.0 / TICK.as_secs_f64())
    }

    fn shown(&self) -> String {
        let settled = self.settled();
        let (Some(first), Some(last), Some(max)) = (settled.first(), settled.last(), settled.iter().max()) else {
            return format!("  {}: not measured", self.name);
        };
        let Self { name, .. } = self;
        format!("  {name:40} first {first:5}, last {last:5}, max {max:5}, slope {:+.1} an hour", self.slope())
    }
}

fn median(values: &[i64]) -> i64 {
    let mut values = values.to_vec();
    values.sort_unstable();
    values.get(values.len() / 2).copied().unwrap_or(0)
}

#[test]
fn what_grows_is_seen() {
    let of = |seen: Vec<i64>| Curve { name: String::new(), pid: 0, figure: |_| None, tolerance: 0, seen };
    assert!(of((0..90).collect()).grows());
    assert!(!of(vec![7; 90]).grows());
    assert!(!of((0..90).map(|at| 7 + at % 5).collect()).grows());
    assert!((of((0..90).collect()).slope() - 3600.0).abs() < 0.01);
}
