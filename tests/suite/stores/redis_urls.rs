//! The URLs of a Redis.

use std::fs;
use std::os::unix::fs::symlink;

use tempfile::TempDir;

use crate::support::{LeaseServer, Lockrun, Redis, redis_keys};

/// Uses a lock there; fails if it does not work as it should.
#[track_caller]
fn works(url: &str) {
    let output = Lockrun::at(url).key("urls").command(["echo", "ran"]).run();
    output.exited(0).printed("ran\n").silent();
}

#[track_caller]
fn is_refused(url: &str) {
    let output = Lockrun::at(url).key("urls").command(["echo", "ran"]).run();
    output.exited(69).printed("").said("lockrun: ");
}

// "`redis://[user[:pw]@]host[:port][/db]`."
#[test]
fn user_and_password() {
    let redis = Redis::start();
    redis.ask(&["ACL", "SETUSER", "deploy", "on", ">p@ss/w:rd", "~lockrun:*", "+@all"]);
    redis.ask(&["ACL", "SETUSER", "na:me@x", "on", ">pw", "~lockrun:*", "+@all"]);
    let at = |user: &str| redis.url().replacen("://", &format!("://{user}@"), 1);
    works(&at("deploy:p%40ss%2Fw%3Ard"));
    works(&at("na%3Ame%40x:pw"));
    is_refused(&at("deploy:wrong"));
    is_refused(&at("nobody:pw"));
    let closed = Redis::with_password("only a password");
    works(&closed.url().replacen("://", "://:only%20a%20password@", 1));
    works(&closed.url().replacen("://", "://default:only%20a%20password@", 1));
    is_refused(&closed.url());
}

// "`/db`": the lock is in that database and in no other; the same key in two databases is two locks.
#[test]
fn database_number() {
    let redis = Redis::start();
    for (path, number) in [("", 0), ("/", 0), ("/0", 0), ("/5", 5), ("/15", 15)] {
        works(&format!("{}{path}", redis.url()));
        let keyspace = redis.ask(&["INFO", "keyspace"]);
        let databases: Vec<&str> = keyspace.text().lines().filter(|line| line.starts_with("db")).collect();
        assert_eq!(databases.len(), 1, "{path:?}: {databases:?}");
        assert!(databases[0].starts_with(&format!("db{number}:")), "{path:?}: {databases:?}");
        redis.ask(&["FLUSHALL"]);
    }
    let url = |number: u8| format!("{}/{number}", redis.url());
    let mut first = Lockrun::at(&url(1)).key("urls").sh("echo ready; exec sleep 600").spawn();
    first.wait_for_line("ready");
    works(&url(2));
    Lockrun::at(&url(1)).key("urls").command(["true"]).run().exited(75);
}

// "The lock is in that database and in no other", also if the server does not have it: then nothing is changed
// anywhere, so nothing is left to be freed.
#[test]
fn a_database_that_does_not_exist() {
    let redis = Redis::start();
    for ttl in ["30s", "none"] {
        let call = Lockrun::at(&format!("{}/16", redis.url())).key("urls").args(["--ttl", ttl]);
        let output = call.command(["echo", "ran"]).run().exited(69).printed("").said("DB index is out of range");
        assert!(!output.stderr().contains("lockrun break"), "{output}");
        assert_eq!(redis.keys(), Vec::<String>::new());
    }
}

// "`prefix` (Redis, default `lockrun`)": the same key under two prefixes is two locks.
#[test]
fn prefix() {
    let redis = Redis::start();
    works(&redis.url());
    assert!(redis.keys().contains(&redis_keys::fence("urls")));
    let url = format!("{}/0?prefix=other", redis.url());
    let mut first = Lockrun::at(&url).key("urls").sh("echo ready; exec sleep 600").spawn();
    first.wait_for_line("ready");
    works(&redis.url());
    Lockrun::at(&url).key("urls").command(["true"]).run().exited(75);
    assert!(redis.keys().contains(&redis_keys::fence("urls").replacen("lockrun", "other", 1)));
}

// "`redis+unix:///path`."
#[test]
fn unix_socket() {
    let redis = Redis::start();
    let url = format!("redis+unix://{}", redis.socket().display());
    works(&url);
    assert!(redis.keys().contains(&redis_keys::fence("urls")));
    redis.ask(&["FLUSHALL"]);
    works(&format!("{url}?prefix=p"));
    assert_eq!(redis.keys(), redis_keys::lasting("urls").map(|key| key.replacen("lockrun", "p", 1)));
}

// "`redis+unix:///path`": all of it is the path, whatever it contains.
#[test]
fn unix_socket_with_an_at_sign() {
    let redis = Redis::start();
    let parent = TempDir::new().expect("a temporary directory");
    let directory = parent.path().join("a@");
    fs::create_dir(&directory).expect("a directory");
    symlink(redis.socket(), directory.join("b.sock")).expect("a link");
    works(&format!("redis+unix://{}/b.sock", directory.display()));
    assert!(redis.keys().contains(&redis_keys::fence("urls")));
}

// "`rediss://`" with "`ca`, `cert`, `key` (TLS)": the server is who it says, and so are we.
#[test]
fn tls() {
    let redis = Redis::with_tls();
    let files = redis.certificates();
    let at = |ca: &str| format!("rediss://127.0.0.1:{}/0?ca={}", redis.port(), files.path(ca));
    let ours = |url: String| {
        let (cert, key) = (files.path("client.crt"), files.path("client.key"));
        format!("{url}&cert={cert}&key={key}")
    };
    works(&ours(at("ca.crt")));
    assert!(redis.keys().contains(&redis_keys::fence("urls")));
    redis.ask(&["FLUSHALL"]);
    // An authority that does not vouch for the server.
    is_refused(&ours(at("untrusted.crt")));
    // The machine's own authorities do not know it either.
    let plain = format!("rediss://127.0.0.1:{}/0?prefix=lockrun", redis.port());
    is_refused(&ours(plain));
    // The server requires a client's certificate.
    is_refused(&at("ca.crt"));
    // A TLS client cannot use a server without TLS, nor the other way round.
    is_refused(&format!("redis://127.0.0.1:{}", redis.port()));
    let open = Redis::start();
    is_refused(&format!("rediss://127.0.0.1:{}?ca={}", open.port(), files.path("ca.crt")));
    assert_eq!(redis.keys(), Vec::<String>::new());
}

// "The server is who it says": a certificate for another name is refused, however good the authority.
#[test]
fn tls_checks_the_name() {
    let redis = Redis::with_tls();
    let files = redis.certificates();
    let query = |host: &str| {
        format!(
            "rediss://{host}:{}/0?ca={}&cert={}&key={}",
            redis.port(),
            files.path("ca.crt"),
            files.path("client.crt"),
            files.path("client.key")
        )
    };
    works(&query("localhost"));
    // The whole of 127/8 is this machine, but the certificate names one address.
    is_refused(&query("127.0.0.2"));
}

// "`--store-file PATH`: read the store's URL from a file, so that no password stands in `ps` or a crontab."
#[test]
fn store_file_and_variables() {
    let redis = Redis::with_password("in a file");
    let directory = TempDir::new().expect("a temporary directory");
    let file = directory.path().join("store");
    let url = redis.url().replacen("://", "://:in%20a%20file@", 1);
    for text in [format!("{url}\n"), url.clone(), format!("  {url}  \n\n"), format!("\u{feff}{url}\r\n")] {
        fs::write(&file, text).expect("a file");
        let call = Lockrun::bare().key("urls").command(["echo", "ran"]);
        let by_option = call.clone().arg("--store-file").arg(&file);
        by_option.run().exited(0).printed("ran\n").silent();
        let by_variable = call.clone().env("LOCKRUN_STORE_FILE", &file);
        by_variable.run().exited(0).printed("ran\n").silent();
        let by_url = call.env("LOCKRUN_STORE", &url);
        by_url.run().exited(0).printed("ran\n").silent();
    }
    // "The command line wins over the environment."
    let call = Lockrun::bare().key("urls").command(["echo", "ran"]);
    let wrong = call.clone().env("LOCKRUN_STORE", "redis://127.0.0.1:1");
    wrong.arg("--store-file").arg(&file).run().exited(0).silent();
    let wrong = call.env("LOCKRUN_STORE_FILE", "/no/such/file");
    wrong.args(["--store", &url]).run().exited(0).silent();
}
