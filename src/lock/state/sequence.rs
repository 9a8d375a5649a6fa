//! Sequences: each run reserves a value, and no value is used twice.

use super::{Applied, Ask, FenceExhausted, HolderState, LockState, Purpose, SequenceState, StoreView, Value};
use crate::lock::answer::Reserved;
use crate::lock::claim::Mode;
use crate::lock::token::Token;

/// The value of a sequence that a request wants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// The first unreserved value, in steps of `step` from the last one; from `from` if there is no last one.
    Next {
        /// The first value of the sequence.
        from: i64,
        /// The difference between two values. Not 0.
        step: i64,
    },
    /// This value.
    Value {
        /// The value.
        value: String,
        /// The last value, from which this one was computed; `None` if there is none.
        after: Option<String>,
        /// The number of steps from the last value; the first value of a sequence is 1 step.
        steps: u32,
    },
}

/// Returns the value as an integer, if it is written exactly as lockrun writes integers.
pub fn integer(value: &str) -> Option<i64> {
    value.parse().ok().filter(|integer: &i64| integer.to_string() == value)
}

impl LockState {
    /// Reserves an unreserved value of the key's sequence. It does not wait: there is always a next value.
    ///
    /// A repeated request under the same token gets the same answer. On failure the state must not be stored.
    pub fn reserve(
        &mut self,
        ask: &Ask<'_>,
        wanted: &Wanted,
        view: &impl StoreView,
    ) -> Result<Applied<Reserved>, FenceExhausted> {
        let (now, before) = (view.now(), self.next_end());
        let token = &ask.claim.token;
        if self.is_cancelled(token, now, view) {
            // Nobody waits for this answer.
            return Ok(self.finish_with(Reserved::Taken, before, Vec::new(), view));
        }
        // What has ended goes to the waiters first: they were there before.
        self.drop_ended(now, view);
        let mut woken = Vec::new();
        self.hand_off(None, &mut woken, now, view);
        if let Some(at) = self.position(token) {
            if self.holders[at].purpose == Purpose::Unrecorded {
                // The record of its reservation was deleted, too.
                return Ok(self.finish_with(Reserved::Taken, before, woken, view));
            }
            let begins_lease = self.answer_again(at, ask, now, view);
            let holder = &self.holders[at];
            let value = holder.value.as_ref().map(|value| value.value.clone()).unwrap_or_default();
            let mine = Reserved::Mine(holder.grant(ask), value);
            return Ok(Applied { begins_lease, ..self.finish_with(mine, before, woken, view) });
        }
        let value = match self.choose_value(wanted) {
            Ok(value) => value,
            Err(refused) => return Ok(self.finish_with(refused, before, woken, view)),
        };
        let fence = self.next_fence(view)?;
        // A reservation takes a slot so that no two holders have the same one. It ignores the limit: its value is
        // exclusive anyway.
        let is_free = |slot: &u32| !self.has_slot(*slot) && view.take_slot(*slot);
        let slot = (0..u32::MAX).find(is_free).unwrap_or(u32::MAX);
        let reserved = value.value.clone();
        let grant = self.hold(ask, Mode::EXCLUSIVE, slot, fence, Some(value), view);
        Ok(self.finish_with(Reserved::Mine(grant, reserved), before, woken, view))
    }

    /// Returns the value reserved under this token.
    pub fn reserved_by(&self, token: &Token) -> Option<&str> {
        let holder = &self.holders[self.position(token)?];
        holder.value.as_ref().map(|value| value.value.as_str())
    }

    /// Returns the value that a request gets, or the answer if it gets none.
    fn choose_value(&self, wanted: &Wanted) -> Result<Value, Reserved> {
        let (last, mut place) =
            self.sequence.as_ref().map_or((None, 0), |sequence| (Some(&sequence.last), sequence.place));
        let reserved: Vec<_> = self.holders.iter().filter_map(|holder| holder.value.as_ref()).collect();
        let is_reserved = |value: &str| reserved.iter().any(|reserved| reserved.value == value);
        match wanted {
            Wanted::Value { after, .. } if after.as_ref() != last => Err(Reserved::LastChanged(last.cloned())),
            Wanted::Value { value, .. } if is_reserved(value) => Err(Reserved::Taken),
            Wanted::Value { value, steps, .. } => {
                Ok(Value { value: value.clone(), place: place.saturating_add(u64::from(*steps)) })
            }
            Wanted::Next { from, step } => {
                let next_after = |value: &str| integer(value).and_then(|value| value.checked_add(*step));
                let mut before = last.cloned();
                loop {
                    place = place.saturating_add(1);
                    let next = before.as_deref().map_or(Some(*from), next_after);
                    let Some(next) = next.map(|next| next.to_string()) else {
                        return Err(Reserved::NoNext(before.unwrap_or_default()));
                    };
                    if !is_reserved(&next) {
                        return Ok(Value { value: next, place });
                    }
                    before = Some(next);
                }
            }
        }
    }

    /// Records that the run of `holder` has used its value. It becomes the last value, unless one further along in the
    /// sequence was used already. The order of the runs does not count: a later run may have got an earlier value, one
    /// that another run had failed to use.
    pub(super) fn use_value(&mut self, holder: &HolderState) {
        let Some(Value { value, place }) = &holder.value else { return };
        let (last, fence) = (value.clone(), holder.fence);
        if self.sequence.as_ref().is_none_or(|sequence| (sequence.place, sequence.fence) < (*place, fence)) {
            self.sequence = Some(SequenceState { last, place: *place, fence });
        }
    }
}
