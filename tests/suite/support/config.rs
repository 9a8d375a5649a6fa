//! Configuration files for a test: the user's and the system's.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use tempfile::TempDir;

use super::lockrun::Lockrun;
use super::namespace::with_mounts;
use super::output::Output;
use super::processes::need_root;

/// A configuration directory of the test's own.
pub(crate) struct UserConfig(pub(crate) TempDir);

impl UserConfig {
    pub(crate) fn new() -> Self {
        Self(TempDir::new().expect("a temporary directory"))
    }

    /// Makes one with this text in the user's file.
    pub(crate) fn with(text: &str) -> Self {
        let place = Self::new();
        place.write(text, 0o600);
        place
    }

    pub(crate) fn file(&self) -> PathBuf {
        self.0.path().join("lockrun/config.toml")
    }

    pub(crate) fn write(&self, text: &str, mode: u32) {
        let file = self.file();
        fs::create_dir_all(file.parent().expect("a directory")).expect("it is made");
        fs::write(&file, text).expect("it is written");
        fs::set_permissions(&file, fs::Permissions::from_mode(mode)).expect("our own file");
    }

    /// Returns the file and a line of it, as messages name them.
    pub(crate) fn line(&self, line: usize) -> String {
        format!("{}:{line}: ", self.file().display())
    }

    /// Returns the call with this directory as `XDG_CONFIG_HOME`.
    pub(crate) fn of(&self, call: Lockrun) -> Lockrun {
        call.env("XDG_CONFIG_HOME", self.0.path())
    }

    pub(crate) fn bare(&self) -> Lockrun {
        self.of(Lockrun::bare())
    }
}

/// Calls that see another /etc, with a `lockrun.toml` in it.
pub(crate) struct System {
    entering: String,
    pub(crate) etc: TempDir,
}

impl System {
    #[track_caller]
    pub(crate) fn with(text: &str) -> Self {
        need_root("have an /etc of its own: to a user namespace, the way there belongs to another user");
        let etc = TempDir::new().expect("a temporary directory");
        fs::write(etc.path().join("lockrun.toml"), text).expect("a file");
        fs::copy("/etc/passwd", etc.path().join("passwd")).expect("there are users");
        Self { entering: with_mounts(&format!("mount --bind '{}' /etc", etc.path().display())), etc }
    }

    /// Runs `call` with these words added.
    pub(crate) fn run(&self, call: &Lockrun, words: &[&str]) -> Output {
        call.clone().args(words).in_shell(&self.entering).alone()
    }
}
