//! Where the password for a PostgreSQL server comes from, and how it is proved.

use std::fs;
use std::net::{IpAddr, UdpSocket};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use tempfile::TempDir;

use crate::support::postgres::Setup;
use crate::support::tls::Certificates;
use crate::support::{LeaseServer, Lockrun, Output, Postgres};

/// A password that has to be escaped wherever it is written, and one user who has it.
const PASSWORD: &str = "p:w\\/@ ?#é";
const IN_URL: &str = "p%3Aw%5C%2F%40%20%3F%23%C3%A9";
const IN_FILE: &str = "p\\:w\\\\/@ ?#é";

fn server() -> Postgres {
    Postgres::with_password("scram-sha-256", "app", PASSWORD)
}

fn run(call: Lockrun) -> Output {
    call.key("passwords").command(["echo", "ran"]).run()
}

#[track_caller]
fn works(call: Lockrun) {
    run(call).exited(0).printed("ran\n").silent();
}

#[track_caller]
fn is_refused(call: Lockrun, words: &str) {
    let output = run(call).exited(69).printed("").said(words);
    assert!(!output.stderr().contains(PASSWORD) && !output.stderr().contains("é"), "{output}");
}

/// Writes a password file for its owner alone.
fn write(path: &Path, text: &str) {
    fs::write(path, text).expect("our own directory");
    fs::set_permissions(path, fs::Permissions::from_mode(0o600)).expect("our own file");
}

/// Returns an address of this machine that others can reach. Finding it sends nothing.
fn address() -> IpAddr {
    let socket = UdpSocket::bind("0.0.0.0:0").expect("a free port");
    socket.connect("192.0.2.1:9").expect("a route to the network");
    socket.local_addr().expect("its address").ip()
}

// A password is sent in clear only to a server that has proved which one it is: by its certificate, or by the directory
// of its socket.
#[test]
fn in_clear() {
    let access =
        ["local all all", "host all all 127.0.0.1/32", "host all all 0.0.0.0/0"].map(|from| format!("{from} password"));
    let settings = vec!["listen_addresses=*".to_owned()];
    let certificates = Some(Certificates::make());
    let postgres = Postgres::with(&Setup { settings, access: access.to_vec(), certificates, ..Setup::default() });
    postgres.ask("CREATE ROLE app LOGIN PASSWORD 'secret'; GRANT CREATE ON DATABASE postgres TO app");
    let url = |host: &str, mode: &str| postgres.url_as("app:secret", mode).replacen("127.0.0.1", host, 1);
    for host in ["127.0.0.1", &address().to_string()] {
        for mode in ["", "sslmode=prefer", "sslmode=allow", "sslmode=disable", "sslmode=require", "ssl=true"] {
            let output =
                run(Lockrun::at(&url(host, mode))).exited(69).printed("").said("in clear").said("sslmode=verify-full");
            assert!(!output.stderr().contains("secret"), "{output}");
        }
    }
    let ca = postgres.certificates().path("ca.crt");
    for mode in ["", "sslmode=require&", "sslmode=verify-ca&", "sslmode=verify-full&"] {
        works(Lockrun::at(&url("127.0.0.1", &format!("{mode}ca={ca}"))));
    }
    let directory = postgres.sockets().display();
    works(
        Lockrun::at(&format!("postgres:///postgres?user=app&host={directory}&port={}", postgres.port()))
            .env("PGPASSWORD", "secret"),
    );
}

// "`user[:pw]@`", and `PGPASSWORD` where the URL has none.
#[test]
fn in_the_url_and_in_the_environment() {
    let postgres = server();
    let without = postgres.url_as("app", "sslmode=disable");
    let with = |password: &str| without.replacen("app@", &format!("app:{password}@"), 1);
    works(Lockrun::at(&with(IN_URL)));
    works(Lockrun::at(&without).env("PGPASSWORD", PASSWORD));
    works(Lockrun::at(&with(IN_URL)).env("PGPASSWORD", "another"));
    is_refused(Lockrun::at(&with("another")).env("PGPASSWORD", PASSWORD), "password authentication failed");
    is_refused(Lockrun::at(&without), "PGPASSWORD");
    is_refused(Lockrun::at(&without).env("PGPASSWORD", ""), "PGPASSWORD");
    // Without a user in the URL it is PGUSER.
    let anonymous = without.replacen("app@", "", 1);
    works(Lockrun::at(&anonymous).env("PGUSER", "app").env("PGPASSWORD", PASSWORD));
    // COMMAND finds its environment as it was.
    let call = Lockrun::at(&without).env("PGPASSWORD", PASSWORD).key("k").command(["printenv", "PGPASSWORD"]);
    call.run().exited(0).printed(&format!("{PASSWORD}\n"));
}

// "Also from `PGPASSFILE` / `~/.pgpass`", as libpq's manual describes it: the first matching line counts.
#[test]
fn in_a_password_file() {
    let postgres = server();
    let url = postgres.url_as("app", "sslmode=disable");
    let home = TempDir::new().expect("a temporary directory");
    let [ours, other] = [".pgpass", "other"].map(|name| home.path().join(name));
    let port = postgres.port();
    for text in [
        format!("127.0.0.1:{port}:postgres:app:{IN_FILE}\n"),
        format!("*:*:*:*:{IN_FILE}"),
        format!("# 127.0.0.1:{port}:postgres:app:wrong\n\nelsewhere:*:*:*:wrong\n127.0.0.1:*:postgres:app:{IN_FILE}\n"),
        format!("127.0.0.1:1:*:*:wrong\n*:{port}:*:b:wrong\n*:{port}:*:app:{IN_FILE}\n*:*:*:*:wrong\n"),
    ] {
        write(&ours, &text);
        works(Lockrun::at(&url).env("HOME", home.path()));
        works(Lockrun::at(&url).env("PGPASSFILE", &ours));
    }
    // PGPASSFILE takes precedence over the home directory, and PGPASSWORD and the URL over both.
    write(&other, "*:*:*:*:wrong\n");
    let both = Lockrun::at(&url).env("HOME", home.path()).env("PGPASSFILE", &other);
    is_refused(both.clone(), "password authentication failed");
    works(both.env("PGPASSWORD", PASSWORD));
    // Others can read it.
    fs::set_permissions(&ours, fs::Permissions::from_mode(0o640)).expect("our own file");
    is_refused(Lockrun::at(&url).env("PGPASSFILE", &ours), "chmod 0600");
    // No line matches, and then there is no file.
    write(&ours, &format!("elsewhere:*:*:*:{IN_FILE}\n"));
    is_refused(Lockrun::at(&url).env("PGPASSFILE", &ours), "password");
    is_refused(Lockrun::at(&url).env("PGPASSFILE", home.path().join("none")), "password");
    // If the server asks for no password, lockrun looks for none.
    write(&ours, "*:*:*:*:wrong\n");
    fs::set_permissions(&ours, fs::Permissions::from_mode(0o644)).expect("our own file");
    let trusting = Postgres::start();
    works(Lockrun::at(&trusting.url()).env("PGPASSFILE", &ours).env("PGPASSWORD", "wrong"));
}

// "SCRAM", md5 and passwords in plain text, by what the server asks for.
#[test]
fn every_way_to_prove_it() {
    for method in ["scram-sha-256", "md5"] {
        let postgres = Postgres::with_password(method, "app", "pencil");
        works(Lockrun::at(&postgres.url_as("app", "")).env("PGPASSWORD", "pencil"));
        is_refused(Lockrun::at(&postgres.url_as("app", "")).env("PGPASSWORD", "Pencil"), "password");
    }
    // Two spellings of one password, which SCRAM's preparation (RFC 4013) makes equal.
    let postgres = Postgres::with_password("scram-sha-256", "app", "\u{2168}");
    works(Lockrun::at(&postgres.url_as("app", "")).env("PGPASSWORD", "IX"));
}

// "SCRAM with channel binding": over TLS, if both sides can, and if it is required.
#[test]
fn bound_to_the_connection() {
    let postgres = Postgres::with_tls(&["hostssl all all 127.0.0.1/32 scram-sha-256"]);
    postgres.ask("CREATE ROLE app LOGIN PASSWORD 'pencil'; GRANT CREATE ON DATABASE postgres TO app");
    for binding in ["", "&channel_binding=prefer", "&channel_binding=require", "&channel_binding=disable"] {
        let url = postgres.url_as("app", &format!("sslmode=require{binding}"));
        works(Lockrun::at(&url).env("PGPASSWORD", "pencil"));
        is_refused(Lockrun::at(&url).env("PGPASSWORD", "wrong"), "password authentication failed");
    }
    // A server that asks for no proof may be another one.
    let trusting = Postgres::with_tls(&["hostssl all all 127.0.0.1/32 trust"]);
    let url = trusting.url_as("postgres", "sslmode=require&channel_binding=require");
    is_refused(Lockrun::at(&url).env("PGPASSWORD", "pencil"), "channel");
}

// A certificate to which nothing can be bound must be verified: a server in between could show one to make our proof
// usable there.
#[test]
fn a_certificate_that_nothing_can_be_bound_to() {
    let postgres = Postgres::with_tls(&["hostssl all all 127.0.0.1/32 scram-sha-256"]);
    postgres.ask("CREATE ROLE app LOGIN PASSWORD 'pencil'; GRANT CREATE ON DATABASE postgres TO app");
    postgres.certificates().add_unbound();
    postgres.shows("unbound");
    let call = |parameters: &str| Lockrun::at(&postgres.url_as("app", parameters)).env("PGPASSWORD", "pencil");
    for mode in ["sslmode=prefer", "sslmode=require"] {
        is_refused(call(mode), "sslmode=verify-full");
        is_refused(call(mode), "channel_binding=disable");
        works(call(&format!("{mode}&channel_binding=disable")));
    }
    let ca = postgres.certificates().path("modern.crt");
    for mode in ["verify-ca", "verify-full"] {
        let verified = format!("sslmode={mode}&ca={ca}");
        works(call(&verified));
        works(call(&format!("{verified}&channel_binding=disable")));
        is_refused(call(&format!("{verified}&channel_binding=require")), "channel_binding=require");
    }
}

// "`scram_iterations`", which PostgreSQL 16 and later have: up to 100000, and a clear error beyond.
#[test]
fn a_password_that_was_hashed_often() {
    let postgres = server();
    let hashed = |rounds: u32| {
        let verifier = format!(
            "SCRAM-SHA-256${rounds}:c2FsdHlzYWx0$H+0zM4cLGjzc7dIveVWZLc8C1yBr4C0hCpqvt3lKDE8=:12/LyfQDF2bSi0iR0TtrbnyglLirY2FJC8fEEZD2X/A="
        );
        // ALTER ROLE would hash the empty password as often, to compare it.
        postgres.ask(&format!("UPDATE pg_authid SET rolpassword = '{verifier}' WHERE rolname = 'app'"));
        Lockrun::at(&postgres.url_as("app:pencil", "sslmode=disable"))
    };
    // Only the number of rounds matters: the verifier is another password's.
    is_refused(hashed(100_000).args(["--store-timeout", "20s", "--ttl", "10m"]), "check the user and the password");
    for rounds in [600_000, 2_000_000_000] {
        is_refused(hashed(rounds), "scram_iterations");
    }
}

// `postgres:///DB?host=/DIR`: over a socket, without TLS or any of the above.
#[test]
fn over_a_socket() {
    let postgres = Postgres::start();
    let directory = postgres.sockets().display().to_string();
    let url = format!("postgres:///postgres?user=postgres&host={directory}&port={}", postgres.port());
    works(Lockrun::at(&url));
    works(Lockrun::at(&format!("postgres://postgres@{}:{}/postgres", directory.replace('/', "%2F"), postgres.port())));
    assert_eq!(postgres.count("SELECT count(*) FROM lockrun.locks"), 1);
}
