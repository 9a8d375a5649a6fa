//! The directories above the lock directory: a user who can write to one of them can replace the next one, and then
//! some runs lock here and others there.

use std::path::Path;

use nix::unistd::geteuid;

use crate::store::diagnostic::Diagnostic;
use crate::sys::ancestors::{GROUP_WRITES, OTHERS_WRITE, STICKY, Step, walk};
use crate::text::escape::escaped_path;
use crate::text::shell::path_word;

/// Checks each directory and symbolic link above `directory`, but not that itself.
pub(super) fn diagnose(directory: &Path) -> Vec<Diagnostic> {
    let steps = match walk(directory) {
        Ok((mut steps, _)) => {
            steps.pop();
            steps
        }
        Err(error) => {
            let text = format!("cannot look at the directories above {}: {error}", directory.display());
            return vec![Diagnostic::note(text, "see with namei -l that nobody else can write to one of them")];
        }
    };
    let us = geteuid().as_raw();
    let found: Vec<Diagnostic> = steps.iter().filter_map(|step| judge(step, us)).collect();
    if found.is_empty() { vec![Diagnostic::ok("nobody else can write to a directory above it")] } else { found }
}

/// Returns what is wrong with a step for the user `us`, if anything. Root may own or write it, because root can do
/// everything anyway.
fn judge(step: &Step, us: u32) -> Option<Diagnostic> {
    let Step { path, is_link, owner, group, mode } = step;
    let (path, named) = (escaped_path(path), path_word(path));
    let kind = if *is_link { "symbolic link" } else { "directory" };
    // In a sticky directory only the owners of an entry and of the directory can replace the entry, and the owner of
    // every step is checked.
    let writes = |bits: u32| !is_link && mode & bits != 0 && mode & STICKY == 0;
    if *owner != 0 && *owner != us {
        Some(Diagnostic::fail(
            format!("the {kind} {path} on the way to the locks belongs to uid {owner}"),
            "that user can replace the lock directory, and then two runs can hold one lock; name one elsewhere",
        ))
    } else if writes(OTHERS_WRITE) {
        Some(Diagnostic::fail(
            format!("every user can write to {path}, above the locks (mode {:03o})", mode & 0o7777),
            format!(
                "any of them can replace the lock directory, and then two runs can hold one lock; chmod o-w {named}"
            ),
        ))
    } else if writes(GROUP_WRITES) && *group != 0 {
        Some(Diagnostic::warn(
            format!("the group with gid {group} can write to {path}, above the locks (mode {:03o})", mode & 0o7777),
            format!("its other members can replace the lock directory; chmod g-w {named}"),
        ))
    } else if *is_link {
        Some(Diagnostic::warn(
            format!("the way to the locks leads through the symbolic link {path}"),
            "when it is pointed elsewhere while a lock is held, the next run gets the lock too; name the directory by its real path",
        ))
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::diagnostic::Level;

    fn level(is_link: bool, owner: u32, group: u32, mode: u32) -> Option<Level> {
        judge(&Step { path: "/x".into(), is_link, owner, group, mode }, 1000).map(|diagnostic| diagnostic.level)
    }

    #[test]
    fn a_user_who_can_replace_the_directory_is_found() {
        assert_eq!(level(false, 0, 0, 0o755), None);
        assert_eq!(level(false, 1000, 1000, 0o700), None);
        assert_eq!(level(false, 0, 0, 0o1777), None);
        assert_eq!(level(false, 0, 0, 0o777), Some(Level::Fail));
        assert_eq!(level(false, 1001, 0, 0o755), Some(Level::Fail));
        assert_eq!(level(false, 1000, 1000, 0o775), Some(Level::Warn));
        assert_eq!(level(false, 0, 0, 0o775), None);
    }

    #[test]
    fn links_are_reported() {
        assert_eq!(level(true, 0, 0, 0o777), Some(Level::Warn));
        assert_eq!(level(true, 1001, 0, 0o777), Some(Level::Fail));
    }
}
