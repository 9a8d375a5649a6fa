//! A command that is hard to end and records when it lived (`witness.c`), and checks of such records.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::LazyLock;

use super::deadline::{LONG, eventually};
use super::lockrun::Running;

/// The program. In C, because an interpreter that wakes up so often takes a third of the processors' time in a test run.
const SOURCE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/suite/support/witness.c");

/// Returns the path of the compiled program. Each test run compiles it once.
fn program() -> &'static str {
    static PROGRAM: LazyLock<String> = LazyLock::new(|| {
        let path = format!("{}/witness", env!("CARGO_TARGET_TMPDIR"));
        // Another test run may be executing the old one, or compiling it, too.
        let new = format!("{path}.{}", std::process::id());
        let compiled = Command::new("cc").args(["-O1", "-o", &new, SOURCE]).status().expect("cc(1) is there");
        assert!(compiled.success(), "{SOURCE} is compiled");
        fs::rename(&new, &path).expect("our own directory");
        path
    });
    &PROGRAM
}

/// Returns the words of a command that appends stamps to a file under this tag for as long as it lives.
pub(crate) fn command(file: &Path, tag: &str, children: &[&str]) -> Vec<String> {
    let words = [program(), file.to_str().expect("a plain path"), tag];
    words.iter().chain(children).map(|&word| word.to_owned()).collect()
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
    // Without a copy of each word: there are thousands of lines.
    let mut found: BTreeMap<&str, (i64, i64, BTreeMap<&str, i64>)> = BTreeMap::new();
    // A stamp that is being written has no end yet.
    let complete = record.rfind('\n').map_or("", |end| &record[..end]);
    for line in complete.lines() {
        let mut words = line.split(' ');
        let (Some(tag), Some(pid), Some(time), None) = (words.next(), words.next(), words.next(), words.next()) else {
            panic!("a broken stamp: {line:?}");
        };
        let time: i64 = time.parse().expect("a time");
        let life = found.entry(tag).or_insert((time, time, BTreeMap::new()));
        life.0 = life.0.min(time);
        life.1 = life.1.max(time);
        let end = life.2.entry(pid).or_insert(time);
        *end = time.max(*end);
    }
    let life = |(tag, (first, last, ends)): (&str, (i64, i64, BTreeMap<&str, i64>))| {
        let processes = ends.len();
        let ends = ends.into_iter().map(|(pid, last)| (pid.to_owned(), last)).collect();
        Life { tag: tag.to_owned(), first, last, processes, ends }
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
