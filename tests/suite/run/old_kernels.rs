//! Kernels without the newer system calls, and sandboxes that refuse some: the run works, or the message says what is
//! missing.

use nix::errno::Errno;
use nix::libc;

use crate::support::birth::Birth;
use crate::support::holder::is_free;
use crate::support::store::{on_every_lease_store, on_files_and_redis};
use crate::support::{LONG, Lockrun, Store, eventually};

/// System calls that Linux 4.19, the kernel of Debian 10, did not have, and that the C library or the standard library
/// may use where they exist.
const NEWER: [i64; 9] = [
    libc::SYS_clone3,
    libc::SYS_close_range,
    libc::SYS_epoll_pwait2,
    libc::SYS_faccessat2,
    libc::SYS_futex_waitv,
    libc::SYS_openat2,
    libc::SYS_pidfd_getfd,
    libc::SYS_pidfd_open,
    libc::SYS_pidfd_send_signal,
];

/// System calls that sandboxes forbid, too: those of containers refuse real-time priority, stricter ones information
/// about files and processes.
const FORBIDDEN: [i64; 9] = [
    libc::SYS_pidfd_open,
    libc::SYS_pidfd_send_signal,
    libc::SYS_sched_setscheduler,
    libc::SYS_statx,
    libc::SYS_rseq,
    libc::SYS_madvise,
    libc::SYS_getxattr,
    libc::SYS_process_vm_readv,
    libc::SYS_ptrace,
];

fn refusing(calls: &[i64], error: Errno) -> Birth {
    Birth { refused: calls.iter().map(|&number| (number, error)).collect(), ..Birth::default() }
}

// A run, its renewals, a time limit, and what COMMAND leaves behind: all of this works without newer system calls.
on_files_and_redis!(an_older_kernel_will_do, |store| {
    // A process can be opened there, but not signalled.
    let half = [libc::SYS_pidfd_send_signal];
    for birth in [refusing(&NEWER, Errno::ENOSYS), refusing(&FORBIDDEN, Errno::EPERM), refusing(&half, Errno::EPERM)] {
        let call = || Lockrun::new(store).key("old").args(["--ttl", "3s"]).birth(birth.clone());
        call().sh("echo ran; exit 7").run().exited(7).printed("ran\n").silent();
        let tree = "(setsid sleep 600 & sleep 600) & sleep 600";
        let mut run = call().args(["--max-runtime", "300ms", "--kill-after", "100ms"]).sh(tree).spawn();
        eventually(LONG, "the run has ended", || run.has_ended());
        assert_eq!(run.processes(), Vec::<i32>::new(), "left behind");
        run.wait().exited(124);
        assert!(is_free(store, "old"));
    }
});

// "125: lockrun itself failed": the message names what is missing, and COMMAND is not started without it.
on_every_lease_store!(a_run_without_its_means_is_refused, |store| {
    let means = [
        (libc::SYS_timer_create, "the timer"),
        (libc::SYS_timer_settime, ""),
        (libc::SYS_timerfd_create, ""),
        (libc::SYS_eventfd2, "guardian"),
        (libc::SYS_pipe2, "guardian"),
        (libc::SYS_prctl, "guardian"),
        (libc::SYS_signalfd4, "signals"),
    ];
    for (call, named) in means {
        let run = Lockrun::new(store).key("means").birth(refusing(&[call], Errno::EPERM)).command(["echo", "ran"]);
        run.run().exited(125).printed("").said("lockrun: cannot ").said(named).said("peration not permitted");
        assert!(is_free(store, "means"), "{named}");
    }
    // What ends COMMAND with its lease is not needed where the lease does not end it.
    for option in ["--ttl=none", "--on-lost=warn"] {
        let run = Lockrun::new(store).key("means").birth(refusing(&[libc::SYS_timer_create], Errno::EPERM));
        run.arg(option).command(["echo", "ran"]).run().exited(0).printed("ran\n").silent();
    }
});

// "`--max-runtime`": a COMMAND that already runs is ended even if the timer for that cannot be created.
#[test]
fn a_time_limit_holds_without_a_timer() {
    let store = Store::file();
    let birth = refusing(&[libc::SYS_timerfd_create], Errno::EMFILE);
    let call = Lockrun::new(&store).key("limit").args(["--max-runtime", "300ms", "--kill-after", "100ms"]).birth(birth);
    let mut run = call.command(["sleep", "600"]).spawn();
    eventually(LONG, "the run has ended", || run.has_ended());
    assert_eq!(run.processes(), Vec::<i32>::new(), "left behind");
    run.wait().exited(124);
}
