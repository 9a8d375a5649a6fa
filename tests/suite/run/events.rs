//! What a run writes to the file of `--events`, and what happens when it cannot.

use std::fs::{self, File, OpenOptions};
use std::io::Read;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::resource::Resource;
use nix::sys::signal::Signal;
use nix::sys::stat::Mode;
use nix::unistd::mkfifo;
use serde_json::Value;
use tempfile::TempDir;

use crate::support::birth::Birth;
use crate::support::events::{Events, number};
use crate::support::hand::is_held;
use crate::support::holder::is_free;
use crate::support::lockrun::PROGRAM;
use crate::support::store::{on_every_lease_store, on_every_store, on_files_and_redis};
use crate::support::{Holder, LONG, Lockrun, Output, Redis, Store, eventually, stays_true_for};

// "Append one JSON object a line: waiting, acquired, started, skipped, lost, killed, finished, released."
on_every_store!(every_event_of_a_run_is_logged, |store| {
    let events = Events::new();
    let call = || events.of(Lockrun::new(store)).key("a key");
    let script = "read line; echo \"$LOCKRUN_FENCE $LOCKRUN_TOKEN\"; exit 3";
    let before = Instant::now();
    let run = call().sh(script).with_open_input();
    let pid = run.run.pid();
    eventually(LONG, "its start is told", || events.names() == ["acquired", "started"]);
    let started = Instant::now();
    // So that there is something to measure.
    let lasts = || events.names() == ["acquired", "started"];
    stays_true_for(Duration::from_millis(200), "the command runs on", lasts);
    let ran = started.elapsed();
    let output = run.finish().exited(3).silent();
    let in_all = before.elapsed();
    let (fence, token) =
        output.stdout().trim().split_once(' ').map(|(f, t)| (f.to_owned(), t.to_owned())).expect("both");
    assert_eq!(events.names(), ["acquired", "started", "finished", "released"]);
    let host = nix::unistd::gethostname().expect("a name");
    let user = Lockrun::bare().command(["id", "-un"]).alone().stdout();
    for event in events.all() {
        let time = event["time"].as_str().expect("a time");
        assert!(time.len() == "2026-11-21T04:30:00.000Z".len() && time.ends_with('Z'), "{time}");
        assert_eq!(event["key"], "a key");
        assert_eq!(event["host"], host.to_str().expect("a plain name"));
        assert_eq!(number(&event, "pid"), u64::from(pid.unsigned_abs()));
        assert_eq!(event["user"], user.trim());
        assert!(event["command"].as_str().expect("a command").starts_with("sh -c 'read line;"), "{event}");
        assert_eq!(number(&event, "fence").to_string(), fence);
        assert!(event["slot"].is_null(), "{event}");
    }
    let millis = |span: Duration| u64::try_from(span.as_millis()).expect("a short span");
    assert!(number(&events.one("acquired"), "waited_ms") <= millis(in_all));
    let finished = events.one("finished");
    assert_eq!(number(&finished, "status"), 3);
    assert!((millis(ran)..=millis(in_all)).contains(&number(&finished, "ran_ms")), "{finished} in {in_all:?}");
    assert!(number(&events.one("released"), "held_ms") >= number(&finished, "ran_ms"));
    assert!(!events.text().contains(&token), "a token is a secret");
    let mode = fs::metadata(events.path()).expect("it is there").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    // A second run appends; a variable names the file as well.
    Lockrun::new(store).key("b").env("LOCKRUN_EVENTS", events.path()).command(["true"]).run().exited(0);
    assert_eq!(events.all().len(), 8);
    assert!(number(&events.all()[7], "fence") > 0);
});

// The same for a lock that another run holds.
on_every_store!(a_held_lock_is_logged_with_its_holder, |store| {
    let mut holder = Holder::new(store, "held");
    let holder_pid = u64::from(holder.run().pid().unsigned_abs());
    let is_holder = |event: &Value| {
        assert_eq!(number(&event["holder"], "pid"), holder_pid, "{event}");
        assert!(event["holder"]["command"].as_str().expect("a command").ends_with("hold.sh"), "{event}");
        let _ = number(&event["holder"], "held_ms");
        assert!(event["fence"].is_null() && event["holder"]["token"].is_null() && event["token"].is_null(), "{event}");
    };
    let attempt = |events: &Events, options: &[&str]| {
        events.of(Lockrun::new(store)).key("held").args(options).command(["echo", "ran"]).run()
    };
    let events = Events::new();
    attempt(&events, &["--fail", "-q"]).exited(75).silent();
    assert_eq!(events.names(), ["held"]);
    is_holder(&events.one("held"));

    let events = Events::new();
    attempt(&events, &["--skip"]).exited(0).silent();
    assert_eq!(events.names(), ["skipped"]);
    is_holder(&events.one("skipped"));

    let events = Events::new();
    attempt(&events, &["--wait", "0.3"]).exited(75);
    assert_eq!(events.names(), ["waiting", "held"]);
    is_holder(&events.one("waiting"));

    let events = Events::new();
    let waiter = events.of(Lockrun::new(store)).key("held").arg("-w").command(["true"]).spawn();
    eventually(LONG, "it waits", || events.names() == ["waiting"]);
    // So that there is something to measure.
    stays_true_for(Duration::from_millis(300), "it waits on", || events.names() == ["waiting"]);
    holder.end();
    waiter.wait().exited(0).silent();
    assert_eq!(events.names(), ["waiting", "acquired", "started", "finished", "released"]);
    assert!(number(&events.one("acquired"), "waited_ms") >= 300);
});

// A wait that a signal ends is an event, too, and so is an error.
on_every_store!(errors_are_logged, |store| {
    let events = Events::new();
    events.of(Lockrun::new(store)).key("k").command(["/no/such/program"]).run().exited(127);
    assert_eq!(events.names(), ["acquired", "failed", "released"]);
    let failed = events.one("failed");
    assert!(failed["why"].as_str().expect("why").contains("/no/such/program"), "{failed}");

    let holder = Holder::new(store, "held");
    let events = Events::new();
    let waiter = events.of(Lockrun::new(store)).key("held").arg("-w").command(["true"]).spawn();
    eventually(LONG, "it waits", || events.names() == ["waiting"]);
    waiter.signal(Signal::SIGTERM);
    waiter.wait().died_of(Signal::SIGTERM).silent();
    assert_eq!(events.names(), ["waiting", "interrupted"]);
    assert_eq!(number(&events.one("interrupted"), "signal"), 15);
    holder.end();

    let events = Events::new();
    let call = events.of(Lockrun::new(store)).key("k").args(["--max-runtime", "0.2"]).command(["sleep", "60"]);
    let said =
        call.run().exited(124).said("lockrun: lock \"k\": the command was stopped: --max-runtime 200ms has passed\n");
    assert_eq!(said.stderr().lines().count(), 1, "{said}");
    assert_eq!(events.names(), ["acquired", "started", "killed", "finished", "released"]);
    let killed = events.one("killed");
    assert!(killed["why"].as_str().expect("why").contains("--max-runtime 200ms"), "{killed}");
    let stubborn = Lockrun::new(store).key("stubborn").args(["--max-runtime", "0.2", "--kill-after", "100ms"]);
    let stubborn = stubborn.sh("trap '' TERM; while :; do sleep 0.05; done").run().exited(124);
    stubborn.said("--max-runtime 200ms has passed; it did not end on TERM, and was killed");
    let at_once = Lockrun::new(store).key("at-once").args(["--max-runtime", "0.2", "--kill-after", "0"]);
    let at_once = at_once.command(["sleep", "60"]).run().exited(124);
    assert!(!at_once.stderr().contains("TERM"), "it got none: {at_once}");
    assert_eq!(number(&events.one("finished"), "signal"), 15);
});

// "lost, killed": as soon as lockrun knows, whatever becomes of COMMAND.
on_every_lease_store!(a_lost_lease_is_logged, |store| {
    for (action, status, stops) in [("kill", 79, true), ("warn", 0, false)] {
        let events = Events::new();
        let call = events.of(Lockrun::new(store)).key("k").args(["--renew-every", "500ms", "--on-lost", action]);
        let run = call.sh("read line || :").with_open_input();
        eventually(LONG, "it runs", || events.names() == ["acquired", "started"]);
        store.server().forget_everything();
        eventually(LONG, "it is told", || events.names().contains(&"lost".to_owned()));
        let output = if stops { run.run.wait() } else { run.finish() };
        output.exited(status).said("is lost");
        let lost = events.one("lost");
        assert_eq!(lost["stops_command"], stops);
        assert!(lost["why"].as_str().expect("why").contains("no longer holds it"), "{lost}");
        let ended: &[&str] = if stops { &["killed", "finished"] } else { &["finished"] };
        assert_eq!(events.names()[3..], *ended);
    }
    let events = Events::new();
    store.server().kill();
    let call = events.of(Lockrun::at(&store.url_with_password("hushhush"))).key("k").command(["true"]);
    call.run().exited(69);
    assert_eq!(events.names(), ["failed"]);
    assert!(!events.text().contains("hushhush"));
});

// "A URL's password never appears in an event": nor do characters that could steer a terminal that shows the file.
#[test]
fn no_secret_and_nothing_hostile() {
    let redis = Redis::with_password("hushhush");
    let events = Events::new();
    let url = redis.url().replace("://", "://:hushhush@");
    let hostile = "true \x1b[31m \u{9b}31m \u{202e} \x7f";
    events.of(Lockrun::at(&url)).key("k").args(["--slots", "3", "-c", hostile]).run();
    assert_eq!(events.all().len(), 4);
    assert!(!events.text().contains("hushhush"));
    assert!(!events.text().contains(['\x1b', '\u{9b}', '\u{202e}', '\x7f']), "{:?}", events.text());
    assert!(events.one("started")["command"].as_str().expect("a command").contains(hostile));
    assert_eq!(number(&events.one("started"), "slot"), 0);
}

// "One write each on an O_APPEND descriptor, so that concurrent runs do not mix."
#[test]
fn the_lines_of_many_runs_do_not_mix() {
    const RUNS: usize = 20;
    let store = Store::file();
    let events = Events::new();
    let long = "x".repeat(400);
    let start = |n: usize| {
        events.of(Lockrun::new(&store)).key(format!("{n}-{long}")).arg("-w").command(["true", &long]).spawn()
    };
    for run in (0..RUNS).map(start).collect::<Vec<_>>() {
        run.wait().exited(0).silent();
    }
    assert_eq!(events.all().len(), RUNS * 4);
    for n in 0..RUNS {
        let prefix = format!("{n}-");
        let ours = |event: &&Value| event["key"].as_str().expect("a key").starts_with(&prefix);
        assert_eq!(events.all().iter().filter(ours).count(), 4);
    }
}

// "COMMAND must not inherit the descriptor."
on_files_and_redis!(the_command_does_not_inherit_the_file, |store| {
    let events = Events::new();
    let output = events.of(Lockrun::new(store)).key("k").sh("ls -l /proc/self/fd").run().exited(0);
    assert!(!output.stdout().contains(events.path().to_str().expect("a plain path")), "{output}");
});

/// Asserts that the run worked as without events, except for one warning.
#[track_caller]
fn only_warned(output: Output, wanted: &str) {
    let output = output.exited(0).printed("ran\n").said("lockrun: warning: cannot write events to ").said(wanted);
    assert_eq!(output.stderr().lines().count(), 1, "{output}");
}

fn with_events(store: &Store, path: &Path) -> Lockrun {
    Lockrun::new(store).key("k").arg("-q").arg("--events").arg(path).command(["echo", "ran"])
}

// "Never a reason for a run to fail: a warning on stderr, once."
on_files_and_redis!(a_file_that_cannot_be_written_is_warned_of, |store| {
    let directory = TempDir::new().expect("a temporary directory");
    only_warned(with_events(store, Path::new("/dev/full")).run(), "/dev/full: No space left");
    only_warned(with_events(store, directory.path()).run(), "Is a directory");
    only_warned(with_events(store, &directory.path().join("no/such")).run(), "No such file");
    only_warned(with_events(store, Path::new("/proc/version")).run(), "/proc/version");
    with_events(store, Path::new("/dev/null")).run().exited(0).silent();
    assert!(is_free(store, "k"));
});

// The same for a FIFO without a reader, one whose reader has gone, and one whose reader has stopped reading.
on_files_and_redis!(a_fifo_is_never_waited_for, |store| {
    let directory = TempDir::new().expect("a temporary directory");
    let fifo = directory.path().join("fifo");
    mkfifo(&fifo, Mode::S_IRUSR | Mode::S_IWUSR).expect("a FIFO");
    only_warned(with_events(store, &fifo).run(), "no process reads it");

    let reader = || OpenOptions::new().read(true).custom_flags(nix::libc::O_NONBLOCK).open(&fifo).expect("a reader");
    let mut first = reader();
    let mut run = with_events(store, &fifo).sh("echo ran; read line || :").with_open_input();
    run.run.wait_for_line("ran");
    let mut text = String::new();
    eventually(LONG, "the start is told", || {
        let _ = first.read_to_string(&mut text);
        text.contains("\"started\"")
    });
    // The next event finds no reader; the SIGPIPE for that must not have any effect, least of all on COMMAND. A child
    // that another test has forked also holds the reader's descriptor until it calls exec.
    drop(first);
    let writer = || OpenOptions::new().write(true).custom_flags(nix::libc::O_NONBLOCK).open(&fifo);
    eventually(LONG, "nobody reads it", || writer().is_err());
    only_warned(run.finish(), "Broken pipe");

    let full = reader();
    let writer = writer().expect("a reader is there");
    while nix::unistd::write(&writer, &[b'\n'; 512]).is_ok() {}
    only_warned(with_events(store, &fifo).run(), "too slow");
    drop(full);
});

// `--events /dev/stderr`, also under systemd, where standard error is a socket: that cannot be opened.
on_files_and_redis!(a_standard_stream_that_is_a_socket_is_written, |store| {
    for path in ["/dev/stderr", "/dev/fd/2", "/proc/self/fd/2", "/dev/stdout"] {
        let (mut ours, theirs) = UnixStream::pair().expect("a socket");
        let words = with_events(store, Path::new(path)).command(["true"]).words();
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).stdin(Stdio::null());
        let theirs = Stdio::from(OwnedFd::from(theirs));
        if path == "/dev/stdout" {
            command.stdout(theirs)
        } else {
            command.stderr(theirs)
        };
        assert!(command.status().expect("it starts").success());
        // It keeps a copy of the socket.
        drop(command);
        let mut text = String::new();
        ours.read_to_string(&mut text).expect("it ends");
        let event = |line| {
            serde_json::from_str::<Value>(line).unwrap_or_else(|error| panic!("{error}: {text:?}"))["event"].clone()
        };
        let names: Vec<Value> = text.lines().map(event).collect();
        assert_eq!(names, ["acquired", "started", "finished", "released"], "{path}: {text}");
    }
});

// The same for a file whose server does not answer: the run waits neither for it to be opened nor for a line to be
// written.
on_files_and_redis!(a_file_that_hangs_is_not_waited_for, |store| {
    // Which call opens a file depends on the C library, and not every architecture has both.
    for call in ["?open,openat", "write"] {
        let events = Events::new();
        let path = events.path();
        let path = path.to_str().expect("a plain path");
        // The file is opened by its name in the directory.
        let directory = path.rsplit_once('/').expect("in a directory").0;
        let hang = format!("inject={call}:delay_enter={}", Duration::from_mins(10).as_micros());
        let traced = ["strace", "-f", "-qq", "-o", "/dev/null", "-P", path, "-P", directory, "-e", &hang, PROGRAM];
        let url = store.url();
        let run = ["--key", "k", "--store", &url, "--events", path, "--", "sh", "-c", "echo ran"];
        let mut run = Lockrun::bare().command([&traced[..], &run].concat()).spawn_alone();
        run.wait_for_line("ran");
        // Without this the tracer itself would wait.
        run.wait_for_stderr("a write takes too long; the run continues");
        assert!(!is_held(store, "k"), "{call}");
    }
});

// A limit on the size of files, which a shell may set: a write beyond it raises a signal, which must not reach COMMAND.
on_files_and_redis!(a_file_that_may_not_grow_is_warned_of, |store| {
    let directory = TempDir::new().expect("a temporary directory");
    let path = directory.path().join("events");
    File::create(&path).expect("a file").set_len(8192).expect("it grows");
    let limits = vec![(Resource::RLIMIT_FSIZE, 8192, 8192)];
    let script = "trap 'exit 0' WINCH; echo ran; while :; do sleep 0.01; done";
    let mut run = with_events(store, &path).sh(script).birth(Birth { limits, ..Birth::default() }).spawn();
    // The tests' own files, which hold the run's output, are far below the limit.
    run.wait_for_line("ran");
    // Pending signals are forwarded lowest first: SIGXFSZ would end the command before this one does.
    run.signal(Signal::SIGWINCH);
    only_warned(run.wait(), "File too large");
});

// Nested runs write to one file, and are distinguished by their keys.
#[test]
fn nested_runs_share_a_file() {
    let store = Store::file();
    let events = Events::new();
    let inner = format!("{PROGRAM} --store {} --key inner -- true", store.url());
    Lockrun::new(&store).key("outer").env("LOCKRUN_EVENTS", events.path()).sh(&inner).run().exited(0).silent();
    for key in ["inner", "outer"] {
        let all = events.all();
        let names: Vec<_> = all.iter().filter(|event| event["key"] == key).map(|event| &event["event"]).collect();
        assert_eq!(names, ["acquired", "started", "finished", "released"], "{key}");
    }
}
