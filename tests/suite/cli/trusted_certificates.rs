//! Whose files for TLS lockrun reads.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown, lchown, symlink};
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use crate::support::fake::{Fake, Manner};
use crate::support::lockrun::program_for_all;
use crate::support::processes::need_root;
use crate::support::refusal::marked;
use crate::support::tls::Certificates;
use crate::support::{Lockrun, Output};

/// The second user.
const OTHER: u32 = 65534;

/// A server that never answers, and files for TLS in a directory of their own.
struct Scene {
    server: Fake,
    place: TempDir,
}

impl Scene {
    fn make() -> Self {
        let (made, place) = (Certificates::make(), TempDir::new().expect("a temporary directory"));
        mode(place.path(), 0o755);
        fs::create_dir(place.path().join("tls")).expect("a directory");
        for (name, permissions) in [("ca.crt", 0o644), ("client.crt", 0o644), ("client.key", 0o600)] {
            let file = place.path().join("tls").join(name);
            fs::copy(made.path(name), &file).expect("a file");
            mode(&file, permissions);
        }
        Self { server: Fake::start(Manner::HangUp), place }
    }

    fn file(&self, name: &str) -> PathBuf {
        self.place.path().join("tls").join(name)
    }

    /// Returns the URL of each kind of store that can use TLS.
    fn urls(&self) -> Vec<String> {
        let place = format!("127.0.0.1:{}", self.server.port());
        let [ca, cert, key] = ["ca.crt", "client.crt", "client.key"].map(|name| self.file(name).display().to_string());
        let query = format!("ca={ca}&cert={cert}&key={key}");
        let libpqs = format!("sslmode=verify-full&sslrootcert={ca}&sslcert={cert}&sslkey={key}");
        vec![
            format!("rediss://{place}?{query}"),
            format!("rediss+sentinel://{place}/service?{query}"),
            format!("rediss+cluster://{place}?{query}"),
            format!("etcds://u:p@{place}?{query}"),
            format!("postgres://u:p@{place}/db?{query}"),
            format!("postgres://u:p@{place}/db?{libpqs}"),
        ]
    }

    /// Asserts that the file is refused, with this reason, before any server is asked, by a run and by another command.
    #[track_caller]
    fn is_refused(&self, file: &Path, why: &str) {
        let asked = self.server.connections();
        for url in self.urls() {
            let look = |output: Output| {
                output.exited(64).printed("").said("cannot use TLS: ").said(&file.display().to_string()).said(why);
            };
            look(marked(Lockrun::at(&url).key("k")));
            look(Lockrun::bare().arg("status").env("LOCKRUN_STORE", &url).run());
        }
        assert_eq!(self.server.connections(), asked, "a server was asked");
    }

    /// Asserts that the files are used: the server hangs up, which is another error.
    #[track_caller]
    fn is_used(&self) {
        for url in self.urls() {
            marked(Lockrun::at(&url).key("k").args(["--store-timeout", "2"])).exited(69).printed("");
        }
    }
}

fn mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("our own");
}

// "A configuration or store file is read only if its owner is the user or root and nobody else can write to it; else
// 64": the same holds for the files that decide which server is trusted, and for the directories and links on their
// path.
#[test]
fn files_for_tls_that_others_could_write_are_refused() {
    need_root("give files away");
    let scene = Scene::make();
    scene.is_used();
    for name in ["ca.crt", "client.crt", "client.key"] {
        let file = scene.file(name);
        let before = fs::metadata(&file).expect("it is there").permissions().mode() & 0o777;
        for open in [0o620, 0o602] {
            mode(&file, open);
            scene.is_refused(&file, "chmod go-w ");
        }
        mode(&file, before);
        chown(&file, Some(OTHER), None).expect("it is given away");
        scene.is_refused(&file, "belongs to uid 65534");
        chown(&file, Some(0), None).expect("it is taken back");
        let moved = scene.place.path().join("moved");
        fs::rename(&file, &moved).expect("our own");
        symlink(&moved, &file).expect("a link");
        scene.is_used();
        lchown(&file, Some(OTHER), None).expect("it is given away");
        scene.is_refused(&file, "belongs to uid 65534");
        fs::rename(&moved, &file).expect("our own");
    }
    let directory = scene.place.path().join("tls");
    mode(&directory, 0o777);
    scene.is_refused(&scene.file("ca.crt"), "chmod go-w ");
    mode(&directory, 0o1777);
    scene.is_used();
    chown(&directory, Some(OTHER), None).expect("it is given away");
    scene.is_refused(&scene.file("ca.crt"), "belongs to uid 65534");
}

// ... and for those that OpenSSL's variables name in place of the system's authorities.
#[test]
fn authorities_in_variables_that_others_could_write_are_refused() {
    need_root("give files away");
    let scene = Scene::make();
    let (file, directory) = (scene.file("ca.crt"), scene.place.path().join("tls"));
    let run = |variable: &str, path: &Path| {
        let url = format!("rediss://127.0.0.1:{}", scene.server.port());
        marked(Lockrun::at(&url).key("k").args(["--store-timeout", "2"]).env(variable, path))
    };
    let both = [("SSL_CERT_FILE", &file), ("SSL_CERT_DIR", &directory)];
    for (variable, path) in both {
        run(variable, path).exited(69);
        chown(path, Some(OTHER), None).expect("it is given away");
        run(variable, path).exited(64).printed("").said("cannot use TLS: ").said("belongs to uid 65534");
        chown(path, Some(0), None).expect("it is taken back");
    }
    mode(&directory, 0o1777);
    run("SSL_CERT_DIR", &directory).exited(64).printed("").said("others can write to it");
    run("SSL_CERT_DIR", Path::new("/no/such/directory")).exited(69);
}

// "A key that others can read is refused", as a password file is: but root may share one with a group.
#[test]
fn a_key_that_others_can_read_is_refused() {
    need_root("give files away");
    let scene = Scene::make();
    let key = scene.file("client.key");
    for open in [0o644, 0o604, 0o640 | 0o004, 0o444] {
        mode(&key, open);
        scene.is_refused(&key, "it is not for its owner alone");
        scene.is_refused(&key, "chmod 0640 ");
        scene.is_refused(&key, "; for a mounted secret set defaultMode: 0400 (Kubernetes) or mode: 0400 (Docker)");
    }
    for private in [0o600, 0o400, 0o640, 0o440] {
        mode(&key, private);
        scene.is_used();
    }
    // Another user's own key is for that user alone; root's may be the group's.
    let (_place, program) = program_for_all();
    let url = scene.urls().remove(0);
    let other = || {
        let words = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups", &program];
        let rest = ["--key", "k", "--store", &url, "--store-timeout", "2", "--", "echo", "ran"];
        Lockrun::bare().command(words.into_iter().chain(rest)).alone()
    };
    chown(&key, Some(0), Some(OTHER)).expect("a group's");
    mode(&key, 0o640);
    other().exited(69).printed("");
    chown(&key, Some(OTHER), Some(OTHER)).expect("it is given away");
    other().exited(64).printed("").said("chmod 0600 ");
    mode(&key, 0o600);
    other().exited(69).printed("");
    // A key from the caller, as from a secrets manager, has no mode of its own.
    chown(&key, Some(0), Some(0)).expect("it is taken back");
    mode(&key, 0o644);
    let piped = url.replace(&key.display().to_string(), "/dev/fd/3");
    let call = Lockrun::at(&piped).key("k").env("FILE", &key).command(["echo", "ran"]);
    call.in_shell("exec \"$@\" 3<\"$FILE\"").alone().exited(69).printed("");
}
