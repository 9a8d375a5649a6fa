//! The URL of a directory of lock files.

use std::path::PathBuf;
use std::time::Duration;

use super::FileStore;
use super::access::Access;
use super::directory::default_path;
use super::group::Group;
use crate::store::url::{AFTER_PATHS, Parameters, check_separators, decoded_path, refuse_if, split_query};
use crate::store::{Backend, Kind, Location};

pub(in crate::store) const KIND: Kind =
    Kind { schemes: &["file:"], parameters: &["group"], has_leases: false, parse: |url| Ok(Box::new(parse(url)?)) };

/// A directory (`None`: the default one), and the group that shares it, if one does.
#[derive(Debug, PartialEq, Eq)]
struct FileAddress(Option<PathBuf>, Option<String>);

impl Location for FileAddress {
    fn open(&self, _: Duration) -> Result<Box<dyn Backend>, String> {
        let access = match self {
            FileAddress(None, _) => Access::Owner,
            FileAddress(Some(_), None) => Access::OwnerOfNamed,
            FileAddress(Some(_), Some(group)) => Access::Group(Group::find(group)?),
        };
        Ok(Box::new(FileStore::new(self.0.clone(), access)))
    }

    fn name(&self) -> Option<String> {
        let default = if self.0.is_none() { default_path().ok() } else { None };
        default.map(|path| format!("file:{}", path.display()))
    }
}

/// Reads a URL that begins with `file:`.
fn parse(url: &str) -> Result<FileAddress, String> {
    let rest = url.strip_prefix("file:").unwrap_or(url);
    let (place, query) = split_query(rest)?;
    let path = place.strip_prefix("//").unwrap_or(place);
    let mut parameters = Parameters::read(query)?;
    let group = parameters.take("group");
    parameters.none_left(None).map_err(|why| format!("{why} (write %3F for a ? in the path)"))?;
    refuse_if(group.as_deref() == Some(""), "has no group after group=; write file:/DIR?group=NAME")?;
    if path.is_empty() && !place.starts_with("//") {
        return match group {
            None => Ok(FileAddress(None, None)),
            Some(_) => Err("has a group, and the default directory is one user's; write file:/DIR?group=NAME".into()),
        };
    }
    check_separators(path, "path", AFTER_PATHS)?;
    let path = decoded_path(path);
    refuse_if(
        path.starts_with("~"),
        "begins with ~, which only a shell expands, and only at the beginning of a word; write file:/DIR",
    )?;
    refuse_if(!path.is_absolute(), "is not an absolute path; write file:/DIR, or file: for the default directory")?;
    Ok(FileAddress(Some(path), group))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_read() {
        let named = |path: &str, group: Option<&str>| Ok(FileAddress(Some(path.into()), group.map(str::to_owned)));
        assert_eq!(parse("file:"), Ok(FileAddress(None, None)));
        assert_eq!(parse("file:/a%20b"), named("/a b", None));
        assert_eq!(parse("file:///a"), named("/a", None));
        assert_eq!(parse("file:/a%3Fb?group=x"), named("/a?b", Some("x")));
        assert_eq!(parse("file:///a?group=a%26b"), named("/a", Some("a&b")));
        assert_eq!(parse("file:/a?"), named("/a", None));
        assert_eq!(parse("file:/a,b%3Bc%3Dd"), named("/a,b;c=d", None));
    }

    #[test]
    fn bad_urls_are_refused() {
        for url in [
            "file:?group=x",
            "file:/a?group=",
            "file:/a?group",
            "file:/a?group=x&group=x",
            "file:/a?group=x&ca=/y",
            "file:/a?groups=x",
            "file:a?group=x",
            "file:/a?group=x#y",
            "file:/a#y?group=x",
            "file:/a;b",
            "file:/a,b=c",
        ] {
            assert!(parse(url).is_err(), "{url}");
        }
    }
}
