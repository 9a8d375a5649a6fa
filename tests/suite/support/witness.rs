//! A command that is hard to end and records when it lived, and checks of such records.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use super::deadline::{LONG, eventually};
use super::lockrun::Running;
use super::processes::find_program;

/// Ignores TERM, HUP, INT and QUIT, prints `ready`, and appends the time of the boot clock every few milliseconds.
/// With `fork` a child does the same, with `setsid` another one in a session of its own.
const SCRIPT: &str = "
import os, signal, sys, time
path, tag = sys.argv[1], sys.argv[2]
for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGQUIT):
    signal.signal(number, signal.SIG_IGN)
log = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
def stamp():
    now = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    os.write(log, b'%s %d %d\\n' % (tag.encode(), os.getpid(), now))
leader = True
for what in sys.argv[3:]:
    if leader and os.fork() == 0:
        leader = False
        if what == 'setsid':
            os.setsid()
stamp()
if leader:
    print('ready', flush=True)
while True:
    time.sleep(0.003)
    stamp()
";

/// Returns the words of a command that appends stamps to a file under this tag for as long as it lives.
pub(crate) fn command(file: &Path, tag: &str, children: &[&str]) -> Vec<String> {
    let python = find_program("python3");
    let words = [python.as_path(), Path::new("-c"), Path::new(SCRIPT), file];
    words
        .iter()
        .map(|word| word.to_str().expect("a plain path").to_owned())
        .chain([tag.to_owned()])
        .chain(children.iter().map(|&one| one.to_owned()))
        .collect()
}

/// When the processes of one tag lived, in nanoseconds of the boot clock.
#[derive(Debug, Clone)]
pub(crate) struct Life {
    pub(crate) tag: String,
    pub(crate) first: i64,
    pub(crate) last: i64,
    pub(crate) processes: usize,
    /// The last stamp of each process.
    ends: BTreeMap<String, i64>,
}

impl Life {
    /// Returns, for messages, how long before this moment the last stamp of each process was.
    pub(crate) fn ends_before(&self, moment: i64) -> String {
        let end = |(pid, last): (&String, &i64)| format!("process {pid}: {} ms before", (moment - last) / 1_000_000);
        self.ends.iter().map(end).collect::<Vec<_>>().join(", ")
    }
}

/// Reads a record. Returns one life for each tag, in the order in which they began.
pub(crate) fn lives(file: &Path) -> Vec<Life> {
    let record = fs::read_to_string(file).expect("there is a record");
    let mut found: BTreeMap<String, (i64, i64, BTreeMap<String, i64>)> = BTreeMap::new();
    // A stamp that is being written has no end yet.
    let complete = record.rfind('\n').map_or("", |end| &record[..end]);
    for line in complete.lines() {
        let words: Vec<&str> = line.split(' ').collect();
        let [tag, pid, time] = words[..] else {
            panic!("a broken stamp: {line:?}");
        };
        let time: i64 = time.parse().expect("a time");
        let life = found.entry(tag.to_owned()).or_insert((time, time, BTreeMap::new()));
        life.0 = life.0.min(time);
        life.1 = life.1.max(time);
        let end = life.2.entry(pid.to_owned()).or_insert(time);
        *end = time.max(*end);
    }
    let life = |(tag, (first, last, ends)): (_, (_, _, BTreeMap<_, _>))| {
        let processes = ends.len();
        Life { tag, first, last, processes, ends }
    };
    let mut lives: Vec<Life> = found.into_iter().map(life).collect();
    lives.sort_by_key(|life| life.first);
    lives
}

/// Returns the smallest time in nanoseconds between one life's end and the next one's beginning: negative if two
/// overlap, `None` if there are fewer than two.
pub(crate) fn smallest_margin(lives: &[Life]) -> Option<i64> {
    let mut latest_end = lives.first()?.last;
    let mut smallest = None;
    for life in &lives[1..] {
        let margin = life.first - latest_end;
        smallest = Some(smallest.map_or(margin, |known: i64| known.min(margin)));
        latest_end = latest_end.max(life.last);
    }
    smallest
}

/// Waits until the command of `next` stamps, too, ends it, and checks that it began after the end of the other command
/// that stamps in this file.
#[track_caller]
pub(crate) fn begins_after_the_other(mut next: Running, file: &Path) {
    next.wait_for_line("ready");
    eventually(LONG, "the next holder stamps", || lives(file).len() == 2);
    next.kill_everything();
    let margin = smallest_margin(&lives(file)).expect("two lives");
    assert!(margin > 0, "an overlap of {} ms", -margin / 1_000_000);
}
