//! What lockrun reports of a run whose guardian was killed or stopped.

use nix::sys::signal::Signal;
use tempfile::TempDir;

use crate::support::calm::held_in_time;
use crate::support::events::{Events, number};
use crate::support::hand::{break_lock, is_held, status};
use crate::support::processes::{children, send, state};
use crate::support::schema::must_fit;
use crate::support::sequence::{next, reserve, reserved};
use crate::support::shell::written;
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
        let said = if exit == 79 { "did not run in time: it was stopped" } else { "was killed" };
        run.wait().exited(exit).said(said);
        let fence = number(&events.one("acquired"), "fence");
        for event in events.all() {
            assert_eq!((number(&event, "fence"), number(&event, "slot")), (fence, 0), "{event}");
        }
        let _ = (number(&events.one("finished"), "ran_ms"), number(&events.one(held), "held_ms"));
        must_fit("events", &events.all());
        assert_eq!(status(store, "taken-over")["last"]["status"], exit);
    }
});

// "`status`, `signal`: how the command ended": also if only processes that it left behind were killed with the
// guardian. lockrun's own status is 125, because with `--descendants wait` they belong to the run.
on_every_lease_store!(the_guardian_is_killed_after_the_command_has_ended, |store| {
    let (events, directory) = (Events::new(), TempDir::new().expect("a temporary directory"));
    let id = directory.path().join("id");
    let script = format!("sleep 600 & echo $$ >{}; exit 3", id.display());
    let call = events.of(Lockrun::new(store)).key("taken-over").args(["--ttl", "10m", "--descendants", "wait"]);
    let run = call.command(["sh", "-c", &script]).spawn();
    let command = written(&id);
    let [guardian] = children(run.pid())[..] else { panic!("lockrun has one child, its guardian") };
    eventually(LONG, "the guardian has reaped the command, and sleeps again", || {
        state(command).is_none() && state(guardian) == Some('S')
    });
    send(guardian, Signal::SIGKILL);
    run.wait().exited(125).said("guardian process was killed, and the command's processes with it");
    assert_eq!(number(&events.one("finished"), "status"), 3);
    must_fit("events", &events.all());
    assert_eq!(status(store, "taken-over")["last"]["status"], 125);
});

// "`--min-hold`: keep the lock at least this long from acquisition"; "a failed value comes up again when its lease
// expires": also after a takeover, and after a loss.
on_every_lease_store!(a_takeover_retains_what_an_end_retains, |store| {
    for (signal, exit) in [(Signal::SIGKILL, 125), (Signal::SIGSTOP, 79)] {
        // With 8 s, lockrun kills the command a whole second before the lease ends: time enough to retain the lock.
        let call = Lockrun::new(store).key("held").args(["--ttl", "8s", "--min-hold", "10m", "-v"]);
        let mut run = call.sh("echo ready; exec sleep 600").spawn();
        run.wait_for_line("ready");
        send(children(run.pid())[0], signal);
        let output = run.wait().exited(exit);
        let is_retained = output.stderr().contains("stays held") && is_held(store, "held");
        held_in_time(is_retained, &format!("it is retained before its lease expires: {output}"));
        break_lock(store, "held", &[]).exited(0);
    }
    let call = reserve(store, "1").args(["--ttl", "10m"]);
    let mut run = call.clone().sh("echo ready; exec sleep 600").spawn();
    run.wait_for_line("ready");
    send(children(run.pid())[0], Signal::SIGKILL);
    run.wait().exited(125);
    assert_eq!(reserved(store), ["1"]);
    assert_eq!(next(&call), "2");
});
