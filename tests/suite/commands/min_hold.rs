//! `--min-hold`: a lock that outlasts its short command.

use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use crate::support::hand::{break_lock, expires_in, is_held, release, status, until_waiting};
use crate::support::store::on_every_store;
use crate::support::{Lockrun, Output, Store};

fn hold(store: &Store, span: &str) -> Lockrun {
    Lockrun::new(store).key("held").args(["--min-hold", span])
}

// "Without waiting: the command's status is returned at once", and the lock is held from then on by nobody's process.
on_every_store!(the_status_comes_at_once, |store| {
    for (script, ends) in [("exit 0", Some(0)), ("exit 3", Some(3)), ("kill -USR1 $$", None)] {
        let output = hold(store, "10m").sh(script).run().silent();
        assert!(output.took < Duration::from_mins(10), "{output}");
        let output = match ends {
            Some(status) => output.exited(status),
            None => output.died_of(Signal::SIGUSR1),
        };
        assert!(is_held(store, "held"), "{output}");
        let refused = Lockrun::new(store).key("held").command(["true"]).run().exited(75);
        refused.said("lock \"held\" is kept by ").said(" after its run: free in ").said(", or when it is released\n");
        let left = expires_in(store, "held").expect("it ends");
        assert!((300_000..=600_000).contains(&left), "{left}");
        let told = status(store, "held");
        assert_eq!(told["last"]["status"].as_i64(), ends.map(i64::from));
        break_lock(store, "held", &[]).exited(0).said("was taken from");
        assert!(!is_held(store, "held"));
    }
});

// "Keep the lock at least this long from acquisition", and then it is free at once for those that wait.
on_every_store!(it_ends_by_itself, |store| {
    let started = Instant::now();
    hold(store, "2s").sh(":").run().exited(0);
    let waiter = Lockrun::new(store).key("held").arg("--wait").command(["echo", "next"]).run();
    waiter.exited(0).printed("next\n").silent();
    assert!(started.elapsed() >= Duration::from_secs(2), "{:?}", started.elapsed());
    assert!(!is_held(store, "held"));
});

// "Free at once for a waiter": also one that waited while the command ran, behind a lease that would have lasted
// longer.
on_every_store!(a_waiter_is_not_kept_longer, |store| {
    const ROUNDS: u32 = 4;
    let started = Instant::now();
    for _ in 0..ROUNDS {
        let mut run = hold(store, "1s").args(["--ttl", "10m"]).sh("echo ready; read line || :").with_open_input();
        run.run.wait_for_line("ready");
        let waiter = Lockrun::new(store).key("held").arg("--wait").command(["echo", "next"]).spawn();
        until_waiting(store, "held", 1);
        run.finish().exited(0);
        waiter.wait().exited(0).printed("next\n").silent();
    }
    // A waiter that was not woken would look after four to twelve seconds.
    assert!(started.elapsed() < Duration::from_secs(4) * ROUNDS, "{:?}", started.elapsed());
});

// "From acquisition": after a command that takes longer, the lock is not held.
on_every_store!(a_longer_command_is_not_held, |store| {
    // However slow the machine is, it takes longer than that.
    hold(store, "200ms").sh("sleep 0.3").run().exited(0).silent();
    assert!(!is_held(store, "held"));
});

// "126, 127: COMMAND cannot be executed, is not found; the lock is released."
on_every_store!(a_command_that_never_ran_holds_nothing, |store| {
    hold(store, "10m").command(["/nonexistent/program"]).run().exited(127);
    assert!(!is_held(store, "held"));
    hold(store, "10m").command(["/etc/passwd"]).run().exited(126);
    assert!(!is_held(store, "held"));
});

// "`release` by its token": with the token, no one needs to wait for the end.
on_every_store!(it_can_be_released, |store| {
    let ours = hold(store, "10m").sh("echo $LOCKRUN_TOKEN").run().exited(0).stdout();
    assert!(is_held(store, "held"));
    release(store, "held", ours.trim_end()).exited(0).silent();
    assert!(!is_held(store, "held"));
});

// "min-hold under clocks that are apart between two servers: a short job runs once a tick."
on_every_store!(a_short_job_runs_once_a_tick, |store| {
    let job = |options: &[&str]| -> Output {
        let call = Lockrun::new(store).key("tick").args(["--skip"]).args(options);
        call.command(["echo", "ran"]).run().exited(0).silent()
    };
    // Without `--min-hold`, a server whose clock is behind finds the lock free and runs the job again.
    assert_eq!([job(&[]), job(&[])].map(|output| output.stdout()), ["ran\n", "ran\n"]);
    for tick in 1..=3 {
        assert_eq!(job(&["--min-hold", "10m"]).stdout(), "ran\n", "tick {tick}");
        // The other servers come when the job is over, each later than the one before.
        for _ in 0..4 {
            assert_eq!(job(&["--min-hold", "10m"]).stdout(), "", "twice in tick {tick}");
        }
        // The tick is over. (That it also ends by itself is proven above.)
        break_lock(store, "tick", &[]).exited(0).said("was taken from");
    }
});
