//! Users other than the one who runs the tests. Their uids are not in use on any usual machine.

use tempfile::TempDir;

use super::lockrun::{Lockrun, program_for_all};
use super::processes::need_root;

/// A user with some groups, and a copy of the program that this user can execute.
pub(crate) struct User {
    setpriv: Vec<String>,
    program: String,
    _place: TempDir,
}

impl User {
    /// Returns the user with this uid, a primary group of the same number, and these further `groups`.
    #[track_caller]
    pub(crate) fn new(uid: u32, groups: &[u32]) -> Self {
        need_root("become another user");
        let (place, program) = program_for_all();
        let uid = uid.to_string();
        let groups = groups.iter().map(u32::to_string).collect::<Vec<_>>().join(",");
        let mut setpriv = vec!["setpriv", "--reuid", &uid, "--regid", &uid];
        match &*groups {
            "" => setpriv.push("--clear-groups"),
            groups => setpriv.extend(["--groups", groups]),
        }
        let setpriv = setpriv.into_iter().map(str::to_owned).collect();
        Self { setpriv, program, _place: place }
    }

    /// Returns the words that precede lockrun's arguments in a call by this user. The words in `before` are a program
    /// that executes lockrun.
    pub(crate) fn words(&self, before: &[&str]) -> Vec<String> {
        let before = before.iter().map(|&word| word.to_owned());
        self.setpriv.iter().cloned().chain(before).chain([self.program.clone()]).collect()
    }

    /// Returns the same call by this user, to start with `alone` or the like.
    pub(crate) fn call(&self, call: &Lockrun) -> Lockrun {
        call.in_shell(&format!("shift; exec {} \"$@\"", self.words(&[]).join(" ")))
    }
}
