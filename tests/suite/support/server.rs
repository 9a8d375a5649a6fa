//! Commands that start servers: no server outlives its test.

use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::LazyLock;

use nix::unistd::{Uid, User};

use super::birth::Birth;
use super::processes::{PATH, find_program};

/// Returns a command for this program. It is killed when the thread that starts it ends, unless that happens within the
/// first few milliseconds.
///
/// setpriv(1) asks the kernel for that. With a closure that asks for it before exec, the standard library would copy
/// this process, with all its memory, for each server: that took 4 % of the tests' processor time.
pub(crate) fn server(program: &Path) -> Command {
    begin(&[], program)
}

/// Returns a command for this program, which runs in `directory`, in an environment of its own. It is killed when the
/// thread that starts it ends.
///
/// If the tests run as root, it runs as `nobody`, to whom the directory is given.
pub(crate) fn unprivileged(program: &Path, directory: &Path) -> Command {
    let mut command = match nobody() {
        None => begin(&[], program),
        Some(nobody) => {
            give(directory);
            let (uid, gid) = (nobody.uid.to_string(), nobody.gid.to_string());
            begin(&["--reuid", &uid, "--regid", &gid, "--clear-groups"], program)
        }
    };
    command.env_clear().env("PATH", PATH).env("LC_ALL", "C").current_dir(directory).stdin(Stdio::null());
    command
}

/// Returns a command for this program, under setpriv(1) with these further `options`.
fn begin(options: &[&str], program: &Path) -> Command {
    static SETPRIV: LazyLock<PathBuf> = LazyLock::new(|| find_program("setpriv"));
    let mut command = Command::new(&*SETPRIV);
    command.args(["--pdeathsig", "KILL"]).args(options).arg("--").arg(program);
    Birth::default().prepare(&mut command);
    command
}

/// Gives a file or a directory to the user who runs the servers.
pub(crate) fn give(path: &Path) {
    if let Some(nobody) = nobody() {
        chown(path, Some(nobody.uid.as_raw()), Some(nobody.gid.as_raw())).expect("we are root");
    }
}

fn nobody() -> Option<&'static User> {
    static NOBODY: LazyLock<Option<User>> = LazyLock::new(|| {
        let root = Uid::effective().is_root();
        root.then(|| User::from_name("nobody").expect("users can be looked up").expect("there is nobody"))
    });
    NOBODY.as_ref()
}
