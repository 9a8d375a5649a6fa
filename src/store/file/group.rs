//! The group whose members share a lock directory.

use std::fmt;

use nix::unistd::{Gid, getegid, geteuid, getgroups};

use crate::sys::accounts;
use crate::text::escape::{escaped, without_user};

/// A group of users.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Group {
    gid: Gid,
    name: Option<String>,
}

impl Group {
    /// Finds a group by name, or by number: a text of digits is always a number. The error says what is wrong.
    pub(super) fn find(name: &str) -> Result<Self, String> {
        if name.bytes().all(|byte| byte.is_ascii_digit()) {
            // In system calls the greatest number means "no group".
            let number = name.parse().ok().filter(|number| *number != u32::MAX);
            let gid = number.ok_or_else(|| format!("the store's group {name} is not the number of a group"))?;
            return Ok(Self::numbered(gid));
        }
        match accounts::group_named(name) {
            Some(gid) => Ok(Group { gid, name: Some(name.to_owned()) }),
            None => Err(format!(
                "the store's group {:?} is not in /etc/group; name one that is, or give the number of one that a directory \
                 service knows (getent group NAME)",
                without_user(name)
            )),
        }
    }

    /// Returns the group with this number.
    pub(super) fn numbered(gid: u32) -> Self {
        let gid = Gid::from_raw(gid);
        Group { gid, name: accounts::group_name(gid) }
    }

    /// Returns its number.
    pub(super) fn gid(&self) -> u32 {
        self.gid.as_raw()
    }

    /// Returns the group as it is written in a URL or for chown(1).
    pub(super) fn spelled(&self) -> String {
        self.name.as_deref().map_or_else(|| self.gid.to_string(), escaped)
    }

    /// Returns whether this process has the rights of a member. Root always counts as one.
    pub(super) fn includes_us(&self) -> nix::Result<bool> {
        Ok(geteuid().is_root() || getegid() == self.gid || getgroups()?.contains(&self.gid))
    }
}

/// Formats the group for messages, as in `the group "deploy" (gid 1001)`.
impl fmt::Display for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.name {
            Some(name) => write!(f, "the group \"{}\" (gid {})", escaped(name), self.gid),
            None => write!(f, "the group with gid {}", self.gid),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_is_found_by_name_or_number() {
        assert_eq!(Group::find("0").expect("a number").gid(), 0);
        assert_eq!(Group::find("root").expect("every machine has it").gid(), 0);
        assert_eq!(Group::find("4294967294").expect("a number").spelled(), "4294967294");
        for wrong in ["4294967295", "99999999999", "no such group", "root:x", "-1"] {
            assert!(Group::find(wrong).expect_err(wrong).contains(wrong));
        }
    }
}
