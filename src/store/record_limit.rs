//! How long the record of a lock may be.
//!
//! A record that grows with each holder must not become so long that no operation can read it, or that the server takes
//! no other: then nobody could release the lock or break it.

use std::fmt::Display;

use anyhow::anyhow;

use super::StoreError;
use crate::lock::state::LockState;

/// The longest record that an acquisition may leave, in bytes: that of a thousand holders with the longest command
/// lines, and of four thousand with short ones. Less than the 1.5 MiB that etcd takes in a request.
const ACQUIRED: usize = 1 << 20;

/// The longest record that any other operation may leave, if it makes the record longer, as `break` does by naming its
/// caller in each holder. Whatever keeps a record reads at least this much.
pub const BYTES: usize = 3 << 20;

/// A record that is not written because it is longer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordTooLong {
    /// Whether another holder has made it so long.
    is_of_acquisition: bool,
}

/// Fails if the record `after` an operation must not be written in place of the one `before`: each with its length as
/// it is stored, in bytes. An operation that does not make it longer is always carried out.
pub fn check(before: (&LockState, usize), after: (&LockState, usize)) -> Result<(), RecordTooLong> {
    let ((before, was), (after, is)) = (before, after);
    // The latest holder is the last one.
    let latest = after.holders.last();
    let is_of_acquisition = latest.is_some_and(|latest| before.holders.iter().all(|it| it.token != latest.token));
    let limit = if is_of_acquisition { ACQUIRED } else { BYTES };
    if is > limit && is > was { Err(RecordTooLong { is_of_acquisition }) } else { Ok(()) }
}

impl RecordTooLong {
    /// Returns the error of the operation on this `server`.
    pub fn explain(self, server: &impl Display) -> StoreError {
        if self.is_of_acquisition {
            let limit = ACQUIRED >> 20;
            return anyhow!(
                "too many runs hold this lock at once: with another one its record in {server} would be longer than {limit} MiB; try again \
                 when some of them have ended, or spread the runs over several keys"
            );
        }
        let limit = BYTES >> 20;
        anyhow!(
            "too many runs hold this lock at once: its record in {server} would become longer than {limit} MiB; wait until some of them \
             have ended, or free the lock at once with lockrun break --now, which does not wait for their commands"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lock::state::HolderState;
    use crate::lock::token::Token;

    fn held_by(tokens: &[&str]) -> LockState {
        let token = |token: &&str| Token::parse(token).expect("is a token");
        let holders = tokens.iter().map(|it| HolderState { token: token(it), ..HolderState::default() });
        LockState { holders: holders.collect(), ..LockState::default() }
    }

    #[test]
    fn only_what_grows_is_refused() {
        let check = |before: &[&str], was: usize, after: &[&str], is: usize| {
            check((&held_by(before), was), (&held_by(after), is))
        };
        let (acquired, changed) =
            (RecordTooLong { is_of_acquisition: true }, RecordTooLong { is_of_acquisition: false });
        assert_eq!(check(&["a"], ACQUIRED - 9, &["a", "b"], ACQUIRED), Ok(()));
        assert_eq!(check(&["a"], ACQUIRED - 9, &["a", "b"], ACQUIRED + 1), Err(acquired));
        // In place of an expired one.
        assert_eq!(check(&["a"], ACQUIRED + 9, &["b"], ACQUIRED + 9), Ok(()));
        assert_eq!(check(&["a", "b"], ACQUIRED, &["a"], ACQUIRED + 1), Ok(()));
        assert_eq!(check(&["a", "b"], BYTES, &["a"], BYTES + 1), Err(changed));
        assert_eq!(check(&["a", "b"], BYTES + 9, &["a"], BYTES + 8), Ok(()));
        assert_eq!(check(&["a"], BYTES + 9, &[], 2), Ok(()));
    }
}
