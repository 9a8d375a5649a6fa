//! Certificates for tests, made by openssl(1).

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tempfile::TempDir;

/// The usual type of key.
pub(super) const ECDSA: &str = "ec -pkeyopt ec_paramgen_curve:prime256v1";

/// A directory of certificates and keys.
pub(super) struct Certificates(TempDir);

impl Certificates {
    /// Makes an authority, `ca`.
    pub(super) fn make() -> Self {
        let made = Certificates(TempDir::new().expect("a directory"));
        made.sign_itself("ca", ECDSA, "-addext basicConstraints=critical,CA:TRUE");
        made
    }

    /// Makes a self-signed certificate.
    pub(super) fn sign_itself(&self, name: &str, key: &str, options: &str) {
        self.openssl(&format!(
            "req -x509 -newkey {key} -nodes -days 2 -subj /CN=localhost {options} -keyout {name}.key -out {name}.crt"
        ));
    }

    /// Makes a certificate issued by the authority, with these lines of extensions. Without any it is of X.509 version
    /// 1.
    pub(super) fn issue(&self, name: &str, extensions: &[&str]) {
        self.openssl(&format!("req -newkey {ECDSA} -nodes -subj /CN=localhost -keyout {name}.key -out {name}.csr"));
        let mut sign =
            format!("x509 -req -in {name}.csr -CA ca.crt -CAkey ca.key -CAcreateserial -days 2 -out {name}.crt");
        if !extensions.is_empty() {
            fs::write(self.0.path().join("extensions"), extensions.join("\n")).expect("is written");
            sign += " -extfile extensions";
        }
        self.openssl(&sign);
    }

    pub(super) fn path(&self, file: &str) -> PathBuf {
        self.0.path().join(file)
    }

    pub(super) fn certificate(&self, name: &str) -> CertificateDer<'static> {
        CertificateDer::from_pem_file(self.path(&format!("{name}.crt"))).expect("is a certificate")
    }

    pub(super) fn key(&self, name: &str) -> PrivateKeyDer<'static> {
        PrivateKeyDer::from_pem_file(self.path(&format!("{name}.key"))).expect("is a key")
    }

    /// Runs openssl(1) in the directory, and returns what it prints.
    pub(super) fn openssl(&self, words: &str) -> Vec<u8> {
        let output = Command::new("openssl").args(words.split_whitespace()).current_dir(self.0.path()).output();
        let output = output.expect("openssl starts");
        assert!(output.status.success(), "openssl {words}: {}", String::from_utf8_lossy(&output.stderr));
        output.stdout
    }
}
