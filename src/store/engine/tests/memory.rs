//! A store in memory, whose commits can fail.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::time::Duration;

use super::super::*;
use crate::lock::state::{HolderState, Now};
use crate::net::endpoint::TlsFiles;
use crate::store::RetryClass;
use crate::store::failure::Peer;

/// What the store's clock shows at first.
pub(super) const NOW_MS: u64 = 1_800_000_000_000;

/// What becomes of a commit.
pub(super) enum Fate {
    /// It is carried out.
    Carried,
    /// It is carried out, but its answer is lost.
    AnswerLost,
    /// The same, and the store tries again.
    Repeated,
    /// It is not carried out, and not answered.
    RequestLost,
    /// Others change the record first.
    Preceded(fn(&mut LockState)),
}

/// Tables in memory: for each key its record, and the rows of its waiters in the order of their places.
#[derive(Default)]
pub(super) struct Memory {
    pub(super) locks: BTreeMap<String, (String, Vec<Row>)>,
    pub(super) now_ms: u64,
    /// What becomes of the next commits; later ones succeed.
    pub(super) fates: VecDeque<Fate>,
    pub(super) commits: usize,
    pub(super) may_be_done: bool,
    pub(super) is_waiting: bool,
    /// How many pages can be read until the connection is closed; `None`: all.
    pub(super) pages_left: Option<usize>,
}

/// No request is rejected.
#[derive(Clone, Debug)]
pub(super) enum Never {}

pub(super) struct Here;

impl fmt::Display for Here {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("memory")
    }
}

impl Peer for Here {
    const QUESTION: &'static str = "";

    fn tls_files(&self) -> Option<&TlsFiles> {
        None
    }
}

impl Rejection for Never {
    type Server = Here;

    fn retry_class(&self) -> RetryClass {
        match *self {}
    }

    fn leaves_outcome_open(&self) -> bool {
        match *self {}
    }

    fn explain(&self, _: &Here) -> String {
        match *self {}
    }
}

impl Memory {
    pub(super) fn new() -> Self {
        Memory { now_ms: NOW_MS, ..Memory::default() }
    }

    pub(super) fn failing(mut self, fates: impl IntoIterator<Item = Fate>) -> Self {
        self.fates.extend(fates);
        self
    }

    pub(super) fn entry(&mut self, key: &Key) -> &mut (String, Vec<Row>) {
        self.locks.entry(key.as_str().to_owned()).or_insert_with(|| (String::from("{}"), Vec::new()))
    }

    pub(super) fn holders(&mut self) -> Vec<HolderState> {
        let (record, _) = self.entry(&Claim::example().key);
        read_state::<Never>(record).expect("it is readable").holders
    }

    pub(super) fn waiters(&mut self) -> Vec<Token> {
        self.entry(&Claim::example().key).1.iter().map(|row| row.waiter.token.clone()).collect()
    }

    fn write(&mut self, key: &Key, found: &Found, transition: &Transition, operation: Operation<'_>) -> Option<Place> {
        let changes = Changes::of(found, &transition.after, operation.waiter().map(|claim| &claim.token));
        let now = Now::unix(found.now_ms);
        let (record, rows) = self.entry(key);
        rows.retain(|row| !changes.gone.iter().any(|gone| gone.place == row.place));
        if changes.has_ended {
            rows.retain(|row| row.waiter.is_in_force(now));
        }
        for (row, waiter) in &changes.changed {
            rows.iter_mut().filter(|it| it.place == row.place).for_each(|it| it.waiter = (*waiter).clone());
        }
        if let Some(joined) = changes.joined {
            let place = rows.last().map_or(0, |row| row.place + 1);
            rows.push(Row { place, waiter: joined.clone() });
        }
        match changes.record {
            Some(RecordChange::Written(text)) => *record = text,
            Some(RecordChange::Deleted) => {
                self.locks.remove(key.as_str());
            }
            None => {}
        }
        changes.ahead.map(|ahead| Place { ahead, look_in: None })
    }

    fn lose(&mut self) -> Failure<Never> {
        self.may_be_done = true;
        Failure::Closed
    }
}

impl Transactions for Memory {
    type Snapshot = Found;
    /// The operation, and how many waiters it reads.
    type Attempt<'a> = (Operation<'a>, usize);
    type Rejection = Never;

    fn begin<'a>(&mut self, operation: Operation<'a>, _: Moment) -> (Operation<'a>, usize) {
        (operation, FIRST_WAITERS)
    }

    fn read(&mut self, (operation, limit): &mut (Operation<'_>, usize)) -> Result<Found, Failure<Never>> {
        let now_ms = self.now_ms;
        let (record, rows) = self.entry(operation.key());
        let first: Vec<Row> = rows.iter().take(*limit).cloned().collect();
        let own = rows.iter().find(|row| Some(&row.waiter.token) == operation.asking()).cloned();
        let unread = rows.len().saturating_sub(*limit);
        Ok(Found {
            state: read_state(record)?,
            record: record.clone(),
            now_ms,
            queue: Queue::new(first, own, *limit, unread),
        })
    }

    fn view(&mut self, _: &mut (Operation<'_>, usize), found: &Found) -> Result<(LockState, View), Failure<Never>> {
        Ok((found.state(), found.view(self.may_be_done, HAND_OFFS_MAX)))
    }

    fn commit(
        &mut self,
        attempt: &mut (Operation<'_>, usize),
        found: Found,
        transition: Transition,
    ) -> Result<Commit<Found>, Failure<Never>> {
        let key = attempt.0.key().clone();
        if !found.suffices(&transition) {
            let now = Now::unix(found.now_ms);
            self.entry(&key).1.retain(|row| row.waiter.is_in_force(now));
            attempt.1 = MORE_WAITERS;
            return self.read(attempt).map(Commit::Again);
        }
        self.commits += 1;
        let fate = self.fates.pop_front();
        match fate {
            Some(Fate::RequestLost) => return Err(self.lose()),
            Some(Fate::Preceded(change)) => {
                let (record, _) = self.entry(&key);
                let mut state = read_state(record)?;
                change(&mut state);
                *record = json(&state);
                return self.read(attempt).map(Commit::Again);
            }
            Some(Fate::Carried | Fate::AnswerLost | Fate::Repeated) | None => {}
        }
        let place = self.write(&key, &found, &transition, attempt.0);
        match fate {
            Some(Fate::AnswerLost) => Err(self.lose()),
            Some(Fate::Repeated) => {
                self.lose();
                self.read(attempt).map(Commit::Again)
            }
            _ => {
                self.may_be_done = false;
                Ok(Commit::Done(place))
            }
        }
    }

    fn abandon(&mut self, _: (Operation<'_>, usize), _: &Failure<Never>) {}
}

impl Records for Memory {
    type Pages = TablePages;
    type Entry = Stored;

    fn timeout(&self) -> Duration {
        Duration::from_mins(1)
    }

    fn may_be_done(&mut self) -> &mut bool {
        &mut self.may_be_done
    }

    fn is_waiting(&self) -> bool {
        self.is_waiting
    }

    fn note_answer(&mut self, answer: &Acquired) {
        self.is_waiting = matches!(answer, Acquired::Held(Held { place: Some(_), .. }));
    }

    fn sleep_in_queue(
        &mut self,
        _: &Claim,
        _: Option<Moment>,
        _: &mut Waiter<'_>,
        _: &mut dyn WaitObserver,
    ) -> Result<Wakeup, Failure<Never>> {
        Ok(Wakeup::AskAgain)
    }

    fn note_cancel(&mut self, _: &Claim, _: bool) {
        self.is_waiting = false;
    }

    fn pages(&mut self, key: Option<&Key>) -> TablePages {
        TablePages::of(key)
    }

    fn next_page(&mut self, pages: &mut TablePages) -> Result<Option<Page<Stored>>, Failure<Never>> {
        let now_ms = self.now_ms;
        match &mut self.pages_left {
            Some(0) => return Err(Failure::Closed),
            left => *left = left.map(|left| left - 1),
        }
        pages.next(|keys, _| {
            let is_in_it = |key: &str| match keys {
                Keys::Only(only) => key == only,
                Keys::After(after) => key > after.as_str(),
            };
            let row = |row: &Row| [row.place.to_string(), json(&row.waiter), row.waiter.ends_ms.to_string()];
            let page = self.locks.iter().filter(|(key, _)| is_in_it(key)).take(PAGE).map(|(key, (record, rows))| {
                let (key, record) = (key.clone(), record.clone());
                Stored { key, record, queue: rows.iter().map(row).collect(), now_ms }
            });
            Ok(page.collect())
        })
    }

    fn status(&mut self, _: &mut TablePages, key: &Key, entry: &Stored) -> Result<Option<KeyStatus>, Failure<Never>> {
        entry.status(key).map(Some)
    }

    fn looks_prunable(
        &mut self,
        _: &Key,
        entry: &Stored,
        unused_for: Duration,
        _: bool,
    ) -> Result<bool, Failure<Never>> {
        entry.is_prunable(unused_for)
    }

    fn server(&self) -> &Here {
        &Here
    }
}
