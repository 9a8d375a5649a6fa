//! `lockrun doctor`: what would make locks unsafe or slow is found, and named.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::Path;
use std::time::Duration;

use nix::sys::signal::Signal;
use tempfile::TempDir;

use crate::support::failover::Service;
use crate::support::fake::{Fake, Manner};
use crate::support::namespace::with_mounts;
use crate::support::ports::free_port;
use crate::support::processes::need_root;
use crate::support::{LONG, LeaseServer, Lockrun, Output, Redis, eventually, memory};

pub(super) fn call(url: &str) -> Lockrun {
    Lockrun::bare().args(["doctor", "--store", url])
}

pub(super) fn doctor(url: &str) -> Output {
    call(url).run().silent()
}

/// Asserts that a line begins with `level` and has all of `words`.
#[track_caller]
pub(super) fn finds(output: &Output, level: &str, words: &[&str]) {
    let text = output.stdout();
    let found = |line: &str| line.starts_with(level) && words.iter().all(|word| line.contains(word));
    assert!(text.lines().any(found), "no {level} of {words:?} in: {output}");
}

/// Asserts that every line is `ok`, and that there are at least this many.
#[track_caller]
pub(super) fn is_well(output: Output, least: usize) {
    let text = output.stdout();
    assert!(text.lines().all(|line| line.starts_with("ok    ")), "{output}");
    assert!(text.lines().count() >= least, "{output}");
    output.exited(0);
}

/// A server as docs/redis.md wants it.
fn well_kept() -> Redis {
    Redis::with_options(&["--appendonly", "yes"])
}

fn as_user(redis: &Redis, user: &str) -> String {
    redis.url().replacen("://", &format!("://{user}:pw@"), 1)
}

/// The commands that docs/redis.md tells people to grant.
fn commands() -> Vec<String> {
    let page = include_str!("../../../docs/redis.md");
    let rule = page.split_once("\nACL SETUSER ").expect("tells how").1.split_once("```").expect("ends").0;
    rule.split_whitespace().filter(|word| word.starts_with('+')).map(str::to_owned).collect()
}

/// Creates a user who may do exactly what docs/redis.md says, except one command.
fn set_minimal_user(redis: &Redis, user: &str, but: &str) {
    let commands = commands();
    let mut words = vec!["ACL", "SETUSER", user, "reset", "on", ">pw", "~lockrun:*"];
    words.extend(commands.iter().map(String::as_str).filter(|command| *command != but));
    redis.ask(&words);
}

// "Exit 0 only when there is no warning and no failure": a server as docs/redis.md wants it, over each kind of
// connection.
#[test]
fn a_server_that_is_well() {
    let redis = well_kept();
    is_well(doctor(&redis.url()), 8);
    is_well(doctor(&format!("redis+unix://{}?db=3", redis.socket().display())), 7);
    assert_eq!(redis.keys(), Vec::<String>::new(), "what was tried is gone");
    let tls = Redis::with_tls();
    let files = tls.certificates();
    let [ca, cert, key] = ["ca.crt", "client.crt", "client.key"].map(|file| files.path(file));
    let output = doctor(&format!("rediss://127.0.0.1:{}?ca={ca}&cert={cert}&key={key}", tls.port()));
    finds(&output, "ok", &["TLS"]);
}

// The store comes from a file or the environment as in any run.
#[test]
fn the_store_is_named_as_ever() {
    let redis = well_kept();
    redis.ask(&["CONFIG", "SET", "requirepass", "hush"]);
    let url = redis.url().replacen("://", "://:hush@", 1);
    let directory = TempDir::new().expect("a temporary directory");
    let file = directory.path().join("store");
    fs::write(&file, &url).expect("a file");
    let doctor = Lockrun::bare().arg("doctor");
    is_well(doctor.clone().env("LOCKRUN_STORE", &url).run(), 8);
    let output = doctor.clone().arg("--store-file").arg(&file).args(["--store-timeout", "4s"]).run();
    assert!(!output.stdout().contains("hush"), "{output}");
    is_well(output, 8);
    doctor.clone().args(["--store", "nonsense"]).run().exited(64).printed("");
    doctor.clone().args(["--store-timeout", "0"]).run().exited(64).printed("");
    doctor.arg("--nonsense").run().exited(64).printed("");
}

#[test]
fn a_server_that_evicts() {
    let redis =
        Redis::with_options(&["--appendonly", "yes", "--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru"]);
    let output = doctor(&redis.url()).exited(2);
    finds(&output, "fail", &["allkeys-lru", "set maxmemory-policy noeviction"]);
    redis.ask(&["CONFIG", "SET", "maxmemory-policy", "volatile-ttl"]);
    finds(&doctor(&redis.url()).exited(2), "fail", &["volatile-ttl"]);
    redis.ask(&["CONFIG", "SET", "maxmemory-policy", "noeviction"]);
    is_well(doctor(&redis.url()), 8);
}

#[test]
fn a_server_that_is_nearly_full() {
    let redis = well_kept();
    redis.ask(&["SETRANGE", "filler", "20000000", "x"]);
    let memory = redis.ask(&["INFO", "memory"]);
    let used = memory.text().lines().find_map(|line| line.strip_prefix("used_memory:")).expect("tells").to_owned();
    let used: u64 = used.parse().expect("a number");
    redis.ask(&["CONFIG", "SET", "maxmemory", &(used * 105 / 100).to_string()]);
    finds(&doctor(&redis.url()).exited(1), "warn", &["memory is nearly full"]);
    redis.ask(&["CONFIG", "SET", "maxmemory", "1"]);
    finds(&doctor(&redis.url()).exited(69), "fail", &["lock could not be tried out", "OOM"]);
}

#[test]
fn a_server_that_forgets() {
    let redis = Redis::start();
    finds(&doctor(&redis.url()).exited(1), "warn", &["nothing is kept on disk", "set appendonly yes"]);
    redis.ask(&["CONFIG", "SET", "save", "3600 1"]);
    finds(&doctor(&redis.url()).exited(1), "warn", &["no append-only file", "3600 1", "set appendonly yes"]);
    redis.ask(&["CONFIG", "SET", "save", ""]);
    redis.ask(&["CONFIG", "SET", "appendonly", "yes"]);
    is_well(doctor(&redis.url()), 8);
    redis.ask(&["CONFIG", "SET", "appendfsync", "no"]);
    finds(&doctor(&redis.url()).exited(1), "warn", &["appendfsync no"]);
}

#[test]
fn a_replica_and_its_primary() {
    let primary = well_kept();
    let replica = Redis::with_options(&["--replicaof", "127.0.0.1", &primary.port().to_string()]);
    let output = doctor(&replica.url()).exited(69);
    finds(&output, "fail", &["it is a replica", "name the primary"]);
    finds(&output, "fail", &["lock could not be tried out", "READONLY"]);
    eventually(LONG, "the replica is connected", || {
        primary.ask(&["INFO", "replication"]).text().contains("connected_slaves:1")
    });
    finds(
        &doctor(&primary.url()).exited(1),
        "warn",
        &["replicas (1 connected)", "a failover may lose", "set min-replicas-to-write 1"],
    );
    // A replica that takes writes is no better: its writes are lost.
    replica.ask(&["CONFIG", "SET", "replica-read-only", "no"]);
    finds(&doctor(&replica.url()).exited(2), "fail", &["it is a replica"]);
}

// "A minimal ACL user as in docs/redis.md": it may do all that a lock needs, and `doctor` says what it could not check.
#[test]
fn a_user_with_few_rights() {
    let redis = well_kept();
    set_minimal_user(&redis, "reports", "");
    for database in ["", "/3"] {
        let output = doctor(&(as_user(&redis, "reports") + database)).exited(0);
        finds(&output, "ok", &["\"reports\" may do all that a lock needs"]);
        finds(&output, "note", &["INFO", "ACL SETUSER reports +info +config|get", "noeviction"]);
    }
    redis.ask(&["ACL", "SETUSER", "reports", "+info", "+config|get"]);
    is_well(doctor(&as_user(&redis, "reports")), 8);
    assert_eq!(redis.keys(), Vec::<String>::new());
}

/// Runs the command in the line with `words`: "ACL SETUSER …" to its end.
#[track_caller]
fn follow(redis: &Redis, output: &Output, words: &str) {
    let text = output.stdout();
    let line = text.lines().find(|line| line.contains(words)).unwrap_or_else(|| panic!("no {words:?} in {output}"));
    let (_, rule) = line.split_once("ACL SETUSER ").unwrap_or_else(|| panic!("no advice in {line:?}"));
    let mut command = vec!["ACL", "SETUSER"];
    command.extend(rule.split_whitespace());
    redis.ask(&command);
}

// "Exactly what is missing is named, together with the ACL SETUSER words that would grant it": each single command, and
// the words do grant it. A command without which locks work is a warning.
#[test]
fn a_user_who_lacks_one_command() {
    let redis = well_kept();
    for command in commands() {
        set_minimal_user(&redis, "reports", &command);
        let url = as_user(&redis, "reports") + "/3";
        let run = Lockrun::bare().args(["--key", "acl", "--store", url.as_str()]).command(["true"]);
        let name = command.trim_start_matches('+').to_uppercase();
        let is_optional = ["EVALSHA", "SCAN"].contains(&name.as_str());
        let (level, status) = if is_optional { ("warn", 1) } else { ("fail", 69) };
        if is_optional {
            run.clone().run().exited(0).silent();
        }
        let output = doctor(&url).exited(status);
        let lacks = format!("\"reports\" may not run {name}: ");
        finds(&output, level, &[&lacks, &format!("ACL SETUSER reports {command}")]);
        follow(&redis, &output, "may not run");
        run.run().exited(0).silent();
    }
    finds(&doctor(&(as_user(&redis, "reports") + "/3")).exited(0), "ok", &["may do all that a lock needs"]);
}

#[test]
fn a_user_with_another_prefix() {
    let redis = well_kept();
    redis.ask(&["ACL", "SETUSER", "reports", "on", ">pw", "~other:*", "+@all"]);
    let output = doctor(&as_user(&redis, "reports")).exited(69);
    finds(&output, "fail", &["may not read and write all keys", "ACL SETUSER reports ~lockrun:*"]);
    is_well(doctor(&(as_user(&redis, "reports") + "?prefix=other")), 8);
    follow(&redis, &output, "may not read and write");
    is_well(doctor(&as_user(&redis, "reports")), 8);
    // The right to read is not enough.
    redis.ask(&["ACL", "SETUSER", "reports", "resetkeys", "%R~lockrun:*"]);
    finds(&doctor(&as_user(&redis, "reports")).exited(69), "fail", &["may not read and write all keys"]);
}

#[test]
fn a_command_that_is_renamed() {
    let redis = Redis::with_options(&["--appendonly", "yes", "--rename-command", "EVAL", ""]);
    finds(&doctor(&redis.url()).exited(69), "fail", &["has no command EVAL", "rename-command"]);
    let redis = Redis::with_options(&["--appendonly", "yes", "--rename-command", "EVALSHA", ""]);
    let output = doctor(&redis.url()).exited(1);
    finds(&output, "warn", &["has no command EVALSHA", "rename-command"]);
    finds(&output, "ok", &["a lock was acquired"]);
}

// "As long as the longest `--ttl`": the lease of the lock that `doctor` tries is no longer than a run's by default.
#[test]
fn a_failover_after_doctor_withholds_no_longer() {
    let service = Service::alone();
    finds(&doctor(&service.url()), "ok", &["a lock was acquired"]);
    let known = service.first().ask(&["HKEYS", "lockrun:failover"]).words();
    let longest = known.iter().filter_map(|field| field.parse::<u64>().ok()).max();
    assert_eq!(longest, Some(30_000), "{known:?}");
}

// "69 when the store cannot be used at all."
#[test]
fn a_server_that_cannot_be_used() {
    let url = format!("redis://somebody:hush@127.0.0.1:{}", free_port());
    let output = doctor(&url).exited(69);
    finds(&output, "fail", &["cannot reach Redis at 127.0.0.1"]);
    let redis = Redis::with_password("right");
    let wrong = doctor(&redis.url().replacen("://", "://:hush@", 1)).exited(69);
    finds(&wrong, "fail", &["WRONGPASS", "check the user and the password"]);
    let none = doctor(&redis.url()).exited(69);
    finds(&none, "fail", &["requires a password", "give a password"]);
    // This server's errors repeat what it was sent.
    let redis = Redis::with_options(&["--rename-command", "AUTH", ""]);
    let echo = doctor(&redis.url().replacen("://", "://somebody:hush@", 1)).exited(69);
    finds(&echo, "fail", &["rejects AUTH: ERR unknown command"]);
    for output in [output, wrong, none, echo] {
        assert!(!output.stdout().contains("hush"), "{output}");
    }
}

// "Text from the server is escaped before a terminal sees it"; a server that is no Redis, or silent, is reported in
// time.
#[test]
fn something_else_answers() {
    let red = Fake::start(Manner::Answer(b"-ERR \x1b[31mred\r\n"));
    let output = doctor(&red.url()).exited(69);
    finds(&output, "fail", &["\\u{1b}[31mred"]);
    assert!(!output.stdout().contains('\x1b'), "{output}");
    let hostile =
        Fake::start(Manner::Answer(b"*4\r\n$6\r\nserver\r\n$5\r\nredis\r\n$7\r\nversion\r\n$6\r\n9.\x1b[1m\r\n"));
    let output = doctor(&hostile.url()).exited(69);
    finds(&output, "ok", &["Redis 9.\\u{1b}[1m"]);
    assert!(!output.stdout().contains('\x1b'), "{output}");
    let silent = Fake::start(Manner::Silent);
    let output = call(&silent.url()).args(["--store-timeout", "1s"]).run().exited(69);
    finds(&output, "fail", &["did not answer in time"]);
    assert!(output.took < Duration::from_secs(3), "{output}");
}

/// Returns a directory that no one else can write to, on a file system of this machine even where /tmp is a
/// container's.
fn own_directory() -> TempDir {
    memory::directory()
}

fn at(directory: &Path) -> Output {
    doctor(&format!("file:{}", directory.display()))
}

fn make(directory: &Path, mode: u32) {
    fs::create_dir(directory).expect("a directory");
    fs::set_permissions(directory, fs::Permissions::from_mode(mode)).expect("our own directory");
}

#[test]
fn a_directory_that_is_well() {
    let parent = own_directory();
    let locks = parent.path().join("locks");
    make(&locks, 0o700);
    is_well(at(&locks), 7);
    assert_eq!(fs::read_dir(&locks).expect("ours").count(), 0, "what was tried is gone");
    is_well(at(&locks), 7);
}

// "Only who takes a lock creates the directory": a missing one is checked as it would be created.
#[test]
fn a_directory_that_is_missing() {
    let parent = own_directory();
    let locks = parent.path().join("locks");
    let output = at(&locks).exited(0);
    finds(&output, "note", &[&locks.display().to_string(), "does not exist", "the first run creates it"]);
    for words in ["flock(2) locks exclude each other", "nobody else can write to a directory above it"] {
        finds(&output, "ok", &[words]);
    }
    assert!(!output.stdout().contains("doctor-"), "{output}");
    assert_eq!(fs::read_dir(parent.path()).expect("ours").count(), 0, "what was tried is gone");
}

// "It changes nothing but a lock of its own": also if it is interrupted just after it has created a directory in place
// of the missing one.
#[test]
fn a_doctor_of_a_missing_directory_is_interrupted() {
    let parent = own_directory();
    let url = format!("file:{}", parent.path().join("locks").display());
    let trace = "exec strace -qqq -o /dev/null -e trace=mkdir,mkdirat -e inject=mkdir,mkdirat:signal=TERM \"$@\"";
    call(&url).in_shell(trace).alone().died_of(Signal::SIGTERM);
    assert_eq!(fs::read_dir(parent.path()).expect("ours").count(), 0, "what was tried is gone");
}

#[test]
fn a_directory_that_others_can_write() {
    let parent = own_directory();
    let locks = parent.path().join("locks");
    make(&locks, 0o777);
    finds(&at(&locks).exited(69), "fail", &["others can write", "chmod 700"]);
}

#[test]
fn a_parent_that_others_can_write() {
    let parent = own_directory();
    let open = parent.path().join("open");
    make(&open, 0o777);
    make(&open.join("between"), 0o755);
    let locks = open.join("between/locks");
    let name = open.display().to_string();
    finds(&at(&locks).exited(2), "fail", &[&format!("every user can write to {name},"), &format!("chmod o-w {name}")]);
    fs::set_permissions(&open, fs::Permissions::from_mode(0o1777)).expect("ours");
    make(&locks, 0o700);
    is_well(at(&locks), 7);
}

#[test]
fn a_parent_that_belongs_to_another_user() {
    need_root("give a directory away");
    let parent = own_directory();
    let theirs = parent.path().join("theirs");
    make(&theirs, 0o755);
    make(&theirs.join("between"), 0o755);
    let locks = theirs.join("between/locks");
    make(&locks, 0o700);
    is_well(at(&locks), 7);
    chown(&theirs, Some(65534), None).expect("root may do this");
    let name = theirs.display().to_string();
    finds(&at(&locks).exited(2), "fail", &[&name, "belongs to uid 65534"]);
}

#[test]
fn a_directory_behind_a_symbolic_link() {
    let parent = own_directory();
    let real = parent.path().join("real");
    make(&real, 0o700);
    make(&real.join("locks"), 0o700);
    let link = parent.path().join("link");
    symlink("real", &link).expect("a link");
    let name = link.display().to_string();
    finds(&at(&link.join("locks")).exited(1), "warn", &["symbolic link", &name, "by its real path"]);
    // As the last part of the path it is refused, as in any run.
    finds(&at(&link).exited(69), "fail", &[&name, "symbolic link"]);
    // A directory that others can write to is found behind a link as well.
    fs::set_permissions(&real, fs::Permissions::from_mode(0o707)).expect("ours");
    finds(&at(&link.join("locks")).exited(2), "fail", &["every user can write to", &real.display().to_string()]);
}

#[test]
fn a_directory_that_cannot_be() {
    let parent = own_directory();
    let above = parent.path().join("a");
    let why = format!("{} does not exist", above.display());
    finds(&at(&above.join("b")).exited(69), "fail", &["cannot create the lock directory", &why, "for all runs"]);
}

// A file system that is read-only or full is found before a lock fails on it.
#[test]
fn a_file_system_without_room() {
    let locks = own_directory();
    let url = format!("file:{}", locks.path().display());
    for (options, words) in [("ro,mode=700", "mounted read-only"), ("nr_inodes=1,mode=700", "is full")] {
        let script = with_mounts(&format!("mount -t tmpfs -o {options} none '{}'", locks.path().display()));
        finds(&call(&url).in_shell(&script).alone().exited(69), "fail", &[words]);
    }
}
