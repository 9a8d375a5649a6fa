//! The tests' own tools do what the tests rely on.

use std::cell::Cell;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::Command;
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::support::calm::{in_time, judge, late};
use crate::support::processes::find_program;
use crate::support::proxy::{Mode, Proxy};
use crate::support::pty::Terminal;
use crate::support::resp::Reply;
use crate::support::{LONG, LeaseServer, Lockrun, Redis, eventually, stays_true_for, witness};

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
    let mut command = Command::new(find_program("bash"));
    command.args(["--norc", "--noprofile", "-c"]);
    command.arg("trap 'echo caught' INT; echo ready; while ! read -t 0.05 word; do :; done; echo got $word");
    let mut terminal = Terminal::start(command, &[]);
    terminal.wait_for("ready");
    assert_eq!(terminal.foreground().as_raw(), terminal.pid());
    terminal.type_keys("\x03");
    terminal.wait_for("caught");
    terminal.type_keys("enough\r");
    assert!(!terminal.wait_for("got enough").contains("caught"));
    assert!(terminal.wait().success());
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
    judge(|| in_time(Duration::from_secs(2), Duration::from_secs(1), "always too late"));
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
    let kept = catch_unwind(AssertUnwindSafe(|| judge(once_late))).is_ok();
    assert_eq!(tried.get(), if kept { 2 } else { 1 });
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
