//! Stores that cannot be parsed, and the passwords in them.

use std::cell::Cell;
use std::fs;
use std::os::unix::fs::PermissionsExt;

use serde_json::json;
use tempfile::TempDir;

use crate::support::config::UserConfig;
use crate::support::events::Events;
use crate::support::{Lockrun, Output, Store};

/// What every address below has as its password.
const SECRET: &str = "s3cret";

/// Addresses of stores that lockrun cannot parse: of other programs, pasted in part, or misspelt.
const ADDRESSES: [&str; 50] = [
    "host=db user=u password=s3cret",
    "user=u password='s3cret' host=db",
    "Host=db;Username=u;Password=s3cret",
    "jdbc:postgresql://h/db?user=u&password=s3cret",
    "h:6380,password=s3cret,ssl=True",
    "h:6380,h2:6380,password=s3cret",
    "redis://h:6380,password=s3cret,ssl=True",
    "redis+cluster://h:6380,password=s3cret,ssl=True",
    "redis+sentinel://h:6380,password=s3cret/service",
    "etcd://h:2379,password=s3cret",
    "postgres://h:5432,password=s3cret/db",
    "redis+sentinel://h/service,password=s3cret",
    "redis+sentinel://h/service;password=s3cret",
    "redis+unix:///run/redis.sock;password=s3cret",
    "postgres://h/db;password=s3cret",
    "postgres://h/db,password=s3cret",
    "file:/dir;password=s3cret",
    "file:/dir,password=s3cret",
    "redis-cli -h x -a s3cret",
    "redis-cli -u redis://u:s3cret@h",
    "etcdctl --user u:s3cret --endpoints h:2379",
    "psql postgres://u:s3cret@h/db",
    "redis://h -a s3cret",
    "postgres://h/db password=s3cret",
    "redis:/u:s3cret@h",
    "redis:u:s3cret@h",
    "redis:///u:s3cret@h",
    "//u:s3cret@h",
    "u:s3cret@h",
    "u:s3cret",
    "s3cret@h:6379",
    "reids://u:s3cret@h",
    "s3cret://h",
    "http://u:s3cret@h",
    "REDIS://u:s3cret@h",
    "redis://u:p@s3cret@h",
    "redis://u:p/s3cret@h",
    "redis://u:12/s3cret@h",
    "redis://u:p#s3cret@h",
    "redis://u:p?s3cret@h",
    "redis://u:12?a&s3cret=b",
    "redis://u:s3cret",
    "redis://h/s3cret",
    "redis://h?password=s3cret",
    "redis://h?s3cret",
    "redis://h?prefix={s3cret",
    "postgres://u:12/s3cret@h/db",
    "postgres://h/db?sslmode=s3cret",
    "\"redis://u:s3cret@h\"",
    "${REDIS_PASSWORD:-s3cret}",
];

/// Returns the address, in the forms in which it may reach lockrun.
fn forms(address: &str) -> [String; 4] {
    let lines = format!("{address}\npassword=s3cret");
    [address.to_owned(), format!("  {address}\n"), lines, format!("s3cret\n{address}")]
}

/// Asserts that a call was refused without its secret, in a message that contains `source`.
#[track_caller]
fn keeps_the_secret(output: &Output, source: &str) {
    let (said, printed) = (output.stderr(), output.stdout());
    assert!(output.status == Some(64), "{output}");
    assert!(!said.contains(SECRET) && !printed.contains(SECRET), "{output}");
    assert!(said.starts_with("lockrun: ") && said.contains(source), "{source:?} is not named: {output}");
}

// "A URL's password never appears in a message, a status, an event": nor that of a store that is no URL. The message
// names the source.
#[test]
fn a_store_that_cannot_be_parsed_is_not_repeated() {
    let events = Events::new();
    let place = TempDir::new().expect("a temporary directory");
    let file = place.path().join("url");
    let call = || events.of(Lockrun::bare()).key("k");
    let typed = |call: Lockrun| call.arg("-v").command(["echo", "ran"]).run();
    // Each address from each source, each time in another form.
    for (address, at) in ADDRESSES.into_iter().zip(0..) {
        let form = |source: usize| forms(address)[(at + source) % 4].clone();
        keeps_the_secret(&typed(call().arg(format!("--store={}", form(0)))), "--store: ");
        keeps_the_secret(&typed(call().env("LOCKRUN_STORE", form(1))), "LOCKRUN_STORE: ");
        fs::write(&file, form(2)).expect("it is written");
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).expect("our own");
        keeps_the_secret(&typed(call().arg("--store-file").arg(&file)), "--store-file: ");
        let user = UserConfig::with(&format!("store = {}", json!(form(3))));
        keeps_the_secret(&typed(user.of(call())), &format!("{}store: ", user.line(1)));
    }
    // Each of lockrun's other commands, with an address in turn.
    let commands = [
        &["status", "--json"][..],
        &["doctor", "--json"],
        &["doctor", "--schema"],
        &["acquire", "--key", "k"],
        &["renew", "--key", "k", "--token", "t"],
        &["release", "--key", "k", "--token", "t"],
        &["break", "--key", "k"],
        &["prune", "--older-than", "1d"],
        &["reserve", "--key", "k", "--from", "1", "-c", "true"],
    ];
    for (address, words) in ADDRESSES.into_iter().zip(commands.into_iter().cycle()) {
        let call = Lockrun::bare().args(words).env("LOCKRUN_STORE", address);
        keeps_the_secret(&call.run(), "LOCKRUN_STORE: ");
    }
    for address in ADDRESSES.into_iter().step_by(5) {
        let completed = Lockrun::bare().env("LOCKRUN_STORE", address).args(["complete", "lockrun", "status", ""]).run();
        assert!(!completed.stderr().contains(SECRET) && !completed.stdout().contains(SECRET), "{completed}");
    }
    assert!(!events.path().exists() || !events.text().contains(SECRET), "the secret is in the events");
}

// The same where the address is in the place of something else.
#[test]
fn an_address_in_another_place_is_not_repeated() {
    // Every eleventh of all pairs of an address and a place: over the addresses, each place has its turn.
    let turn = Cell::new(0);
    let check = |call: Lockrun, source: &str| {
        turn.set((turn.get() + 1) % 11);
        if turn.get() == 0 {
            keeps_the_secret(&call.run(), source);
        }
    };
    for address in ADDRESSES.iter().filter(|address| **address != "s3cret://h") {
        let call = || Lockrun::bare().key("k");
        let run = |call: Lockrun| call.command(["echo", "ran"]);
        let options = ["ttl", "wait", "slots", "max-waiting", "conflict-exit-code", "on-lost", "descendants", "skip"];
        for option in options {
            check(run(call().arg(format!("--{option}={address}"))), &format!("--{option}: "));
            let variable = format!("LOCKRUN_{}", option.to_ascii_uppercase().replace('-', "_"));
            check(run(call().env(&variable, address)), &format!("{variable}: "));
        }
        let user = UserConfig::with(&format!("ttl = {}", json!(address)));
        check(run(user.of(call())), &format!("{}ttl: ", user.line(1)));
        check(run(call().arg(format!("--quiet={address}"))), "--quiet");
        check(run(call().env("LOCKRUN_QUIET", address)), "LOCKRUN_QUIET: ");
        check(run(call().arg(format!("--store-file={address}"))), "--store-file: ");
        check(run(call().env("LOCKRUN_STORE_FILE", address)), "LOCKRUN_STORE_FILE: ");
        // A line of the file as it was pasted, and as the name of an option.
        let quoted = json!(address).to_string();
        for line in
            [(*address).to_owned(), format!("store = {}", quoted.trim_end_matches('"')), format!("{quoted} = 1")]
        {
            let user = UserConfig::with(&format!("ttl = 5\n{line}\n"));
            check(run(user.of(call())), &user.line(2)[..user.line(2).len() - 2]);
        }
        // Words of the command line.
        for words in [
            &[*address][..],
            &["status", "k", address],
            &["doctor", address],
            &["acquire", "k", address],
            &["help", address],
        ] {
            check(Lockrun::bare().args(words), "lockrun: ");
        }
        for words in [&["--ttl", "5", address][..], &["-E", "5", "--", address]] {
            check(Lockrun::bare().args(words), "no key: ");
        }
        for option in ["--stoer", "--stor", "--host", "-store"] {
            check(run(call().arg(format!("{option}={address}"))), option);
        }
        let reserve = |option: &str| Lockrun::bare().args(["reserve", "--key", "k", option, address, "-c", "true"]);
        check(reserve("--from"), "--from: ");
        let breaks = Lockrun::bare().args(["break", "--key", "k", "--fence", address]);
        check(breaks, "--fence: ");
        let age = Lockrun::bare().args(["prune", "--older-than", address]);
        check(age, "--older-than: ");
    }
}

// The same where it is COMMAND, the name of a variable, or a file for TLS.
#[test]
fn an_address_in_a_strange_place_is_not_repeated() {
    let store = Store::file();
    for address in ADDRESSES {
        let output = Lockrun::new(&store).key("k").command([address]).run().exited(127);
        assert!(!output.stderr().contains(SECRET) && !output.stdout().contains(SECRET), "{output}");
        output.said("lockrun: cannot run the command: not found");
    }
    for address in ADDRESSES.into_iter().step_by(3).chain(["redis://u:s3cret@h"]) {
        let call = Lockrun::bare().key("k").env(&format!("LOCKRUN_{address}"), "1").command(["true"]);
        keeps_the_secret(&call.run(), "is not a variable of lockrun");
    }
    for value in ["u:s3cret", "u:s3cret%40h", "redis-cli%20-a%20s3cret", "h,s3cret"] {
        let url = format!("rediss://127.0.0.1:1?ca={value}");
        keeps_the_secret(
            &Lockrun::at(&url).key("k").command(["true"]).run(),
            "cannot use TLS: its file, which is not shown",
        );
    }
}

// In clap's own words only the value is masked, not each part of the text that is like it.
#[test]
fn the_words_around_a_value_stay() {
    Lockrun::bare().args(["status", "k", " "]).run().exited(64).said("unexpected argument *** found");
}
