//! TLS before a PostgreSQL server: `sslmode`, private authorities, and certificates of clients.

use crate::support::fake::{Fake, Manner};
use crate::support::postgres::Setup;
use crate::support::tls::Certificates;
use crate::support::{LONG, LeaseServer, Lockrun, Output, Postgres, eventually};

/// Admits every encrypted connection.
const ENCRYPTED: &str = "hostssl all all 127.0.0.1/32 trust";

fn run(url: &str) -> Output {
    Lockrun::at(url).key("tls").command(["echo", "ran"]).run()
}

#[track_caller]
fn works(postgres: &Postgres, parameters: &str) {
    run(&postgres.url_as("postgres", parameters)).exited(0).printed("ran\n").silent();
}

#[track_caller]
fn fails(postgres: &Postgres, parameters: &str) {
    let output = run(&postgres.url_as("postgres", parameters)).exited(69).printed("").said("lockrun: ");
    assert!(!output.stderr().contains("panicked"), "{output}");
}

/// Returns whether the only client of this server was encrypted.
fn was_encrypted(postgres: &Postgres, parameters: &str) -> bool {
    let url = postgres.url_as("postgres", parameters);
    let backends = "FROM pg_stat_activity JOIN pg_stat_ssl USING (pid)
        WHERE backend_type = 'client backend' AND application_name <> 'suite'";
    let count = |condition: &str| postgres.count(&format!("SELECT count(*) {backends} {condition}"));
    eventually(LONG, "the sessions of earlier clients have ended", || count("") == 0);
    let mut run = Lockrun::at(&url).key("tls").sh("echo ready; read line || :").with_open_input();
    run.run.wait_for_line("ready");
    let (all, encrypted) = (count(""), count("AND ssl"));
    assert!(all > 0 && (encrypted == 0 || encrypted == all), "{encrypted} of {all}");
    run.finish().exited(0);
    encrypted > 0
}

// "`sslmode` words as libpq's": without a private authority.
#[test]
fn sslmode_words() {
    let postgres = Postgres::with_tls(&[ENCRYPTED]);
    for mode in ["", "sslmode=allow", "sslmode=prefer", "sslmode=require", "ssl=true"] {
        works(&postgres, mode);
    }
    fails(&postgres, "sslmode=disable");
    // The system's authorities do not know it.
    fails(&postgres, "sslmode=verify-full");
    let plain = Postgres::start();
    for mode in ["", "sslmode=disable", "sslmode=allow", "sslmode=prefer"] {
        works(&plain, mode);
    }
    for mode in ["sslmode=require", "sslmode=verify-full", "ssl=true"] {
        fails(&plain, mode);
    }
    let either = Postgres::with_tls(&["host all all 127.0.0.1/32 trust"]);
    for (mode, encrypted) in
        [("", true), ("sslmode=disable", false), ("sslmode=prefer", true), ("sslmode=require", true)]
    {
        assert_eq!(was_encrypted(&either, mode), encrypted, "{mode}");
    }
}

// A handshake that fails under `prefer` is an error that names the way out: lockrun does not fall back to plain text by
// itself.
#[test]
fn a_handshake_that_fails() {
    for manner in [Manner::Answer(b"S"), Manner::InTurn(&[b"S"])] {
        let fake = Fake::start(manner);
        let fails =
            |mode: &str| run(&format!("postgres://u@127.0.0.1:{}/db{mode}", fake.port())).exited(69).printed("");
        for mode in ["", "?sslmode=prefer", "?sslmode=allow"] {
            fails(mode).said("sslmode=disable");
        }
        let output = fails("?sslmode=require");
        assert!(!output.stderr().contains("sslmode=disable"), "{output}");
    }
}

// "Private authority (ca)": it vouches for the server, and `verify-full` for its name as well.
#[test]
fn a_private_authority() {
    let postgres = Postgres::with_tls(&[ENCRYPTED]);
    let of = |mode: &str, authority: &str| {
        let ca = postgres.certificates().path(&format!("{authority}.crt"));
        format!("{mode}ca={ca}")
    };
    for mode in ["", "sslmode=require&", "sslmode=verify-ca&", "sslmode=verify-full&"] {
        works(&postgres, &of(mode, "ca"));
        works(&postgres, &of(mode, "ca").replace("ca=/", "sslrootcert=/"));
        fails(&postgres, &of(mode, "untrusted"));
    }
    let named = postgres.url_as("postgres", &of("sslmode=verify-full&", "ca")).replace("127.0.0.1", "localhost");
    run(&named).exited(0).printed("ran\n").silent();
    // A certificate of the same authority for another server.
    postgres.shows("elsewhere");
    for mode in ["sslmode=require&", "sslmode=verify-ca&"] {
        works(&postgres, &of(mode, "ca"));
    }
    for mode in ["", "sslmode=verify-full&"] {
        fails(&postgres, &of(mode, "ca"));
    }
}

// "Client certificate (cert, key)": one that the server's authority vouches for.
#[test]
fn a_clients_certificate() {
    let asking = "hostssl all all 127.0.0.1/32 trust clientcert=verify-ca";
    let postgres = Postgres::with_tls(&[asking]);
    let at = |name: &str| postgres.certificates().path(name);
    let pair = |name: &str| format!("cert={}&key={}", at(&format!("{name}.crt")), at(&format!("{name}.key")));
    fails(&postgres, "sslmode=require");
    works(&postgres, &format!("sslmode=require&{}", pair("client")));
    works(&postgres, &format!("ca={}&{}", at("ca.crt"), pair("client")));
    let libpqs = pair("client").replace("cert=/", "sslcert=/").replace("key=/", "sslkey=/");
    works(&postgres, &format!("sslmode=require&{libpqs}"));
    // The certificate may identify the user.
    let postgres = Postgres::with_tls(&["hostssl all all 127.0.0.1/32 cert"]);
    let at = |name: &str| postgres.certificates().path(name);
    postgres.ask("CREATE ROLE client LOGIN; GRANT CREATE ON DATABASE postgres TO client");
    let parameters = format!("ca={}&cert={}&key={}", at("ca.crt"), at("client.crt"), at("client.key"));
    run(&postgres.url_as("client", &parameters)).exited(0).printed("ran\n").silent();
    fails(&postgres, &parameters);
}

// What pg_hba.conf wants of the connection itself.
#[test]
fn a_connection_that_is_not_admitted() {
    let said = |access: &str, parameters: &str, words: &str| {
        let postgres = Postgres::with_tls(&[access]);
        run(&postgres.url_as("postgres", parameters)).exited(69).printed("").said("pg_hba.conf").said(words);
    };
    said("hostnossl all all 127.0.0.1/32 trust", "", "write sslmode=disable in the store's URL");
    said("hostssl all all 127.0.0.1/32 cert", "sslmode=require", "cert=FILE and key=FILE");
}

// An authority's own certificate, as PostgreSQL's manual makes one for a first server, cannot be a server's here.
#[test]
fn a_server_with_an_authoritys_certificate() {
    let postgres = Postgres::with_tls(&[ENCRYPTED]);
    postgres.shows("ca");
    works(&postgres, "sslmode=require");
    for mode in ["require", "verify-ca", "verify-full"] {
        let parameters = format!("sslmode={mode}&ca={}", postgres.certificates().path("ca.crt"));
        let output = run(&postgres.url_as("postgres", &parameters)).exited(69).printed("");
        output.said("the certificate is an authority's own").said("basicConstraints=CA:FALSE");
    }
}

// A certificate that it does not vouch for: TLS 1.3 says so after the handshake, TLS 1.2 within.
#[test]
fn a_client_certificate_of_an_untrusted_authority() {
    for latest in ["TLSv1.2", "TLSv1.3"] {
        let postgres = Postgres::with(&Setup {
            settings: vec![format!("ssl_max_protocol_version={latest}")],
            access: vec!["hostssl all all 127.0.0.1/32 trust clientcert=verify-ca".to_owned()],
            certificates: Some(Certificates::make()),
            ..Setup::default()
        });
        let [certificate, key] = ["crt", "key"].map(|kind| postgres.certificates().path(&format!("untrusted.{kind}")));
        for mode in ["prefer", "require"] {
            let parameters = format!("sslmode={mode}&cert={certificate}&key={key}");
            let output = run(&postgres.url_as("postgres", &parameters)).exited(69).printed("");
            output.said("rejects the client's certificate (TLS alert UnknownCA); check cert=FILE and key=FILE");
        }
    }
}

// The same lock with and without TLS: only the connection is encrypted, not the store.
#[test]
fn the_same_lock_over_both() {
    let postgres = Postgres::with_tls(&["host all all 127.0.0.1/32 trust"]);
    let call = |mode: &str| Lockrun::at(&postgres.url_as("postgres", mode)).key("tls");
    let mut holder = call("sslmode=require").sh("echo ready; read line || :").with_open_input();
    holder.run.wait_for_line("ready");
    call("sslmode=disable").command(["echo", "ran"]).run().exited(75).printed("");
    // Woken over an encrypted connection.
    let waiter = call("sslmode=require").arg("--wait").command(["echo", "ran"]).spawn();
    crate::support::eventually(crate::support::LONG, "it waits", || postgres.asleep() == 1);
    holder.finish().exited(0);
    waiter.wait().exited(0).printed("ran\n").silent();
}
