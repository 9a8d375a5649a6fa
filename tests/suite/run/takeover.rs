//! What lockrun reports of a run whose guardian was killed or stopped.

use nix::sys::signal::Signal;

use crate::support::events::{Events, number};
use crate::support::hand::status;
use crate::support::processes::{children, send};
use crate::support::schema::must_fit;
use crate::support::store::on_every_lease_store;
use crate::support::{LONG, Lockrun, eventually};

// "`fence`, `slot`: from `acquired` on"; "`ran_ms`: how long the command ran"; "`held_ms`: how long the lock was held".
on_every_lease_store!(the_events_of_a_takeover_have_all_their_fields, |store| {
    for (signal, ttl, exit, held) in [(Signal::SIGKILL, "10m", 125, "released"), (Signal::SIGSTOP, "2s", 79, "lost")] {
        let events = Events::new();
        let call = events.of(Lockrun::new(store)).key("taken-over").args(["--slots", "2", "--ttl", ttl]);
        let run = call.command(["sleep", "600"]).spawn();
        eventually(LONG, "it runs", || events.names() == ["acquired", "started"]);
        let [guardian] = children(run.pid())[..] else { panic!("lockrun has one child, its guardian") };
        send(guardian, signal);
        run.wait().exited(exit);
        let fence = number(&events.one("acquired"), "fence");
        for event in events.all() {
            assert_eq!((number(&event, "fence"), number(&event, "slot")), (fence, 0), "{event}");
        }
        let _ = (number(&events.one("finished"), "ran_ms"), number(&events.one(held), "held_ms"));
        must_fit("events", &events.all());
        assert_eq!(status(store, "taken-over")["last"]["status"], exit);
    }
});
