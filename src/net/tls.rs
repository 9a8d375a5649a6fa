//! TLS: trusted authorities, the client's certificate, and the handshake.

use std::env;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::client::WantsClientCert;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, ConfigBuilder, Error, RootCertStore, StreamOwned};

use super::endpoint::{Endpoint, TlsFiles};
use super::stream::DeadlineSocket;
use super::tls_error::{explained, in_words};
use super::verifier::NamelessVerifier;
use crate::sys::input;
use crate::sys::trust::{check_directory, is_refusal};
use crate::text::escape::typed_path;

/// What a server's certificate must prove, besides that the server has its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verification {
    /// That a trusted authority has issued it for the server's name, or for its IP address if the URL has an address.
    /// The name must be among the certificate's alternative names: its common name does not count.
    Full,
    /// That a trusted authority has issued it, for any name.
    Authority,
    /// Nothing. The connection is encrypted, but an impostor in between could read it.
    None,
}

/// The configuration for handshakes with all servers of a store. Its files are read once: a run may connect to another
/// server long after they were replaced, and a pipe can be read only once.
#[derive(Clone)]
pub struct Tls(Arc<ClientConfig>);

impl Tls {
    /// Prepares TLS with these `servers` of a store. Fails if no certificate can be for the name of one of them, and as
    /// [`Tls::new`] does.
    pub fn for_servers<'a>(
        servers: impl IntoIterator<Item = &'a Endpoint>,
        files: &TlsFiles,
        verification: Verification,
    ) -> Result<Self, String> {
        for server in servers {
            if let Endpoint::Tcp { host, .. } = server {
                server_name(host).map_err(|why| format!("the store's host {why}"))?;
            }
        }
        Tls::new(files, verification)
    }

    /// Reads the files that the `verification` needs. The error names the faulty one.
    pub fn new(files: &TlsFiles, verification: Verification) -> Result<Self, String> {
        let config = config(files, verification).map_err(|error| format!("cannot use TLS: {error}"))?;
        Ok(Tls(Arc::new(config)))
    }

    /// Performs the handshake with `host` over `socket`, within its deadline. Fails with what [`explained`] returns.
    pub fn handshake(
        &self,
        host: &str,
        mut socket: DeadlineSocket,
    ) -> io::Result<StreamOwned<ClientConnection, DeadlineSocket>> {
        let mut session = self.session(host)?;
        while session.is_handshaking() {
            session.complete_io(&mut socket).map_err(|error| why_failed(&mut session, &mut socket, error))?;
        }
        Ok(StreamOwned::new(session, socket))
    }

    /// Starts a handshake with `host`, which [`Tls::continue_handshake`] continues without blocking. Fails if no
    /// certificate can be for such a name.
    pub fn session(&self, host: &str) -> io::Result<ClientConnection> {
        let name = server_name(host).map_err(|why| io::Error::other(format!("its name {why}")))?;
        ClientConnection::new(Arc::clone(&self.0), name).map_err(io::Error::other)
    }

    /// Continues a handshake without waiting. Returns whether it is complete. After the deadline of the `socket` it
    /// fails as [`Tls::handshake`] does.
    pub fn continue_handshake(session: &mut ClientConnection, socket: &mut DeadlineSocket) -> io::Result<bool> {
        while session.is_handshaking() {
            let done = socket.without_waiting(|socket| session.complete_io(socket));
            match done {
                Err(error) if error.kind() == io::ErrorKind::TimedOut && !socket.is_late() => return Ok(false),
                done => drop(done.map_err(|error| why_failed(session, socket, error))?),
            }
        }
        Ok(true)
    }
}

/// Returns the host as a name for which a certificate can be. Fails if none can, and says why.
fn server_name(host: &str) -> Result<ServerName<'static>, String> {
    ServerName::try_from(host.to_owned()).map_err(|error| format!("{host:?} cannot be in a certificate: {error}"))
}

/// Returns why a handshake failed with `error`.
fn why_failed(session: &mut ClientConnection, socket: &mut DeadlineSocket, error: io::Error) -> io::Error {
    explained(tls_error_behind(session, socket, error))
}

/// Returns the TLS error behind `error`, which an operation on `socket` returned; `error` itself if there is none.
///
/// A server that rejects a certificate sends an alert and closes the connection, often before it has read everything
/// from the client. The client's next write then fails, although the alert has arrived.
pub fn tls_error_behind(session: &mut ClientConnection, socket: &mut DeadlineSocket, error: io::Error) -> io::Error {
    if !matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset) {
        return error;
    }
    while let Ok(1..) = session.read_tls(socket) {
        if let Err(reason) = session.process_new_packets() {
            return io::Error::new(io::ErrorKind::InvalidData, reason);
        }
    }
    error
}

/// Builds the configuration from the PEM files.
fn config(files: &TlsFiles, verification: Verification) -> io::Result<ClientConfig> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let algorithms = provider.signature_verification_algorithms;
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(io::Error::other)?;
    let authorities = match verification {
        Verification::Full => return with_identity(builder.with_root_certificates(authorities(files)?), files),
        Verification::Authority => Some(authorities(files)?),
        Verification::None => None,
    };
    let verifier = Arc::new(NamelessVerifier { authorities, algorithms });
    with_identity(builder.dangerous().with_custom_certificate_verifier(verifier), files)
}

/// Returns the trusted authorities: those in the file, or the system's.
fn authorities(files: &TlsFiles) -> io::Result<RootCertStore> {
    let mut trusted = RootCertStore::empty();
    if let Some(path) = &files.ca {
        for certificate in certificates(path)? {
            trusted.add(certificate).map_err(|error| bad_file(path, &in_words(&error)))?;
        }
    } else {
        check_variables()?;
        trusted.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    }
    Ok(trusted)
}

/// Fails if a second user could change the authorities that OpenSSL's variables name in place of the system's.
fn check_variables() -> io::Result<()> {
    let named = |variable| env::var_os(variable).filter(|value| !value.is_empty()).unwrap_or_default();
    let (file, directories) = (PathBuf::from(named("SSL_CERT_FILE")), named("SSL_CERT_DIR"));
    // Another error shows when the authorities are read.
    if let Err(error) = input::check_trusted(&file)
        && is_refusal(&error)
    {
        return Err(bad_file(&file, &error));
    }
    for directory in env::split_paths(&directories).filter(|path| !path.as_os_str().is_empty()) {
        check_directory(&directory).map_err(|error| bad_file(&directory, &error))?;
    }
    Ok(())
}

/// Completes the configuration with the client's certificate, if there is one.
fn with_identity(builder: ConfigBuilder<ClientConfig, WantsClientCert>, files: &TlsFiles) -> io::Result<ClientConfig> {
    match &files.identity {
        None => Ok(builder.with_no_client_auth()),
        Some((certificate, key)) => {
            let chain = certificates(certificate)?;
            let pem = input::read_secret_file_or_pipe(key).map_err(|error| bad_file(key, &error))?;
            let secret =
                PrivateKeyDer::from_pem_slice(&pem).map_err(|error| bad_file(key, &why_no_key(&pem, &error)))?;
            builder.with_client_auth_cert(chain, secret).map_err(|error| match error {
                Error::InvalidCertificate(_) | Error::InconsistentKeys(_) => bad_file(certificate, &in_words(&error)),
                _ => bad_file(key, &"it is damaged, or not a key of RSA, ECDSA (P-256 or P-384) or Ed25519"),
            })
        }
    }
}

/// Returns the certificates in a PEM file. Fails if there is none.
fn certificates(path: &Path) -> io::Result<Vec<CertificateDer<'static>>> {
    let pem = input::read_trusted_file_or_pipe(path).map_err(|error| bad_file(path, &error))?;
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&pem).collect();
    match found {
        Ok(found) if found.is_empty() => Err(bad_file(path, &"it contains no certificate")),
        Ok(found) => Ok(found),
        Err(_) => Err(bad_file(path, &NO_PEM)),
    }
}

/// What is wrong with a file that is not in PEM form.
const NO_PEM: &str = "it is damaged, or not in PEM form";

/// Returns what is wrong with the file of a private key, in which none was found.
fn why_no_key(file: &[u8], error: &pem::Error) -> &'static str {
    match error {
        // "BEGIN ENCRYPTED PRIVATE KEY", or "Proc-Type: 4,ENCRYPTED".
        _ if file.windows(9).any(|part| part == b"ENCRYPTED") => {
            "the key is encrypted, and lockrun asks for no passphrase; decrypt it with openssl pkey -in FILE -out NEW, \
             for the owner alone to read"
        }
        pem::Error::NoItemsFound => "it contains no private key",
        _ => NO_PEM,
    }
}

fn bad_file(path: &Path, why: &dyn std::fmt::Display) -> io::Error {
    io::Error::other(format!("{}: {why}", typed_path(path)))
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::fs::PermissionsExt as _;
    use std::os::unix::net::UnixStream;
    use std::thread;
    use std::time::Duration;

    use rustls::server::{ClientHello, ResolvesServerCert};
    use rustls::sign::CertifiedKey;
    use rustls::version::{TLS12, TLS13};
    use rustls::{ServerConfig, ServerConnection, SupportedProtocolVersion};

    use super::*;
    use crate::net::stream::{Socket, Stream};
    use crate::net::testing::{Certificates, ECDSA};
    use crate::net::tls_error::certificate_alert;
    use crate::sys::clock::Moment;

    /// Presents a certificate, whether or not it has the certificate's key.
    #[derive(Debug)]
    struct Presents(Arc<CertifiedKey>);

    impl ResolvesServerCert for Presents {
        fn resolve(&self, _hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
            Some(Arc::clone(&self.0))
        }
    }

    /// Connects with `tls` to a server with this `name`, which presents the `certificate` and has the key of `key`.
    fn connect(
        tls: &Tls,
        name: &str,
        made: &Certificates,
        certificate: &str,
        key: &str,
        version: &'static SupportedProtocolVersion,
    ) -> io::Result<Stream> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let key = provider.key_provider.load_private_key(made.key(key)).expect("is a key");
        let presented = Presents(Arc::new(CertifiedKey::new(vec![made.certificate(certificate)], key)));
        let config = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[version])
            .expect("is supported")
            .with_no_client_auth()
            .with_cert_resolver(Arc::new(presented));
        let (ours, mut theirs) = UnixStream::pair().expect("a pair of sockets");
        ours.set_nonblocking(true).expect("is set");
        let server = thread::spawn(move || {
            let mut session = ServerConnection::new(Arc::new(config)).expect("starts");
            while session.is_handshaking() && session.complete_io(&mut theirs).is_ok() {}
        });
        let deadline = Moment::now() + Duration::from_mins(1);
        let connected = Stream::Plain(DeadlineSocket::new(Socket::Unix(ours), deadline)).upgrade(tls, name);
        server.join().expect("ends");
        connected
    }

    #[test]
    fn each_verification_asks_for_what_it_says() {
        let made = Certificates::make();
        made.issue("named", &["subjectAltName=DNS:localhost"]);
        made.issue("numbered", &["subjectAltName=IP:127.0.0.1"]);
        made.issue("other", &["subjectAltName=DNS:elsewhere,IP:127.0.0.2"]);
        // An IP address given as a DNS name, and a name only where it does not count.
        made.issue("mistaken", &["subjectAltName=DNS:127.0.0.1"]);
        made.issue("common", &["basicConstraints=CA:FALSE"]);
        made.issue("first", &[]);
        made.sign_itself("untrusted", ECDSA, "-addext subjectAltName=DNS:localhost,IP:127.0.0.1");
        let files = TlsFiles { ca: Some(made.path("ca.crt")), identity: None };
        for (certificate, names, by_authority) in [
            ("named", &["localhost"][..], true),
            ("numbered", &["127.0.0.1"], true),
            ("other", &[], true),
            ("mistaken", &[], true),
            ("common", &[], true),
            ("first", &[], false),
            ("untrusted", &[], false),
        ] {
            for name in ["localhost", "127.0.0.1"] {
                for version in [&TLS12, &TLS13] {
                    let accepts = |verification| {
                        let tls = Tls::new(&files, verification).expect("is right");
                        connect(&tls, name, &made, certificate, certificate, version).is_ok()
                    };
                    let case = format!("{certificate} as {name}, {:?}", version.version);
                    assert_eq!(accepts(Verification::Full), names.contains(&name), "{case}");
                    assert_eq!(accepts(Verification::Authority), by_authority, "{case}");
                    // Before TLS 1.3, rustls must parse the certificate.
                    assert_eq!(accepts(Verification::None), certificate != "first" || *version == TLS13, "{case}");
                }
            }
        }
    }

    #[test]
    fn a_certificate_is_rejected_in_words() {
        let made = Certificates::make();
        made.issue("first", &[]);
        made.issue("other", &["subjectAltName=DNS:elsewhere,IP:127.0.0.2"]);
        made.issue("common", &["basicConstraints=CA:FALSE"]);
        made.issue("client", &["subjectAltName=DNS:localhost", "extendedKeyUsage=clientAuth"]);
        let files = TlsFiles { ca: Some(made.path("ca.crt")), identity: None };
        let tls = Tls::new(&files, Verification::Full).expect("is right");
        for (certificate, why) in [
            ("first", "the certificate is of X.509 version 1"),
            ("ca", "the certificate is an authority's own"),
            ("other", "the certificate is not valid for localhost, but for elsewhere, 127.0.0.2"),
            ("common", "the certificate is not valid for localhost, but for no name"),
            ("client", "the certificate is not for this purpose (extendedKeyUsage)"),
        ] {
            let rejected = connect(&tls, "localhost", &made, certificate, certificate, &TLS13).err();
            let error = rejected.expect("is rejected").to_string();
            assert!(error.starts_with(why), "{certificate}: {error}");
        }
    }

    #[test]
    fn a_bad_file_is_rejected_in_words() {
        let made = Certificates::make();
        made.issue("client", &["extendedKeyUsage=clientAuth"]);
        made.openssl("ec -in client.key -aes128 -passout pass:secret -out old.key");
        made.openssl("pkcs8 -topk8 -in client.key -passout pass:secret -out new.key");
        made.openssl("genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-521 -out p521.key");
        std::fs::write(made.path("damaged.key"), "-----BEGIN PRIVATE KEY-----\nno-key\n").expect("is written");
        let private = std::fs::Permissions::from_mode(0o600);
        for name in ["old.key", "new.key", "p521.key", "damaged.key", "client.crt"] {
            std::fs::set_permissions(made.path(name), private.clone()).expect("our own");
        }
        for (certificate, key, why) in [
            ("client.crt", "old.key", "old.key: the key is encrypted"),
            ("client.crt", "new.key", "new.key: the key is encrypted"),
            ("client.crt", "client.crt", "client.crt: it contains no private key"),
            ("client.crt", "damaged.key", "damaged.key: it is damaged, or not in PEM form"),
            ("client.crt", "p521.key", "p521.key: it is damaged, or not a key of RSA, ECDSA (P-256 or P-384)"),
            ("client.crt", "ca.key", "client.crt: the key is not that of the certificate"),
            ("client.key", "client.key", "client.key: it contains no certificate"),
        ] {
            let files = TlsFiles { ca: None, identity: Some((made.path(certificate), made.path(key))) };
            let error = Tls::new(&files, Verification::None).err().expect("is rejected");
            assert!(error.contains(why), "{certificate} and {key}: {error}");
        }
    }

    #[test]
    fn a_server_must_always_have_the_key_of_its_certificate() {
        let made = Certificates::make();
        made.issue("server", &["subjectAltName=DNS:localhost"]);
        made.issue("impostor", &["subjectAltName=DNS:localhost"]);
        let files = TlsFiles { ca: Some(made.path("ca.crt")), identity: None };
        for verification in [Verification::Full, Verification::Authority, Verification::None] {
            for version in [&TLS12, &TLS13] {
                let tls = Tls::new(&files, verification).expect("is right");
                let connected = |key| connect(&tls, "localhost", &made, "server", key, version);
                let bound = connected("server").expect("has its key").server_end_point();
                assert_eq!(bound.map(|hash| hash.len()), Some(32), "{verification:?} {version:?}");
                let refused = connected("impostor").err().expect("is an impostor").to_string();
                assert!(refused.contains("bad signature"), "{refused}");
            }
        }
    }

    #[test]
    fn an_alert_is_read_although_writing_fails() {
        let no_files = TlsFiles { ca: None, identity: None };
        let tls = Tls::new(&no_files, Verification::None).expect("is right");
        let (ours, mut theirs) = UnixStream::pair().expect("a pair of sockets");
        ours.set_nonblocking(true).expect("is set");
        // RFC 8446, sections 5.1 and 6: a record of type alert; fatal, unknown_ca.
        theirs.write_all(&[21, 3, 3, 0, 2, 2, 48]).expect("is sent");
        drop(theirs);
        let stream = DeadlineSocket::new(Socket::Unix(ours), Moment::now() + Duration::from_mins(1));
        let error = tls.handshake("localhost", stream).err().expect("is rejected");
        assert_eq!(certificate_alert(&error).as_deref(), Some("UnknownCA"), "{error}");
    }

    #[test]
    fn only_the_files_that_are_needed_are_read() {
        let missing = TlsFiles { ca: Some("/does/not/exist".into()), identity: None };
        assert!(Tls::new(&missing, Verification::None).is_ok());
        for verification in [Verification::Full, Verification::Authority] {
            let why = Tls::new(&missing, verification).err().expect("is missing");
            assert!(why.contains("/does/not/exist"), "{why}");
        }
        let missing = TlsFiles { ca: None, identity: Some(("/no/cert".into(), "/no/key".into())) };
        assert!(Tls::new(&missing, Verification::None).err().expect("is missing").contains("/no/cert"));
    }
}
