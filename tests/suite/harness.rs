//! The tests' own tools do what the tests rely on.

use std::cell::Cell;
use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::process::ExitStatusExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::Command;
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::support::calm::{in_time, judge, judge_among, late};
use crate::support::catcher::Catcher;
use crate::support::postgres::SESSIONS;
use crate::support::processes::find_program;
use crate::support::proxy::{Mode, Proxy};
use crate::support::pty::Terminal;
use crate::support::resp::Reply;
use crate::support::server::{server, unprivileged};
use crate::support::{LONG, LeaseServer, Lockrun, Pooled, Postgres, Redis, eventually, stays_true_for, witness};

fn connect(proxy: &Proxy) -> TcpStream {
    let stream = TcpStream::connect(("127.0.0.1", proxy.port())).expect("the proxy listens");
    stream.set_read_timeout(Some(LONG)).expect("a time-out");
    stream
}

fn ping(mut stream: &TcpStream) -> std::io::Result<String> {
    stream.write_all(b"PING\r\n")?;
    let mut reply = [0; 7];
    stream.read_exact(&mut reply)?;
    Ok(String::from_utf8_lossy(&reply).into_owned())
}

// A server keeps its data over a restart when it is told to, and answers nothing while it is stopped.
#[test]
fn redis_restarts_and_pauses() {
    let redis = Redis::durable();
    redis.ask(&["SET", "a", "1"]);
    redis.kill();
    assert!(TcpStream::connect(("127.0.0.1", redis.port())).is_err());
    redis.start_again();
    assert_eq!(redis.ask(&["GET", "a"]), Reply::Text("1".into()));
    redis.pause();
    let stream = TcpStream::connect(("127.0.0.1", redis.port())).expect("the kernel accepts");
    let short = Some(Duration::from_millis(100));
    stream.set_read_timeout(short).expect("a time-out");
    assert!(ping(&stream).is_err());
    redis.resume();
    assert_eq!(redis.keys(), ["a"]);
}

// A server ends with the thread of its test, even if it does not run as root.
#[test]
fn a_server_ends_with_the_thread_that_started_it() {
    let directory = TempDir::new().expect("a temporary directory");
    let sleep = find_program("sleep");
    for mut command in [server(&sleep), unprivileged(&sleep, directory.path())] {
        let start = move || {
            let child = command.arg("60").spawn().expect("sleep(1) starts");
            let program = format!("/proc/{}/comm", child.id());
            eventually(LONG, "it runs", || fs::read_to_string(&program).is_ok_and(|name| name == "sleep\n"));
            child
        };
        let mut child = thread::spawn(start).join().expect("it is started");
        let mut ended = || child.try_wait().expect("our own child").map(|status| status.signal());
        eventually(LONG, "it has ended", || ended() == Some(Some(9)));
    }
}

/// What a server keeps of a lock that nobody has taken in earnest, and of whom it knows.
fn knows_its_locks(server: &dyn LeaseServer, postgres: &Postgres) {
    assert_eq!((server.waiting("a'b"), server.left("a'b", true)), (vec![], vec![]), "no tables, no locks");
    postgres.ask("CREATE SCHEMA lockrun; CREATE TABLE lockrun.locks (key text, state json)");
    postgres.ask(
        "CREATE TABLE lockrun.waiters (key text, place bigint, token text, waiter json, ends_ms bigint, channel text)",
    );
    let holders = r#""holders": [{"token": "x", "lease": {"ends_ms": 5}}, {"token": "y", "lease": {}}]"#;
    postgres.ask(&format!(r#"INSERT INTO lockrun.locks VALUES ('a''b', '{{"fence": 7, {holders}}}')"#));
    postgres.ask(
        "INSERT INTO lockrun.waiters (key, place, token, ends_ms) VALUES ('a''b', 2, 'v', 0), ('a''b', 1, 'u', 0)",
    );
    assert_eq!(server.waiting("a'b"), ["u", "v"]);
    assert_eq!(server.left("a'b", false), ["a'b: the holder \"y\""]);
    assert_eq!(server.left("a'b", true).len(), 4);
    assert_eq!(server.left("b", false), ["a'b: all"]);
    server.forget_holders("a'b");
    assert_eq!(server.left("a'b", false), Vec::<String>::new());
    server.forget_everything();
    assert_eq!(server.left("a'b", true), Vec::<String>::new());
}

/// One statement of a client of this server, by psql.
fn psql(server: &dyn LeaseServer, statement: &str) -> Lockrun {
    let psql = find_program("psql");
    let url = server.url_at(server.port());
    Lockrun::bare().env("PGCONNECT_TIMEOUT", "60").command([psql.to_str().expect("plain"), "-XAtqc", statement, &url])
}

/// A server keeps its data over a restart, counts the requests of others, answers nothing while it is stopped, and
/// hangs up.
fn behaves(server: &dyn LeaseServer, postgres: &Postgres) {
    knows_its_locks(server, postgres);
    let request = psql(server, "SELECT 1 FROM pg_class LIMIT 1 FOR UPDATE");
    psql(server, "CREATE TABLE kept AS SELECT 4711").alone().exited(0);
    assert_eq!(server.requests(), 0);
    request.alone().exited(0).printed("1\n");
    assert_eq!(server.requests(), 1);
    server.kill();
    request.alone().exited(2);
    server.start_again();
    assert_eq!(postgres.ask("TABLE kept"), "4711\n");
    server.pause();
    let mut late = psql(server, "TABLE kept").spawn_alone();
    stays_true_for(Duration::from_millis(300), "it has no answer", || late.stdout().is_empty());
    assert!(!late.has_ended());
    server.resume();
    late.wait().exited(0).printed("4711\n");
    let sleeper = psql(server, "SELECT pg_sleep(600)").spawn_alone();
    let sleepers = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep'";
    eventually(LONG, "it sleeps", || postgres.count(sleepers) == 1);
    server.hang_up();
    sleeper.wait().exited(2);
    psql(server, "TABLE kept").alone().exited(0);
}

#[test]
fn postgres_restarts_and_pauses() {
    let postgres = Postgres::start();
    behaves(&postgres, &postgres);
}

// Two transactions of one client may have two sessions, and few sessions serve many clients.
#[test]
fn pgbouncer_restarts_and_pauses() {
    let pooled = Pooled::start();
    behaves(&pooled, pooled.postgres());
    let clients: Vec<_> = (0..40).map(|_| psql(&pooled, "SELECT pg_sleep(0.1)").spawn_alone()).collect();
    for client in clients {
        client.wait().exited(0);
    }
    let sessions = pooled.postgres().count("SELECT count(*) FROM pg_stat_activity WHERE usename = 'postgres'");
    assert!(sessions <= SESSIONS + 5, "{sessions}");
}

// A standby has what its primary stores, and takes writes only when it is promoted.
#[test]
fn a_standby_follows_and_is_promoted() {
    let primary = Postgres::start();
    let standby = Postgres::standby_of(&primary);
    primary.ask("CREATE TABLE kept AS SELECT 4711");
    eventually(LONG, "it has arrived", || standby.ask("SELECT to_regclass('kept')") == "kept\n");
    psql(&standby, "CREATE TABLE other ()").alone().exited(1);
    primary.kill();
    standby.ask("SELECT pg_promote()");
    psql(&standby, "CREATE TABLE other ()").alone().exited(0);
}

// The proxy passes, swallows, delays, resets and refuses, and counts.
#[test]
fn proxy_disturbs() {
    let redis = Redis::start();
    let proxy = Proxy::before(&redis);
    let stream = connect(&proxy);
    assert_eq!(ping(&stream).expect("a reply"), "+PONG\r\n");
    assert_eq!(ping(&stream).expect("a reply"), "+PONG\r\n");
    assert_eq!((proxy.connections(), proxy.flights()), (1, 2));
    assert_eq!(proxy.bytes(), 2 * (6 + 7));

    let pause = Duration::from_millis(200);
    proxy.set(Mode::Delay(pause));
    let asked = Instant::now();
    ping(&stream).expect("a late reply");
    assert!(asked.elapsed() >= pause);

    for silent in [Mode::Swallow, Mode::SwallowReplies] {
        proxy.set(silent);
        let stream = connect(&proxy);
        stream.set_read_timeout(Some(pause)).expect("a time-out");
        assert!(ping(&stream).is_err(), "{silent:?}");
        proxy.set(Mode::Pass);
    }

    proxy.set(Mode::Refuse);
    eventually(LONG, "connections are refused", || TcpStream::connect(("127.0.0.1", proxy.port())).is_err());
    assert_eq!(ping(&stream).expect("an old connection works"), "+PONG\r\n");
    proxy.set(Mode::Reset);
    eventually(LONG, "the connection is reset", || ping(&stream).is_err());
    eventually(LONG, "new connections are reset", || {
        TcpStream::connect(("127.0.0.1", proxy.port())).is_ok_and(|new| ping(&new).is_err())
    });
    proxy.set(Mode::Pass);
    assert_eq!(ping(&connect(&proxy)).expect("a reply"), "+PONG\r\n");
}

// The terminal is the controlling terminal: its keys are signals, and its group is in the foreground.
#[test]
fn terminal_sends_signals() {
    let catcher = Catcher::new();
    let mut command = Command::new(find_program("sh"));
    command.args(["-c", &format!("exec {}", catcher.of(&["SIGINT"]))]);
    let mut terminal = Terminal::start(command, &[]);
    terminal.wait_for("ready");
    assert_eq!(terminal.foreground().as_raw(), terminal.pid());
    terminal.type_keys("\x03");
    terminal.wait_for("caught");
    terminal.type_keys("last\r");
    assert!(!terminal.wait_for("got last").contains("caught"));
    assert_eq!(terminal.wait().code(), Some(3));
}

// A witness writes down its own life and its children's, and does not end when it is asked to.
#[test]
fn witness_stamps_until_it_is_killed() {
    let directory = TempDir::new().expect("a temporary directory");
    let record = directory.path().join("record");
    for tag in ["first", "second"] {
        let words = witness::command(&record, tag, &["fork", "setsid"]);
        let call = Lockrun::bare().command(words);
        let mut run = call.spawn_alone();
        run.wait_for_line("ready");
        run.signal(nix::sys::signal::Signal::SIGTERM);
        eventually(LONG, "three processes stamp", || {
            let lives = witness::lives(&record);
            let life = lives.iter().find(|life| life.tag == tag);
            life.is_some_and(|life| life.processes == 3)
        });
        assert_eq!(run.processes().len(), 3);
        run.kill_everything();
    }
    let lives = witness::lives(&record);
    assert_eq!(lives[0].tag, "first");
    assert!(witness::smallest_margin(&lives) > Some(0));
    let both = [lives[0].clone(), lives[0].clone()];
    assert!(witness::smallest_margin(&both) < Some(0));
    assert_eq!(witness::smallest_margin(&lives[..1]), None);
}

// A contract that is broken fails at once, however busy the machine is.
#[test]
fn a_broken_contract_fails_at_once() {
    let tried = Cell::new(0);
    let broken = || {
        tried.set(tried.get() + 1);
        panic!("broken");
    };
    assert!(catch_unwind(AssertUnwindSafe(|| judge(broken))).is_err());
    assert_eq!(tried.get(), 1);
}

// One that is late each time fails, too.
#[test]
#[should_panic(expected = "always too late")]
fn a_contract_that_is_always_late_fails() {
    judge_among(&Mutex::new(()), || in_time(Duration::from_secs(2), Duration::from_secs(1), "always too late"));
}

// One that was late once on a busy machine is kept; on a quiet one it is not.
#[test]
fn a_contract_that_was_late_once_is_tried_again_on_a_busy_machine() {
    let tried = Cell::new(0);
    let once_late = || {
        tried.set(tried.get() + 1);
        if tried.get() == 1 {
            late("for once");
        }
    };
    let kept = catch_unwind(AssertUnwindSafe(|| judge_among(&Mutex::new(()), once_late))).is_ok();
    assert_eq!(tried.get(), if kept { 2 } else { 1 });
}

// A part is not tried again on its own: the store may still contain the lock of its first attempt.
#[test]
#[should_panic(expected = "a part of another one")]
fn a_contract_is_judged_as_a_whole() {
    judge(|| judge(|| ()));
}

// What is to stay true is looked at all along.
#[test]
#[should_panic(expected = "five looks")]
fn what_does_not_stay_true_is_seen() {
    let looks = Cell::new(0);
    stays_true_for(LONG, "five looks", || {
        looks.set(looks.get() + 1);
        looks.get() <= 5
    });
}
