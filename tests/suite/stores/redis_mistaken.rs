//! Servers that are not what the URL says: the message says what to change in it.

use crate::support::failover::{Service, SingleNode};
use crate::support::proxy::Proxy;
use crate::support::tls::Certificates;
use crate::support::{LeaseServer, Lockrun, Redis};

/// Asserts that neither a run nor `doctor` can use the store, and that both give this advice, but repeat no script.
#[track_caller]
fn is_advised(url: &str, advice: &str) {
    // At once, because a server without TLS answers no hello: both wait for the time-out.
    let run = Lockrun::at(url).key("mistaken").command(["echo", "ran"]).spawn();
    let doctor = Lockrun::bare().args(["doctor", "--store", url]).run().exited(69).silent();
    let run = run.wait().exited(69).printed("").said(advice);
    assert!(doctor.stdout().contains(advice), "{advice} in {doctor}");
    for text in [run.stderr(), doctor.stdout()] {
        assert!(!text.contains("with args"), "{text}");
    }
}

/// Asserts what is said of a server without TLS, of one that has only TLS, and of one that wants another certificate, by
/// URLs of this kind and path. None of them comes as far as to notice that this Redis is no Sentinel and no node.
#[track_caller]
fn encryption_and_certificates(kind: &str, path: &str) {
    let (redis, plain) = (Redis::with_tls(), Redis::start());
    let files = redis.certificates();
    files.add_stranger();
    let verified = format!("?ca={}", files.path("ca.crt"));
    let as_stranger = format!("{verified}&cert={}&key={}", files.path("stranger.crt"), files.path("stranger.key"));
    let with_tls = |port: u16, query: &str| format!("rediss{kind}://127.0.0.1:{port}{path}{query}");
    is_advised(&format!("redis{kind}://127.0.0.1:{}{path}", redis.port()), &format!("write rediss{kind}:// in"));
    is_advised(&with_tls(plain.port(), &verified), &format!("write redis{kind}:// if it has none"));
    is_advised(&with_tls(redis.port(), &verified), "requires a certificate of its clients");
    is_advised(&with_tls(redis.port(), &as_stranger), "rejects the client's certificate (TLS alert UnknownCA)");
    // It does not pass by itself, and nothing was requested: it is asked once, also by a run that would wait.
    let proxy = Proxy::before(&redis);
    let url = with_tls(proxy.port(), &as_stranger);
    Lockrun::at(&url).key("mistaken").arg("--wait").command(["true"]).run().exited(69);
    assert_eq!(proxy.connections(), 1);
}

#[test]
fn encryption_and_certificates_of_a_redis() {
    encryption_and_certificates("", "");
}

#[test]
fn encryption_and_certificates_of_a_sentinel() {
    encryption_and_certificates("+sentinel", "/locks");
}

#[test]
fn encryption_and_certificates_of_a_node() {
    encryption_and_certificates("+cluster", "");
}

// In TLS 1.3 a server says that it wants a certificate; one of before that only ends the handshake.
#[test]
fn a_certificate_is_wanted_before_tls_1_3() {
    let redis = Redis::with_certificates(&Certificates::make(), &["--tls-protocols", "TLSv1.2"]);
    let url = format!("rediss://127.0.0.1:{}?ca={}", redis.port(), redis.certificates().path("ca.crt"));
    is_advised(&url, "requires a certificate of its clients, give one with cert=FILE");
}

// A Sentinel where a Redis is expected, and a Redis where a Sentinel or a node is.
#[test]
fn a_server_of_another_kind() {
    let (service, redis) = (Service::alone(), Redis::start());
    let (sentinel, redis) = (service.sentinels()[0].port(), redis.port());
    // Also if the URL has a database, which a Sentinel does not know, or a password, which it does not need.
    for path in ["", "/3"] {
        is_advised(&format!("redis://127.0.0.1:{sentinel}{path}"), "write redis+sentinel://HOST/SERVICE");
    }
    let with_password = Lockrun::at(&format!("redis://:pw@127.0.0.1:{sentinel}")).key("mistaken").command(["true"]);
    with_password.run().exited(69).said("write redis+sentinel://HOST/SERVICE");
    let node = SingleNode::start();
    is_advised(
        &format!("redis://127.0.0.1:{}/3", node.server().port()),
        "it is a node of a cluster: write redis+cluster://",
    );
    is_advised(&Service::url_naming(&[redis]), "it is not a Sentinel: name the port of one, or write redis://");
    is_advised(&format!("redis+cluster://127.0.0.1:{redis}"), "it is not a node of a cluster: write redis://");
    is_advised(&format!("redis+cluster://127.0.0.1:{sentinel}"), "it is not a node of a cluster: name the port of one");
}
