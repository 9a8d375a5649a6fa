//! How a run ends: as its command ended.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use nix::libc::RLIM_INFINITY;
use nix::sys::resource::{Resource, getrlimit};
use nix::sys::signal::Signal;
use tempfile::TempDir;

use crate::support::birth::Birth;
use crate::support::holder::{is_free, write_script};
use crate::support::store::on_files_and_redis;
use crate::support::{Lockrun, Store};

// "COMMAND's own: it ran and ended."
on_files_and_redis!(every_status_is_passed_on, |store| {
    for status in 0..=255 {
        Lockrun::new(store).key("status").sh(&format!("exit {status}")).run().exited(status).silent();
    }
});

// "Where a signal ended it, lockrun dies of the same signal, so a shell sees 128+N."
on_files_and_redis!(death_by_signal_is_passed_on, |store| {
    for signal in [
        Signal::SIGTERM,
        Signal::SIGHUP,
        Signal::SIGSEGV,
        Signal::SIGKILL,
        Signal::SIGINT,
        Signal::SIGQUIT,
        Signal::SIGABRT,
        Signal::SIGPIPE,
        Signal::SIGALRM,
        Signal::SIGUSR1,
    ] {
        Lockrun::new(store)
            .key("signal")
            .sh(&format!("kill -{} $$; sleep 600", signal as i32))
            .run()
            .died_of(signal)
            .silent();
        assert!(is_free(store, "signal"), "after {signal}");
    }
});

// "Lockrun dies of the same signal (no core file)."
on_files_and_redis!(no_second_core_file, |store| {
    let directory = TempDir::new().expect("a temporary directory");
    let (_, most) = getrlimit(Resource::RLIMIT_CORE).expect("a limit");
    let output = Lockrun::new(store)
        .key("core")
        .sh("ulimit -c; kill -SEGV $$")
        .directory(directory.path())
        .birth(Birth { limits: vec![(Resource::RLIMIT_CORE, most, most)], ..Birth::default() })
        .run()
        .died_of(Signal::SIGSEGV);
    assert!(!output.core, "{output}");
    if most == RLIM_INFINITY {
        assert_eq!(output.stdout(), "unlimited\n", "the command keeps its own limit");
    }
});

// "126: COMMAND cannot be executed; the lock is released."
on_files_and_redis!(what_cannot_be_executed_is_126, |store| {
    let directory = TempDir::new().expect("a temporary directory");
    let plain = directory.path().join("plain");
    fs::write(&plain, "#!/bin/sh\n").expect("a file");
    fs::set_permissions(&plain, fs::Permissions::from_mode(0o644)).expect("our own file");
    for command in
        [plain.to_str().expect("a plain path"), directory.path().to_str().expect("a plain path"), "/etc/passwd/x"]
    {
        let output = Lockrun::new(store).key("exec").command([command]).run();
        output.exited(126).said(command).printed("");
        assert!(is_free(store, "exec"), "after {command}");
    }
});

// "127: COMMAND is not found; the lock is released."
on_files_and_redis!(what_is_not_found_is_127, |store| {
    for command in ["no-such-command-anywhere", "/no/such/command", "./none"] {
        let output = Lockrun::new(store).key("found").command([command]).run();
        output.exited(127).said(command).printed("");
        assert!(is_free(store, "found"), "after {command:?}");
    }
});

// "126, 127: COMMAND cannot be executed, is not found." COMMAND is searched for in the PATH that it will have.
#[test]
fn the_path_is_searched() {
    let store = Store::file();
    let directory = TempDir::new().expect("a temporary directory");
    write_script(directory.path(), "mine", "#!/bin/sh\necho found \"$0\"\n");
    let call = Lockrun::new(&store).key("path").command(["mine"]);
    let path = format!("/none:{}", directory.path().display());
    let output = call.clone().env("PATH", &path).run().exited(0).silent();
    assert_eq!(output.stdout(), format!("found {}/mine\n", directory.path().display()));
    call.env("PATH", "/none").run().exited(127);
}

// "`-c, --command STRING`: run STRING by `sh -c`, as flock(1) does."
on_files_and_redis!(command_string, |store| {
    let call = |option: &str, string: &str| {
        Lockrun::new(store).key("string").args([option, string]).env("SHELL", "/bin/false").run().silent()
    };
    call("-c", "echo a | tr a b; exit 7").exited(7).printed("b\n");
    call("--command", "printf '%s' \"$LOCKRUN_KEY\"").exited(0).printed("string");
    call("-c", "kill -TERM $$").died_of(Signal::SIGTERM);
    call("-c", "").exited(0);
});

// "Exit status 0, 64, ...": help is no failure, and goes to standard output.
#[test]
fn help_and_version() {
    for option in ["--help", "-h", "--version", "-V"] {
        let output = Lockrun::bare().arg(option).run().exited(0).silent();
        assert!(output.stdout().contains("lockrun"), "{output}");
    }
}

// "Lockrun dies of the same signal": also if the signal was sent to lockrun, not to the command.
on_files_and_redis!(a_forwarded_signal_ends_both, |store| {
    for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP] {
        let mut run = Lockrun::new(store).key("forwarded").sh("echo ready; exec sleep 600").spawn();
        run.wait_for_line("ready");
        run.signal(signal);
        run.wait().died_of(signal).silent();
        assert!(is_free(store, "forwarded"), "after {signal}");
    }
});
