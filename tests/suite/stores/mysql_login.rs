//! How a user of MySQL logs in, against a server that follows a script.

use std::fs;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;

use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ServerConfig, ServerConnection, StreamOwned};

use super::mysql::{at, packet};
use crate::support::LONG;
use crate::support::tls::Certificates;

/// How a user proves that the password is "pw" by caching_sha2_password, to a server with the nonce of [`greeting`], and
/// to one with the nonce "ABCDEFGHIJKLMNOPQRST": SHA256(pw) XOR SHA256(SHA256(SHA256(pw)) nonce).
const PROOF: &[u8] = b"\xad\x43\x90\x90\xe1\x91\x41\x51\xd1\xa7\xf6\xbf\x7c\x21\x56\x1d\
    \x28\x3f\x2f\xba\x52\xfe\x39\xce\x9d\xcd\x29\xd6\x87\x81\x3c\x2c";
const PROOF_ANEW: &[u8] = b"\xd9\xbc\xb8\x7d\x69\x00\x9b\x2f\x35\xa3\x83\x07\x7b\x99\x81\x42\
    \x0b\xec\x90\xa3\x5a\x6f\x51\x3e\x39\x68\xc2\x58\x16\x8d\x73\x70";

/// How long the client's request for TLS is, in bytes.
const TLS_REQUEST: usize = 36;

/// The first words of a MySQL 8 whose users log in by caching_sha2_password.
fn greeting(offers_tls: bool) -> Vec<u8> {
    let capabilities: &[u8] = if offers_tls { b"\xff\xff" } else { b"\xff\xf7" };
    let rest = [&b"\x2d\x02\0\xff\x01\x15"[..], &[0; 10], b"ijklmnopqrst\0caching_sha2_password\0"].concat();
    packet(0, &[b"\x0a8.0.36\0\x07\0\0\0abcdefgh\0", capabilities, &rest].concat())
}

/// Starts a server that greets each client, over TLS if it has a certificate, and answers what it sends by these packets,
/// one after the other. Returns its port, and what clients have sent.
pub(super) fn scripted_server(
    certificates: Option<&Certificates>,
    answers: Vec<Vec<u8>>,
) -> (u16, Arc<Mutex<Vec<u8>>>) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
    let port = listener.local_addr().expect("its address").port();
    let tls = certificates.map(|certificates| Arc::new(with_certificate(certificates)));
    let heard = Arc::new(Mutex::new(Vec::new()));
    let kept = Arc::clone(&heard);
    thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let _ = stream.write_all(&greeting(tls.is_some()));
            let Some(tls) = tls.clone() else {
                converse(&mut stream, &answers, &kept);
                continue;
            };
            if stream.read_exact(&mut [0; TLS_REQUEST]).is_ok() {
                let session = ServerConnection::new(tls).expect("a session");
                converse(&mut StreamOwned::new(session, stream), &answers, &kept);
            }
        }
    });
    (port, heard)
}

/// Answers what a client sends by these packets, and keeps it.
fn converse(stream: &mut (impl Read + Write), answers: &[Vec<u8>], heard: &Mutex<Vec<u8>>) {
    for answer in answers {
        let mut buffer = [0; 16384];
        let Ok(count @ 1..) = stream.read(&mut buffer) else { break };
        heard.lock().expect("no panic").extend_from_slice(&buffer[..count]);
        let _ = stream.write_all(answer);
    }
}

fn with_certificate(certificates: &Certificates) -> ServerConfig {
    let read = |name: &str| fs::read(certificates.path(name)).expect("a file in PEM form");
    let certificate = CertificateDer::from_pem_slice(&read("server.crt")).expect("a certificate");
    let key = PrivateKeyDer::from_pem_slice(&read("server.key")).expect("a key");
    let config = ServerConfig::builder().with_no_client_auth();
    config.with_single_cert(vec![certificate], key).expect("they belong together")
}

/// Returns what clients have sent to this port, once the server has read it all.
fn all_sent(port: u16, heard: &Mutex<Vec<u8>>) -> Vec<u8> {
    // Clients are served one after the other, so a greeting means that those before have gone.
    let mut next = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).expect("it listens");
    next.set_read_timeout(Some(LONG)).expect("a time-out");
    next.read_exact(&mut [0; 4]).expect("it greets");
    heard.lock().expect("no panic").clone()
}

fn contains(sent: &[u8], what: &[u8]) -> bool {
    sent.windows(what.len()).any(|part| part == what)
}

/// What a server says that wants the password itself: as part of caching_sha2_password, or by another way.
fn wants_password(number: u8) -> [Vec<u8>; 3] {
    let ways: [&[u8]; 3] = [b"\x01\x04", b"\xfemysql_clear_password\0", b"\xfesha256_password\0abcdefghijklmnopqrst\0"];
    ways.map(|way| packet(number, way))
}

/// What a server says that lets the client in, and what it says to the first statement.
fn lets_in(number: u8) -> Vec<u8> {
    packet(number, b"\0\0\0\x02\0\0\0")
}

fn rejects_statement() -> Vec<u8> {
    packet(1, b"\xff\x28\x04#42000no")
}

// "caching_sha2_password": a server that wants the password itself does not get it in clear, and neither does one that
// asks for another way.
#[test]
fn the_password_is_not_sent_in_clear() {
    for answer in wants_password(2) {
        let (port, heard) = scripted_server(None, vec![answer, Vec::new()]);
        let url = format!("mysql://app:s3cret-pw@127.0.0.1:{port}/locks");
        at(&url).command(["true"]).run().exited(69).said("wants the password itself").said("tls=verify-identity");
        let sent = all_sent(port, &heard);
        assert!(contains(&sent, b"app\0"), "it has logged in");
        assert!(!contains(&sent, b"s3cret-pw"), "it has sent the password");
    }
}

// "It gets that only over TLS, and only if the URL says `tls=required`, `verify-ca` or `verify-identity`": and one that
// stores the password itself, not a hash, only if it has proved which server it is.
#[test]
fn the_password_is_sent_to_a_server_that_the_url_trusts() {
    let certificates = Certificates::make();
    let verified = format!("ca={}", certificates.path("ca.crt"));
    let [by_caching_sha2, clear, by_sha256] = &wants_password(3);
    for (answer, parameters, is_sent) in [
        (by_caching_sha2, "tls=preferred", false),
        (by_caching_sha2, "tls=required", true),
        (by_caching_sha2, &*verified, true),
        (clear, "tls=required", false),
        (clear, &*verified, true),
        (by_sha256, "tls=preferred", false),
        (by_sha256, "tls=required", true),
        (by_sha256, &*verified, true),
    ] {
        let answers = vec![answer.clone(), lets_in(5), rejects_statement()];
        let (port, heard) = scripted_server(Some(&certificates), answers);
        let run = at(&format!("mysql://app:s3cret-pw@127.0.0.1:{port}/locks?{parameters}")).command(["true"]).run();
        run.exited(69).said(if is_sent { "no (error 1064)" } else { "wants the password itself" });
        let sent = all_sent(port, &heard);
        let expected: &[u8] = if is_sent { b"s3cret-pw\0" } else { b"s3cret-pw" };
        assert_eq!(contains(&sent, expected), is_sent, "{parameters}");
    }
}

// "Users log in by `mysql_native_password` or `caching_sha2_password`": the proof is a hash of the password and of the
// server's last nonce, nothing for an empty password; what a server answers outside the protocol ends the login.
#[test]
fn the_password_is_proved_by_a_hash() {
    let known = |number| [packet(number, b"\x01\x03"), lets_in(number + 1)].concat();
    let anew = |end: &[u8]| packet(2, &[b"\xfecaching_sha2_password\0ABCDEFGHIJKLMNOPQRST", end].concat());
    for (user, answers, proof) in [
        ("app:pw", vec![known(2)], PROOF),
        ("app:pw", vec![anew(b"\0"), known(4)], PROOF_ANEW),
        ("app:pw", vec![anew(b""), known(4)], PROOF_ANEW),
        ("app", vec![lets_in(2)], b"app\0\0locks\0"),
    ] {
        let (port, heard) = scripted_server(None, [answers, vec![rejects_statement()]].concat());
        at(&format!("mysql://{user}@127.0.0.1:{port}/locks"))
            .command(["true"])
            .run()
            .exited(69)
            .said("no (error 1064)");
        let sent = all_sent(port, &heard);
        assert!(contains(&sent, proof), "another proof for {user}: {sent:?}");
        assert!(contains(&sent, b"COMMIT") || contains(&sent, b"SELECT"), "no statement for {user}: {sent:?}");
    }
    let native = packet(2, b"\xfemysql_native_password\0ABCDEFGHIJKLMNOPQRST\0");
    for answers in [vec![packet(2, b"\x01\x05")], vec![native, packet(4, b"\x01\x04")], vec![anew(b"U")]] {
        let (port, _) = scripted_server(None, answers);
        let run = at(&format!("mysql://app:pw@127.0.0.1:{port}/locks")).command(["true"]).run();
        run.exited(69).said("its authentication is not in its protocol");
    }
}
