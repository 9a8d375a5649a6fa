//! How quickly a server answers, and how evenly its clock runs.

use std::thread::sleep;
use std::time::Duration;

use super::Diagnostic;
use crate::sys::clock::Moment;

/// The number of requests and the pause between them: a second in all.
const SAMPLES: usize = 21;
const PAUSE: Duration = Duration::from_millis(50);

/// At each end of the series, the quickest of this many replies shows the time most precisely.
const END: usize = 5;

/// The drift that lockrun allows for: one part in this many.
const DRIFT: u32 = 100;

/// One reading of the server's clock.
#[derive(Clone, Copy, Debug)]
struct Sample {
    sent: Moment,
    received: Moment,
    /// What the server's clock showed, since 1970, if that can be read.
    server: Option<Duration>,
}

impl Sample {
    fn took(&self) -> Duration {
        self.received.since(self.sent)
    }
}

/// Asks for the server's time repeatedly. `ask` returns what its clock shows, since 1970, or `None` if that cannot be
/// read; a request may take `timeout`. Fails when the server stops answering.
pub(in crate::store) fn diagnose<E>(
    timeout: Duration,
    mut ask: impl FnMut() -> Result<Option<Duration>, E>,
) -> Result<Vec<Diagnostic>, E> {
    let mut samples = Vec::new();
    for _ in 0..SAMPLES {
        let sent = Moment::now();
        let answer = ask()?;
        let received = Moment::now();
        samples.push(Sample { sent, received, server: answer });
        sleep(PAUSE);
    }
    let mut diagnostics = vec![judge_latency(&samples, timeout)];
    diagnostics.extend(judge_clock_rate(&samples));
    Ok(diagnostics)
}

/// Judges whether replies come well within `timeout`.
fn judge_latency(samples: &[Sample], timeout: Duration) -> Diagnostic {
    let mut spans: Vec<Duration> = samples.iter().map(Sample::took).collect();
    spans.sort_unstable();
    let (median, worst) = (spans[spans.len() / 2], spans[spans.len() - 1]);
    let text = format!("an answer takes {median:.1?}, at worst {worst:.1?}; --store-timeout allows {timeout:?}");
    if median > timeout / 10 || worst > timeout / 2 {
        Diagnostic::warn(
            text,
            "a request that is late is taken for lost, and a lease that cannot be renewed ends its command; \
             find out what is slow, or allow more with --store-timeout and --ttl",
        )
    } else {
        Diagnostic::ok(text)
    }
}

/// Judges whether the server's clock runs as fast as ours.
fn judge_clock_rate(samples: &[Sample]) -> Option<Diagnostic> {
    let best = |samples: &[Sample]| samples.iter().min_by_key(|sample| sample.took()).copied();
    let first = best(samples.get(..END)?)?;
    let last = best(samples.get(samples.len() - END..)?)?;
    let here = last.sent.since(first.sent);
    let (start, end) = (first.server?, last.server?);
    let (backwards, there) = match end.checked_sub(start) {
        Some(there) => (false, there),
        None => (true, start.saturating_sub(end)),
    };
    let off = if backwards { here + there } else { here.abs_diff(there) };
    // The server read its clock at some time between the request and the reply.
    let doubt = first.took() + last.took();
    Some(if off > here / DRIFT + doubt {
        let sign = if backwards { "-" } else { "" };
        Diagnostic::fail(
            format!("the server's clock runs unevenly: {sign}{there:.1?} there in {here:.1?} here"),
            "leases end too early or too late, and two runs may hold one lock; let NTP slew that clock, by at most 1 % \
             (chronyd: maxslewrate 10000), instead of stepping it",
        )
    } else {
        Diagnostic::ok(format!(
            "the server's clock runs evenly (off by {off:.1?} in {here:.1?}, give or take {doubt:.1?})"
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::diagnostic::Level;

    const MS: Duration = Duration::from_millis(1);

    /// Returns a series in which each reply takes `took`, and the server's clock shows `there` at each of our moments.
    fn series(took: Duration, there: impl Fn(Duration) -> Duration) -> Vec<Sample> {
        let at = |number: u32| {
            let sent = PAUSE * number;
            Sample {
                sent: Moment::from_boot(sent),
                received: Moment::from_boot(sent + took),
                server: Some(Duration::from_secs(1_700_000_000) + there(sent + took / 2)),
            }
        };
        (0..21).map(at).collect()
    }

    fn clock_rate(took: Duration, there: impl Fn(Duration) -> Duration) -> Level {
        judge_clock_rate(&series(took, there)).expect("is enough").level
    }

    #[test]
    fn a_clock_that_steps_or_drifts_is_found() {
        assert_eq!(clock_rate(MS, |here| here), Level::Ok);
        assert_eq!(clock_rate(MS, |here| here * 1005 / 1000), Level::Ok);
        assert_eq!(clock_rate(MS, |here| here * 105 / 100), Level::Fail);
        assert_eq!(clock_rate(MS, |here| here * 95 / 100), Level::Fail);
        let half = Duration::from_millis(500);
        assert_eq!(clock_rate(MS, |here| if here > half { here + half } else { here }), Level::Fail);
        let back = Duration::from_mins(1);
        assert_eq!(clock_rate(MS, |here| if here > half { here } else { here + back }), Level::Fail);
        // Over a slow network a small difference cannot be detected.
        assert_eq!(clock_rate(MS * 100, |here| here * 105 / 100), Level::Ok);
    }

    #[test]
    fn slowness_is_measured_by_the_timeout() {
        let level = |took: Duration| judge_latency(&series(took, |here| here), Duration::from_secs(5)).level;
        assert_eq!(level(MS), Level::Ok);
        assert_eq!(level(MS * 400), Level::Ok);
        assert_eq!(level(MS * 600), Level::Warn);
        let mut samples = series(MS, |here| here);
        samples[7].received = samples[7].sent + MS * 3000;
        assert_eq!(judge_latency(&samples, Duration::from_secs(5)).level, Level::Warn);
    }
}
