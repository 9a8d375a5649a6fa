//! The URL of a directory of lock files.

use std::path::PathBuf;
use std::time::Duration;

use super::FileStore;
use crate::store::url::decoded_path;
use crate::store::{Backend, Kind, Location};

pub(in crate::store) const KIND: Kind =
    Kind { schemes: &["file:"], parameters: &[], has_leases: false, parse: |url| Ok(Box::new(parse(url)?)) };

/// A directory; `None`: the default one.
#[derive(Debug, PartialEq, Eq)]
struct Place(Option<PathBuf>);

impl Location for Place {
    fn open(&self, _: Duration) -> Result<Box<dyn Backend>, String> {
        Ok(Box::new(FileStore::new(self.0.clone())))
    }
}

/// Reads a URL that begins with `file:`.
fn parse(url: &str) -> Result<Place, String> {
    let rest = url.strip_prefix("file:").unwrap_or(url);
    let path = rest.strip_prefix("//").unwrap_or(rest);
    if path.is_empty() && !rest.starts_with("//") {
        return Ok(Place(None));
    }
    if path.contains(['?', '#']) {
        return Err("has parameters; file: takes none (write %3F for a ? in the path)".into());
    }
    let path = decoded_path(path);
    if !path.is_absolute() {
        return Err("is not an absolute path; write file:/DIR, or file: for the default directory".into());
    }
    Ok(Place(Some(path)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_read() {
        assert_eq!(parse("file:"), Ok(Place(None)));
        assert_eq!(parse("file:/a%20b"), Ok(Place(Some("/a b".into()))));
        assert_eq!(parse("file:///a"), Ok(Place(Some("/a".into()))));
    }
}
