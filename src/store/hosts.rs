//! Several hosts in one URL, of which the first that can be used is.

use std::time::Duration;

use super::failure::{Failure, Rejection};
use super::{RetryClass, StoreError};
use crate::net::endpoint::Endpoint;
use crate::sys::clock::Moment;

/// Returns the first of the `hosts` that `connect` connects to, by its index, and the connection. Each has a share of
/// the time until the `deadline`. If none of several is usable, the failure says why by `explain`. `server`: what each
/// of them should be.
pub(super) fn first_usable<T, R: Rejection>(
    hosts: &[Endpoint],
    deadline: Moment,
    server: &str,
    mut connect: impl FnMut(&Endpoint, Moment) -> Result<T, Failure<R>>,
    explain: impl Fn(&Endpoint, &Failure<R>) -> StoreError,
) -> Result<(usize, T), Failure<R>> {
    let mut failures = Vec::new();
    for (at, endpoint) in hosts.iter().enumerate() {
        // A host that does not answer must leave time for the remaining ones.
        let now = Moment::now();
        let share = deadline.since(now) / u32::try_from(hosts.len() - at).unwrap_or(1);
        match connect(endpoint, now + share.max(Duration::from_millis(1))) {
            Ok(connection) => return Ok((at, connection)),
            Err(Failure::UnexpectedReply(what)) => {
                let what = format!("sent an unexpected reply: {what}; is it a {server} server?");
                failures.push((endpoint, Failure::lasting(what)));
            }
            Err(failure) => failures.push((endpoint, failure)),
        }
    }
    if failures.len() == 1
        && let Some((_, failure)) = failures.pop()
    {
        return Err(failure);
    }
    let why: Vec<String> = failures.iter().map(|(host, failure)| explain(host, failure).to_string()).collect();
    let retry_classes = failures.iter().map(|(_, failure)| failure.retry_class());
    let retry_class = retry_classes.max().unwrap_or(RetryClass::Unavailable);
    Err(Failure::Unsent(retry_class, why.join("; ")))
}
