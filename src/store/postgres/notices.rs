//! Whom an operation notifies: the waiters that it grants the lock or calls, and those that look when a lease or a grant ends.

use std::time::Duration;

use super::connection::Connection;
use super::encoding::array;
use super::facts::{LATE, RollCall};
use super::waiting::{CHANNEL_OF_SESSION, LOOKERS, Look, Notice, STAND_INS, channel_of};
use super::writing::SecondTrip;
use crate::lock::state::{Applied, LockState, WaiterState, millis};
use crate::lock::token::Token;

/// Whether waiters are notified. Notices are hints: without them waiters find out by themselves, but later, and get more time for that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Notices {
    /// They are sent with the commit.
    Sent,
    /// They are not: the server accepts none at the moment.
    NotSent,
}

impl SecondTrip<'_> {
    /// Calls the roll: records when the waiters in it are due, and notifies them.
    pub(super) fn call(&mut self, roll_call: &RollCall, beat_in: Duration) {
        let facts = self.found.facts(self.subject);
        let is_other = |token: &&Token| self.subject.asking != Some(*token);
        let blocked = roll_call.blocked.iter().filter(is_other).filter(|token| !facts.looks_within(token, beat_in));
        let looks = blocked.map(|token| (token, Notice::Look(beat_in), beat_in));
        let checks = roll_call.called.iter().map(|token| (token, Notice::ShowAlive, Duration::ZERO));
        let (mut places, mut times, mut notices) = (Vec::new(), Vec::new(), Vec::new());
        for (token, notice, within) in looks.chain(checks) {
            let Some(row) = facts.row_of(token) else { continue };
            if row.session.is_some() && self.subject.notices == Notices::NotSent {
                // It would not hear that it was called, and count as silent.
                continue;
            }
            places.push(row.place.to_string());
            times.push(self.found.now_ms.saturating_add(millis(within)).to_string());
            notices.extend(row.session.map(|session| (session, notice)));
        }
        if !places.is_empty() {
            let waiters = &self.tables.waiters;
            let statement = format!(
                "UPDATE {waiters} AS own SET looks_at_ms = called.at_ms \
                 FROM unnest($2::bigint[], $3::bigint[]) AS called (place, at_ms) WHERE own.key = $1 AND own.place = called.place"
            );
            let [places, times] = [&places, &times].map(|words| array(words));
            self.batch.add(&statement, &[Some(self.subject.key.as_str()), Some(&places), Some(&times)]);
        }
        self.notify(&notices);
    }

    /// Wakes the waiters that were granted the lock, and asks a few behind them to look whether it is claimed. If none was granted it, but
    /// a lease now ends sooner than before, asks the first few to look when it does.
    pub(super) fn wake<T>(&mut self, state: &LockState, applied: &Applied<T>) {
        let facts = self.found.facts(self.subject);
        let others = || state.waiters.iter().filter(|waiter| self.subject.asking != Some(&waiter.token));
        let session = |waiter: &WaiterState| facts.row_of(&waiter.token)?.session;
        let was_marked = |waiter: &&WaiterState| {
            waiter.is_unresponsive && facts.row_of(&waiter.token).is_some_and(|row| !row.waiter.is_unresponsive)
        };
        // If it lives after all, it asks again.
        let marked = others().filter(was_marked).filter_map(session).map(|session| (session, Notice::ShowAlive));
        let granted = || others().filter(|waiter| applied.granted.contains(&waiter.token));
        let woken = granted().filter_map(session).map(|session| (session, Notice::Look(Duration::ZERO)));
        let mut notices: Vec<_> = marked.chain(woken).collect();
        let grants_end = granted().filter_map(|waiter| Some(waiter.grant?.ends_ms)).max();
        let before = self.found.next_end();
        let ends_sooner = applied.look_at_ms.filter(|at_ms| before.is_none_or(|before| *at_ms < before));
        // If the lock is claimed, a heartbeat shows them that they need not look.
        if let Some(at_ms) = grants_end.or(ends_sooner) {
            let end_in = Duration::from_millis(at_ms.saturating_sub(self.found.now_ms));
            let watch = |turn| Notice::Watch(end_in + Look::turn(turn), turn);
            let behind = others().filter(|waiter| waiter.grant.is_none() && facts.is_willing(waiter));
            let behind: Vec<Option<i64>> = behind.map(session).collect();
            let (first, rest) = behind.split_at(behind.len().min(LOOKERS));
            let turns = first.iter().enumerate().filter_map(|(turn, session)| Some(((*session)?, watch(turn))));
            notices.extend(turns);
            match grants_end {
                Some(_) if self.found.has_all_waiters => {
                    let last = rest.iter().rev().flatten().take(STAND_INS).map(|session| (*session, watch(LOOKERS)));
                    notices.extend(last);
                }
                Some(_) => self.notify_last(watch(LOOKERS)),
                None => {}
            }
        }
        self.notify(&notices);
    }

    /// Sends notices to the waiters that listen in these sessions.
    fn notify(&mut self, notices: &[(i64, Notice)]) {
        if notices.is_empty() || self.subject.notices == Notices::NotSent {
            return;
        }
        let channels: Vec<String> = notices.iter().map(|(session, _)| channel_of(*session)).collect();
        let texts: Vec<String> = notices.iter().map(|(_, notice)| notice.to_text()).collect();
        let statement = "SELECT pg_notify(channel, notice) FROM unnest($1::text[], $2::text[]) AS it (channel, notice)";
        self.batch.add(statement, &[Some(&array(&channels)), Some(&array(&texts))]);
    }

    /// Sends a notice to [`STAND_INS`] of the last waiters that were not read, if they listen and seem to be alive.
    fn notify_last(&mut self, notice: Notice) {
        if self.subject.notices == Notices::NotSent {
            return;
        }
        let waiters = &self.tables.waiters;
        let others = self.found.queue.iter().filter(|row| self.subject.asking != Some(&row.waiter.token));
        let read_up_to = others.map(|row| row.place).max().unwrap_or_default().to_string();
        let late_at = self.found.now_ms.saturating_sub(millis(LATE)).to_string();
        // Few rows are read, however many of the last waiters are dead or wait behind a pooler.
        let statement = format!(
            "SELECT pg_notify({CHANNEL_OF_SESSION}, $4) FROM (\
              SELECT session, is_unresponsive, looks_at_ms FROM {waiters} WHERE key = $1 AND place > $2::bigint \
              ORDER BY place DESC LIMIT {LOOKERS}\
             ) AS last WHERE session IS NOT NULL AND NOT is_unresponsive AND looks_at_ms >= $3::bigint LIMIT {STAND_INS}"
        );
        let key = self.subject.key.as_str();
        self.batch.add(&statement, &[Some(key), Some(&read_up_to), Some(&late_at), Some(&notice.to_text())]);
    }

    /// Makes the session start or stop listening for a waiter.
    pub(super) fn listen(&mut self, connection: &Connection) {
        if self.listens_for == connection.listens_for {
            return;
        }
        if connection.listens_for.is_some() {
            self.ends_listening = true;
            self.batch.add("UNLISTEN *", &[]);
            self.batch.add("SELECT pg_advisory_unlock_all()", &[]);
        }
        if self.listens_for.is_some() {
            self.batch.add(&format!("LISTEN {}", channel_of(self.session)), &[]);
            self.batch.add("SELECT pg_advisory_lock($1::bigint)", &[Some(&self.session.to_string())]);
        }
    }
}
