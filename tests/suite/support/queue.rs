//! Waiters that join the queue of one lock one after the other, and the record of their runs.

use std::collections::BTreeSet;
use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use tempfile::TempDir;

use super::calm::{in_time, late};
use super::deadline::{LONG, eventually, happens_within};
use super::events::Events;
use super::hand;
use super::lease_server::LeaseServer;
use super::lockrun::{Lockrun, Running};
use super::processes;
use super::store::Store;

/// Appends `in` and `out` with a tag and the time to a file, and runs a command in between. Appending is atomic and
/// keeps the order, so the order of the lines needs no clock. The shell reads the time without starting a process.
const SCRIPT: &str = "
stamp() { read now rest </proc/uptime; echo \"$1 $tag $now\" >>\"$file\"; }
tag=$1 file=$2
stamp in
eval \"$3\"
stamp out";

/// Returns the words of a command that stamps its beginning and end into `file` under `tag`, and runs `body` in
/// between.
fn stamping(file: &Path, tag: &str, body: &str) -> [String; 7] {
    let file = file.to_str().expect("a plain path");
    ["sh", "-c", SCRIPT, "sh", tag, file, body].map(str::to_owned)
}

/// Returns the time by the clock of the stamps.
pub(crate) fn now() -> Duration {
    let uptime = fs::read_to_string("/proc/uptime").expect("/proc is mounted");
    read_time(uptime.split(' ').next().expect("two numbers"))
}

pub(crate) fn read_time(seconds: &str) -> Duration {
    Duration::from_secs_f64(seconds.parse().expect("a time"))
}

/// The body of a command that runs until [`Queue::let_them_end`].
pub(crate) const WAIT_FOR_THE_END: &str = "until [ -e \"$file.end\" ]; do sleep 0.01; done";

/// The waiters of one lock. They are killed when this is dropped.
pub(crate) struct Queue<'a> {
    store: &'a Store,
    key: String,
    call: Lockrun,
    body: String,
    directory: TempDir,
    /// The events of the waiters that joined by `join_and_hear`.
    events: Events,
    waiters: Vec<Option<Running>>,
    somebody_died: bool,
}

impl<'a> Queue<'a> {
    pub(crate) fn new(store: &'a Store, key: &str) -> Self {
        Self::through(&store.url(), store, key)
    }

    /// A queue whose waiters reach the store by this URL.
    pub(crate) fn through(url: &str, store: &'a Store, key: &str) -> Self {
        let directory = TempDir::new().expect("a temporary directory");
        let call = Lockrun::at(url).key(key);
        let (key, body) = (key.to_owned(), String::new());
        let events = Events::new();
        Self { store, key, call, body, directory, events, waiters: Vec::new(), somebody_died: false }
    }

    /// Waiters that join from now on reach the store by this URL, without options.
    pub(crate) fn by(mut self, url: &str) -> Self {
        self.call = Lockrun::at(url).key(&self.key);
        self
    }

    /// Adds options for waiters that join from now on.
    pub(crate) fn with(mut self, options: &[&str]) -> Self {
        self.call = self.call.args(options);
        self
    }

    /// Sets the body of the commands of waiters that join from now on.
    pub(crate) fn doing(mut self, body: &str) -> Self {
        body.clone_into(&mut self.body);
        self
    }

    fn server(&self) -> &'a dyn LeaseServer {
        self.store.server()
    }

    fn log(&self) -> PathBuf {
        self.directory.path().join("log")
    }

    fn call(&self, tag: &str, body: &str) -> Lockrun {
        self.call.clone().command(stamping(&self.log(), tag, body))
    }

    /// Returns a call for the same lock that is not one of the waiters. Its command stamps into the same record.
    pub(crate) fn newcomer(&self, tag: &str, options: &[&str]) -> Lockrun {
        self.newcomer_doing(tag, options, "")
    }

    /// Returns such a call whose command runs `body`.
    pub(crate) fn newcomer_doing(&self, tag: &str, options: &[&str], body: &str) -> Lockrun {
        Lockrun::new(self.store).key(&self.key).args(options).command(stamping(&self.log(), tag, body))
    }

    /// Starts so many waiters, each when the one before it is in the queue.
    #[track_caller]
    pub(crate) fn join(&mut self, count: usize) {
        let body = self.body.clone();
        for _ in 0..count {
            self.join_to(&body);
        }
    }

    /// Starts a waiter whose command runs `body`. Returns when it is in the queue.
    #[track_caller]
    pub(crate) fn join_to(&mut self, body: &str) {
        let number = self.waiters.len();
        let call = self.call(&number.to_string(), body).arg("--wait");
        let waiter = if self.store.has_leases() {
            let mut waiter = call.spawn();
            waiter.wait_until("a place in the queue", |_| self.length() == number + 1);
            waiter
        } else {
            let mut waiter = call.arg("-v").spawn();
            waiter.wait_for_stderr("waiting");
            // It says so just before it is in the kernel's queue, and another could overtake it.
            let is_listed = || hand::waiters(self.store, &self.key).iter().any(|one| one["pid"] == waiter.pid());
            let has_begun = || self.begun().contains(&number.to_string());
            eventually(LONG, &format!("waiter {number} is in the queue"), || is_listed() || has_begun());
            waiter
        };
        self.waiters.push(Some(waiter));
    }

    /// Starts so many waiters at once.
    pub(crate) fn storm(&mut self, count: usize) {
        for number in self.waiters.len()..self.waiters.len() + count {
            let waiter = self.call(&number.to_string(), &self.body).arg("--wait").spawn();
            self.waiters.push(Some(waiter));
        }
    }

    /// Returns the length of the server's queue, dead waiters included.
    pub(crate) fn length(&self) -> usize {
        self.server().waiting(&self.key).len()
    }

    /// Returns how many waiters sleep at this moment.
    pub(crate) fn asleep(&self) -> usize {
        self.server().asleep()
    }

    /// Starts so many waiters, and waits until each has learnt that it waits: before that, it would not tolerate an
    /// outage.
    #[track_caller]
    pub(crate) fn join_and_hear(&mut self, count: usize) {
        let before = self.events.count("waiting");
        let silent = self.call.clone();
        self.call = self.events.of(silent.clone());
        self.join(count);
        self.call = silent;
        self.events.hear("waiting", before + count);
    }

    /// Waits until every waiter sleeps.
    #[track_caller]
    pub(crate) fn settles(&self) {
        let waiters = self.waiters.iter().flatten().count();
        eventually(LONG, &format!("{waiters} waiters sleep"), || self.asleep() == waiters);
    }

    pub(crate) fn waiter(&mut self, number: usize) -> &mut Running {
        self.waiters[number].as_mut().expect("it is still there")
    }

    /// Takes a waiter out of the queue's own list, so that the test can check its end.
    pub(crate) fn take(&mut self, number: usize) -> Running {
        self.waiters[number].take().expect("it is still there")
    }

    /// Kills a waiter and its guardian, so that neither cleans up after the other: the waiter's place in the queue
    /// stays.
    #[track_caller]
    pub(crate) fn kill(&mut self, number: usize) {
        let mut waiter = self.take(number);
        waiter.signal(Signal::SIGSTOP);
        eventually(LONG, "the waiter stands still", || {
            matches!(processes::state(waiter.pid()), Some('T' | 'Z') | None)
        });
        let guardians = processes::children(waiter.pid());
        for guardian in &guardians {
            processes::send(*guardian, Signal::SIGKILL);
        }
        waiter.signal(Signal::SIGKILL);
        eventually(LONG, "the waiter and its guardian are dead", || {
            waiter.has_ended() && !guardians.iter().any(|guardian| processes::is_alive(*guardian))
        });
        self.somebody_died = true;
    }

    /// Stops waiters while they sleep. Returns when they are stopped.
    #[track_caller]
    pub(crate) fn stop(&mut self, numbers: impl IntoIterator<Item = usize>) {
        self.settles();
        for number in numbers {
            let waiter = self.waiter(number);
            waiter.signal(Signal::SIGSTOP);
            eventually(LONG, "the waiter stands still", || processes::state(waiter.pid()) == Some('T'));
        }
    }

    pub(crate) fn signal_all(&self, signal: Signal) {
        self.waiters.iter().flatten().for_each(|waiter| waiter.signal(signal));
    }

    /// Returns the tags of the commands that have begun, in their order.
    pub(crate) fn begun(&self) -> Vec<String> {
        self.written()
            .lines()
            .filter_map(|line| Some(line.strip_prefix("in ")?.split(' ').next()?.to_owned()))
            .collect()
    }

    /// Waits until these have begun to run, and asserts that they did so in this order. Another order counts as late: a
    /// waiter that got no processor for half a second may have been passed over.
    #[track_caller]
    pub(crate) fn have_begun(&self, tags: &[&str]) {
        if !happens_within(LONG, || self.begun().len() >= tags.len()) {
            let said: Vec<_> = self.waiters.iter().flatten().map(Running::stderr).collect();
            panic!("{:?} have begun, not {tags:?}; the waiters said {said:?}", self.begun());
        }
        let begun = self.begun();
        if begun != tags {
            late(&format!("{begun:?} have begun, not {tags:?}"));
        }
    }

    /// Ends the commands with the body [`WAIT_FOR_THE_END`].
    pub(crate) fn let_them_end(&self) {
        fs::write(self.log().with_file_name("log.end"), "").expect("a file of our own");
    }

    /// Returns what the commands have written so far.
    pub(crate) fn written(&self) -> String {
        fs::read_to_string(self.log()).unwrap_or_default()
    }

    /// Waits until all waiters have succeeded. Asserts that nothing is left of the lock, and returns the record.
    #[track_caller]
    pub(crate) fn end(mut self) -> Record {
        let written = self.all_end();
        self.nothing_is_left();
        Record::read(&written)
    }

    /// Waits until all waiters have succeeded. Returns what their commands have written.
    #[track_caller]
    pub(crate) fn all_end(&mut self) -> String {
        let mut left: Vec<Running> = self.waiters.drain(..).flatten().collect();
        // Wait for all before cleaning up after any, which would cost the others time. There is no limit for the whole,
        // which may take long on a busy machine, but one for the time from each end to the next.
        let (mut ended, mut last_end) = (0, Instant::now());
        while ended < left.len() {
            let before = ended;
            ended = left.iter_mut().map(|waiter| usize::from(waiter.has_ended())).sum();
            if ended > before {
                last_end = Instant::now();
            }
            assert!(last_end.elapsed() < LONG, "nobody has ended for {LONG:?}, {}", self.how_it_stands(&mut left));
            thread::sleep(Duration::from_millis(10));
        }
        for waiter in left {
            let output = waiter.wait().exited(0);
            if self.store.has_leases() {
                output.silent();
            }
        }
        self.written()
    }

    /// Describes, for a failure, these waiters: who still waits, what the store says, and who ran last.
    fn how_it_stands(&self, waiters: &mut [Running]) -> String {
        let total = waiters.len();
        let still =
            waiters.iter_mut().filter_map(|waiter| (!waiter.has_ended()).then(|| (waiter.pid(), waiter.stderr())));
        let still: Vec<_> = still.collect();
        let status = Lockrun::other("status", self.store).key(&self.key).arg("--json").run();
        let keys = self.store.lease_server().map(|server| server.left(&self.key, true));
        let written = self.written();
        let lines: Vec<&str> = written.lines().collect();
        let last = &lines[lines.len().saturating_sub(10)..];
        format!("{} of {total} wait: {still:?}\n{status}\nkeys: {keys:?}\nlast at {:?}: {last:?}", still.len(), now())
    }

    /// Asserts that nothing but expiring data is left of the lock, for tests in which a run died without
    /// [`Queue::kill`].
    #[track_caller]
    pub(crate) fn leaves_only_what_goes(&mut self) {
        self.somebody_died = true;
        self.nothing_is_left();
    }

    /// Asserts that "nothing is left" of a lock that is free and has no waiters, but its fence and its last run. If a
    /// waiter died, data that expires by itself may be left, too.
    #[track_caller]
    pub(crate) fn nothing_is_left(&self) {
        let left = self.store.lease_server().map(|server| server.left(&self.key, !self.somebody_died));
        assert_eq!(left.unwrap_or_default(), Vec::<String>::new());
    }
}

/// One run of a command.
pub(crate) struct Ran {
    pub(crate) tag: String,
    pub(crate) began: Duration,
    pub(crate) ended: Duration,
}

/// The runs, in their order.
pub(crate) struct Record(pub(crate) Vec<Ran>);

impl Record {
    /// Reads a record. Fails if two ran at once.
    #[track_caller]
    pub(crate) fn read(log: &str) -> Self {
        let lines: Vec<&str> = log.lines().collect();
        let runs = lines.chunks(2).map(|pair| {
            let words: Vec<&str> = pair.iter().flat_map(|line| line.split(' ')).collect();
            let ["in", tag, began, "out", same, ended] = words[..] else {
                panic!("overlap: {pair:?} in {lines:?}");
            };
            assert_eq!(tag, same, "overlap in {lines:?}");
            Ran { tag: tag.to_owned(), began: read_time(began), ended: read_time(ended) }
        });
        Self(runs.collect())
    }

    pub(crate) fn tags(&self) -> Vec<&str> {
        self.0.iter().map(|ran| ran.tag.as_str()).collect()
    }

    /// Asserts that these have run, in this order, and no others.
    #[track_caller]
    pub(crate) fn in_order(self, numbers: impl IntoIterator<Item = usize>) -> Self {
        let wanted: Vec<String> = numbers.into_iter().map(|number| number.to_string()).collect();
        self.first_in_order(&wanted);
        assert_eq!(self.0.len(), wanted.len(), "{:?}", self.tags());
        self
    }

    /// Asserts that these have run first, in this order. Another order counts as late: a waiter that got no processor
    /// for half a second may have been passed over.
    #[track_caller]
    pub(crate) fn first_in_order(&self, wanted: &[String]) {
        let tags = self.tags();
        if !tags.iter().zip(wanted).all(|(ran, wanted)| ran == wanted) {
            late(&format!("they ran in the order {tags:?}, not {wanted:?}"));
        }
        assert!(tags.len() >= wanted.len(), "only {tags:?}");
    }

    /// Asserts that these have run, once each, in any order.
    #[track_caller]
    pub(crate) fn in_any_order(self, numbers: Range<usize>) -> Self {
        assert_eq!(self.0.len(), numbers.len());
        let ran: BTreeSet<&str> = self.tags().into_iter().collect();
        let wanted: BTreeSet<String> = numbers.map(|number| number.to_string()).collect();
        assert_eq!(ran, wanted.iter().map(String::as_str).collect());
        self
    }

    /// Asserts that, from `since` on, the lock was never unused for longer than `limit`.
    #[track_caller]
    pub(crate) fn without_gap(self, since: Duration, limit: Duration) -> Self {
        let mut free_since = since;
        for ran in &self.0 {
            let gap = ran.began.saturating_sub(free_since);
            in_time(gap, limit, &format!("nobody ran before {}", ran.tag));
            free_since = ran.ended;
        }
        self
    }
}
