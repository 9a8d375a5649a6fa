//! A lost lease is reported, exactly once, even if the command ends at once.

use crate::support::calm::{held_in_time, late};
use crate::support::events::Events;
use crate::support::proxy::{Mode, Proxy};
use crate::support::sequence;
use crate::support::store::on_every_lease_store;
use crate::support::{Lockrun, Running, Store};

/// A run that has lost its store, and whose command ends as soon as it gets TERM.
struct Case {
    run: Running,
    events: Events,
    what: String,
    _proxy: Proxy,
}

impl Case {
    /// Starts the run that `call` makes of the store's URL and a key, and cuts it off.
    #[track_caller]
    fn new(store: &Store, mode: Mode, call: fn(&str, &str) -> Lockrun) -> Self {
        let (proxy, events) = (store.proxy(), Events::new());
        let what = format!("{mode:?}");
        let call = events.of(call(&proxy.url(), &what)).args(["--ttl", "6s", "--store-timeout", "1s"]);
        let mut run = call.sh("echo ready; exec sleep 600").spawn();
        if !run.comes_to(|run| run.has_line("ready")) {
            late(&format!("{what}: the run has ended: {}", run.stderr()));
        }
        proxy.set(mode);
        Case { run, events, what, _proxy: proxy }
    }

    /// Waits for the end of the run.
    #[track_caller]
    fn judge(self) {
        let output =
            self.run.wait().exited(79).said("is lost, and the command is stopped: it could not be renewed in time: ");
        held_in_time(!output.stderr().contains("a write takes too long"), "events are written in time");
        assert_eq!(output.stderr().lines().count(), 1, "{}: {output}", self.what);
        assert_eq!(
            self.events.names(),
            ["acquired", "started", "outage", "lost", "killed", "finished"],
            "{}",
            self.what
        );
        assert_eq!(self.events.one("lost")["stops_command"], true);
    }
}

// "Status 79: the lease was lost, and the message says how": whether each renewal fails at once, or the last one is
// still on its way when TERM is due.
on_every_lease_store!(a_lost_lease_is_reported_once, |store| {
    let calls = [|url: &str, key: &str| Lockrun::at(url).key(key), |url: &str, _: &str| sequence::at(url, "1")];
    let cases = [Mode::Answer(b"nonsense\r\n"), Mode::Reset, Mode::Swallow]
        .into_iter()
        .flat_map(|mode| calls.map(|call| Case::new(store, mode, call)));
    // All of them are cut off before the first one has ended.
    for case in cases.collect::<Vec<_>>() {
        case.judge();
    }
});

// A command that ends before the next renewal: the store's answer to the release shows the loss.
on_every_lease_store!(a_loss_before_the_next_renewal_is_reported, |store| {
    let events = Events::new();
    let call = events.of(Lockrun::new(store)).key("short").args(["--ttl", "10m", "-v"]);
    let mut run = call.sh("echo ready; read line || :; exit 3").with_open_input();
    run.run.wait_for_line("ready");
    store.server().forget_holders("short");
    run.finish().exited(3).said("the lock \"short\" was no longer this run's when it was released: ");
    assert_eq!(events.names(), ["acquired", "started", "finished", "failed"]);
});
