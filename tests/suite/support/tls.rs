//! Certificates for one test: of an authority, of a server and a client that it has issued, and of another authority.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::rc::Rc;

use tempfile::TempDir;

use super::processes::find_program;

/// The usual kind of key.
const ECDSA: &str = "ec -pkeyopt ec_paramgen_curve:prime256v1";

/// A directory of certificates and keys in PEM form.
#[derive(Clone)]
pub(crate) struct Certificates(Rc<TempDir>);

impl Certificates {
    pub(crate) fn make() -> Self {
        let made = Self(Rc::new(TempDir::new().expect("a temporary directory")));
        made.authority("ca", ECDSA);
        made.authority("untrusted", ECDSA);
        made.issue("server", "ca", "subjectAltName=IP:127.0.0.1,DNS:localhost");
        made.issue("elsewhere", "ca", "subjectAltName=DNS:elsewhere.test");
        made.issue("client", "ca", "extendedKeyUsage=clientAuth");
        made
    }

    /// Adds another authority, `modern`, which signs with Ed25519, and a server certificate that it has issued,
    /// `unbound`: the algorithm has no hash of its own, so no channel binding is defined.
    pub(crate) fn add_unbound(&self) {
        self.authority("modern", "ed25519");
        self.issue("unbound", "modern", "subjectAltName=IP:127.0.0.1,DNS:localhost");
    }

    /// Adds a client's certificate that the other authority has issued, `stranger`.
    pub(crate) fn add_stranger(&self) {
        self.issue("stranger", "untrusted", "extendedKeyUsage=clientAuth");
    }

    /// Returns the parameters of a URL with which a client verifies the servers, and presents its certificate.
    pub(crate) fn client_query(&self) -> String {
        format!("?ca={}&cert={}&key={}", self.path("ca.crt"), self.path("client.crt"), self.path("client.key"))
    }

    /// Returns the options with which a Redis server uses the certificates, and requires its clients' certificates.
    pub(crate) fn server_options(&self) -> Vec<String> {
        [
            ("--tls-cert-file", self.path("server.crt")),
            ("--tls-key-file", self.path("server.key")),
            ("--tls-ca-cert-file", self.path("ca.crt")),
        ]
        .into_iter()
        .flat_map(|(option, path)| [option.to_owned(), path])
        .chain(["--tls-auth-clients".to_owned(), "yes".to_owned()])
        .collect()
    }

    pub(crate) fn path(&self, name: &str) -> String {
        let path: PathBuf = self.0.path().join(name);
        path.to_str().expect("a plain path").to_owned()
    }

    fn authority(&self, name: &str, key: &str) {
        openssl(
            self.0.path(),
            &format!(
                "req -x509 -newkey {key} -nodes -days 2 -subj /CN={name} \
                 -addext basicConstraints=critical,CA:TRUE -keyout {name}.key -out {name}.crt"
            ),
        );
    }

    fn issue(&self, name: &str, authority: &str, extension: &str) {
        let directory = self.0.path();
        fs::write(directory.join(format!("{name}.ext")), format!("basicConstraints=CA:FALSE\n{extension}\n"))
            .expect("the extensions are written");
        openssl(directory, &format!("req -newkey {ECDSA} -nodes -subj /CN={name} -keyout {name}.key -out {name}.csr"));
        openssl(
            directory,
            &format!(
                "x509 -req -in {name}.csr -CA {authority}.crt -CAkey {authority}.key -CAcreateserial -days 2 \
                 -extfile {name}.ext -out {name}.crt"
            ),
        );
    }
}

fn openssl(directory: &Path, words: &str) {
    let output = Command::new(find_program("openssl"))
        .args(words.split_whitespace())
        .current_dir(directory)
        .output()
        .expect("openssl starts");
    assert!(output.status.success(), "openssl {words}: {}", String::from_utf8_lossy(&output.stderr));
}
