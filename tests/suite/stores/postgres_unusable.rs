//! PostgreSQL servers that cannot be used: no command without its lock.

use std::time::Duration;

use super::store_errors::{PASSWORD, SECRETS, is_unusable};
use crate::support::fake::{Fake, Manner};
use crate::support::ports::free_port;
use crate::support::postgres::Setup;
use crate::support::{LeaseServer, Lockrun, Postgres, Redis, stays_true_for};

/// The password itself.
const PLAIN: &str = SECRETS[0];

fn at(port: u16) -> String {
    format!("postgres://somebody:{PASSWORD}@127.0.0.1:{port}/postgres")
}

// "69: the store cannot be reached."
#[test]
fn no_server_listens() {
    let port = free_port();
    let message = is_unusable(&at(port), &[]);
    assert!(message.contains(&format!("127.0.0.1:{port}")), "which one: {message:?}");
    for options in [&["--skip"][..], &["--wait", "--store-retry", "0"], &["--wait", "1"], &["-E", "0"], &["-q"]] {
        is_unusable(&at(port), options);
    }
    is_unusable("postgres:///db?host=/no/such/directory&user=u", &[]);
}

// "69": a password that is wrong or missing, a user and a database that do not exist.
#[test]
fn logins_that_are_rejected() {
    for method in ["scram-sha-256", "md5"] {
        let mut setup = Setup { access: vec![format!("host all all 127.0.0.1/32 {method}")], ..Setup::default() };
        setup.settings.push(format!("password_encryption={method}"));
        let postgres = Postgres::with(&setup);
        postgres.ask("CREATE ROLE somebody LOGIN PASSWORD 'right'");
        let url = postgres.url_as("somebody", "");
        let wanted = is_unusable(&url, &[]);
        assert!(wanted.contains("password"), "{method}: {wanted:?}");
        let wrong = is_unusable(&url.replacen("somebody", &format!("somebody:{PASSWORD}"), 1), &["--wait"]);
        assert!(wrong.contains("password authentication failed"), "{method}: {wrong:?}");
        is_unusable(&url.replacen("somebody", &format!("nobody:{PASSWORD}"), 1), &[]);
        let right = url.replacen("somebody", "somebody:right", 1);
        postgres.ask("GRANT CREATE ON DATABASE postgres TO somebody");
        Lockrun::at(&right).key("k").command(["echo", "ran"]).run().exited(0).printed("ran\n").silent();
    }
    let postgres = Postgres::start();
    let message = is_unusable(&postgres.url().replace("/postgres", "/no-such-database"), &[]);
    assert!(message.contains("no-such-database"), "{message:?}");
    let message = is_unusable(&postgres.url_as("no-such-user", ""), &[]);
    assert!(message.contains("no-such-user") && !message.contains("pg_hba.conf"), "{message:?}");
    let rejected = vec!["host all all 127.0.0.1/32 reject".to_owned()];
    let message = is_unusable(&Postgres::with(&Setup { access: rejected, ..Setup::default() }).url(), &[]);
    assert!(message.contains("pg_hba.conf"), "{message:?}");
    postgres.ask("CREATE ROLE \"night jobs\" LOGIN; REVOKE CONNECT ON DATABASE postgres FROM PUBLIC");
    let message = is_unusable(&postgres.url_as("night%20jobs", ""), &[]);
    assert!(message.contains("GRANT CONNECT ON DATABASE \"postgres\" TO \"night jobs\""), "{message:?}");
}

// "69": a server that has no connection left. A waiter goes on asking.
#[test]
fn a_server_without_a_connection_left() {
    let postgres = Postgres::start();
    postgres.ask("CREATE ROLE few LOGIN CONNECTION LIMIT 0; GRANT CREATE ON DATABASE postgres TO few");
    let url = postgres.url_as("few", "sslmode=disable");
    let message = is_unusable(&url, &[]);
    assert!(message.contains("too many connections"), "{message:?}");
}

// "69: the store does not answer in time", wherever it falls silent.
#[test]
fn a_server_that_does_not_answer() {
    let fake = Fake::start(Manner::Silent);
    for parameters in ["", "?sslmode=disable", "?sslmode=require"] {
        is_unusable(&(at(fake.port()) + parameters), &["--wait", "--store-retry", "1ms"]);
    }
    assert!(fake.connections() >= 3);
    let trickle = Fake::start(Manner::Trickle);
    is_unusable(&at(trickle.port()), &["--skip"]);
    let postgres = Postgres::start();
    postgres.pause();
    is_unusable(&postgres.url(), &[]);
    postgres.resume();
}

// "A port that is not PostgreSQL's": 69, and nothing of what it says reaches a terminal.
#[test]
fn no_postgres_at_all() {
    let redis = Redis::start();
    is_unusable(&at(redis.port()), &[]);
    for manner in [
        Manner::HangUp,
        Manner::Answer(b"HTTP/1.1 400 Bad Request\r\n\r\n"),
        Manner::Answer(b"SSH-2.0-OpenSSH_9.2\r\n"),
        Manner::Answer(b"\x15\x03\x01\x00\x02\x02\x46"),
        Manner::Answer(b"5.7.1 \x1b[31mred\x1b[0m\r\n"),
        Manner::Answer(b"N"),
        Manner::Answer(b"S"),
        // Plain text must not count as encrypted.
        Manner::Answer(b"SR\x00\x00\x00\x08\x00\x00\x00\x00"),
    ] {
        let fake = Fake::start(manner);
        for parameters in ["", "?sslmode=disable", "?sslmode=require"] {
            let message = is_unusable(&(at(fake.port()) + parameters), &[]);
            assert!(!message.contains('\x1b'), "{manner:?}: {message:?}");
        }
    }
}

/// A message of the protocol.
fn message(kind: u8, body: &[u8]) -> Vec<u8> {
    let length = u32::try_from(body.len() + 4).expect("a short message").to_be_bytes();
    [&[kind][..], &length, body].concat()
}

// "Never panic on what a server sends": messages that are broken, out of turn, of another kind of login, or hostile are
// errors like any other.
#[test]
fn answers_that_no_server_gives() {
    let welcome = message(b'R', &[0; 4]);
    let ready = message(b'Z', b"I");
    let hostile = message(b'E', b"SFATAL\0VFATAL\0C28P01\0Mno \x1b[31mred\x1b[0m \xc2\x9b1m\0\0");
    let rounds = b"r=nonce,s=c2FsdA==,i=4294967295";
    for answer in [
        hostile,
        // The length of a message: too small, negative, larger than any memory.
        b"R\x00\x00\x00\x00".to_vec(),
        b"R\xff\xff\xff\xff".to_vec(),
        b"E\x7f\xff\xff\xff".to_vec(),
        // Fields that do not end, and an unknown kind of message.
        message(b'E', b"C28P01"),
        message(b'E', b""),
        message(b'\x01', b"x"),
        // Kerberos, GSSAPI, SASL without a mechanism, with an unknown one, and its continuation out of turn.
        message(b'R', &[0, 0, 0, 2]),
        message(b'R', &[0, 0, 0, 7]),
        message(b'R', &[0, 0, 0, 10]),
        message(b'R', b"\x00\x00\x00\x0aUNKNOWN\0\0"),
        message(b'R', &[&[0, 0, 0, 11][..], rounds].concat()),
        message(b'R', &[0, 0, 0, 99]),
        message(b'R', b"\x00"),
        // Rows, a welcome and an end that no one has asked for.
        message(b'D', b"\x7f\xff\x00\x00\x00\x01"),
        [&welcome[..], &message(b'D', b"\x00\x01\xff\xff\xff\xfe"), &ready].concat(),
        [&welcome[..], &message(b'C', b"SELECT 99999999999999999999\0"), &ready].concat(),
        [&welcome[..], &ready].concat(),
        message(b'G', b"\x00\x00\x00"),
    ] {
        let shown = String::from_utf8_lossy(&answer).into_owned();
        let fake = Fake::start(Manner::Answer(answer.leak()));
        let said = is_unusable(&(at(fake.port()) + "?sslmode=disable"), &[]);
        assert!(!said.contains(['\x1b', '\u{9b}']) && !said.contains("panicked"), "{shown:?}: {said:?}");
    }
}

/// Returns a listener that admits everyone as a primary does, answers the first request with this, and hangs up.
fn lets_in_and_answers(answer: Vec<u8>) -> Fake {
    let primary = message(b'S', b"in_hot_standby\0off\0");
    let welcome = [message(b'R', &[0; 4]), primary, message(b'Z', b"I")].concat();
    let answers: [&'static [u8]; 2] = [welcome.leak(), answer.leak()];
    Fake::start(Manner::InTurn(Box::leak(Box::new(answers))))
}

// A request is refused before its connection is closed: the refusal is the reason, also from a pooler, whose errors
// have no field V.
#[test]
fn a_refusal_before_the_end() {
    for severity in ["SFATAL\0", "SERROR\0", "SFATAL\0VFATAL\0", "SPANIK\0VPANIC\0"] {
        let refusal = message(b'E', format!("{severity}C08P01\0Mquery_wait_timeout\0\0").as_bytes());
        let fake = lets_in_and_answers(refusal);
        let said = is_unusable(&(at(fake.port()) + "?sslmode=disable"), &[]);
        assert!(said.contains("query_wait_timeout (SQLSTATE 08P01)"), "{severity:?}: {said:?}");
    }
}

// "Is it a PostgreSQL server?" is asked only before login has succeeded.
#[test]
fn whether_it_is_a_postgres() {
    const QUESTION: &str = "is it a PostgreSQL server?";
    let web = Fake::start(Manner::Answer(b"HTTP/1.1 400 Bad Request\r\n\r\n"));
    let said = is_unusable(&(at(web.port()) + "?sslmode=disable"), &[]);
    assert!(said.contains("unexpected reply") && said.contains(QUESTION), "{said:?}");
    let odd = lets_in_and_answers(message(b'R', &[0; 4]));
    let said = is_unusable(&(at(odd.port()) + "?sslmode=disable"), &[]);
    assert!(said.contains("unexpected reply") && !said.contains(QUESTION), "{said:?}");
}

// "Bounded message size": a server that sends without an end takes little of the memory.
#[test]
fn answers_beyond_all_bounds() {
    let flood: &'static [u8] = b"N\x00\x00\x00\x0cSNOTICE\0\0";
    for manner in [Manner::Flood(flood), Manner::Flood(b"E\x7f\xff\xff\xf0"), Manner::Flood(b"R\x03\xff\xff\xf0")] {
        let fake = Fake::start(manner);
        let url = at(fake.port()) + "?sslmode=disable";
        let call = Lockrun::at(&url).key("bounds").args(["--store-timeout", "2s"]).command(["echo", "ran"]);
        // In KiB.
        call.in_shell("ulimit -v 200000; exec \"$@\"").alone().exited(69).printed("").said("lockrun: ");
    }
}

// "25006 (read-only standby)": 69, and a server that takes writes again is used again.
#[test]
fn a_standby_without_a_primary() {
    let standby = Postgres::with(&Setup { follows: Some(0), ..Setup::default() });
    let message = is_unusable(&standby.url(), &[]);
    assert!(message.contains("standby"), "{message:?}");
    standby.ask("SELECT pg_promote()");
    Lockrun::at(&standby.url()).key("k").command(["echo", "ran"]).run().exited(0).printed("ran\n").silent();
    standby.ask("ALTER SYSTEM SET default_transaction_read_only = on");
    standby.ask("SELECT pg_reload_conf()");
    Lockrun::at(&standby.url()).key("k").command(["echo", "ran"]).run().exited(0).printed("ran\n").silent();
}

// A standby that a pooler has reported as a primary refuses to begin a transaction, in its own language, and has no
// tables.
#[test]
fn a_standby_that_speaks_another_language() {
    let refuses = |fields: &str| [message(b'E', fields.as_bytes()), message(b'Z', b"I")].concat();
    let begin = refuses("SFEHLER\0VERROR\0C0A000\0Mkann den Modus w\u{e4}hrend der Wiederherstellung nicht setzen\0\0");
    let others = refuses("SFEHLER\0VERROR\0C42P01\0MRelation existiert nicht\0\0").repeat(6);
    let fake = lets_in_and_answers([begin, others].concat());
    let said = is_unusable(&(at(fake.port()) + "?sslmode=disable"), &[]);
    assert!(said.contains("0A000") && said.contains("this is a standby"), "{said:?}");
}

// "A URL's password never appears in a message", nor in the process list: not even with `--verbose` when all goes well.
#[test]
fn no_password_in_any_output() {
    let postgres = Postgres::with_password("scram-sha-256", "somebody", PLAIN);
    let url = at(postgres.port());
    let mut run = Lockrun::bare().env("LOCKRUN_STORE", &url).key("quiet").args(["-v", "--renew-every", "300ms"]);
    run = run.sh("echo ready; read line || :");
    let mut run = run.with_open_input();
    run.run.wait_for_line("ready");
    for pid in run.run.processes() {
        let words = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        assert!(!String::from_utf8_lossy(&words).contains("hush"), "{words:?}");
    }
    let activity = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE '%hush%' AND pid <> pg_backend_pid()";
    stays_true_for(Duration::from_secs(1), "no password in a statement", || postgres.count(activity) == 0);
    let output = run.finish().exited(0);
    Lockrun::at(&url).key("quiet").arg("-v").command(["true"]).run().exited(0);
    let status = Lockrun::bare().args(["status", "--json", "--store", &url]).run().exited(0);
    let doctor = Lockrun::bare().args(["doctor", "--store", &url]).run();
    for output in [output, status, doctor] {
        assert!(!SECRETS.iter().any(|secret| output.stderr().contains(secret)), "{output}");
        assert!(!SECRETS.iter().any(|secret| output.stdout().contains(secret)), "{output}");
    }
}
