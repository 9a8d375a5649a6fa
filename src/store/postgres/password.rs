//! Finds the password: in the URL, in `PGPASSWORD`, or in a password file, as libpq's manual describes it.

use std::env;
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt as _;

use super::url::Server;
use crate::net::endpoint::Endpoint;
use crate::store::password_file;

/// Returns the password for the server at `endpoint`. `None` if there is none, or if it is empty. Call this only when the
/// server asks for a password, see [`password_file::in_file`].
pub(super) fn find(server: &Server, endpoint: &Endpoint) -> Result<Option<String>, String> {
    find_by(server, endpoint, &|name| env::var_os(name))
}

/// The same with this environment.
fn find_by(
    server: &Server,
    endpoint: &Endpoint,
    environment: &dyn Fn(&str) -> Option<OsString>,
) -> Result<Option<String>, String> {
    let variable = |name| environment(name).filter(|value| !value.is_empty());
    if server.password.is_some() {
        return Ok(server.password.clone());
    }
    if let Some(password) = variable("PGPASSWORD") {
        return password.into_string().map(Some).map_err(|_| "the password in PGPASSWORD is not UTF-8".into());
    }
    let entry = |contents: &[u8]| entry(contents, server, endpoint);
    match variable("PGPASSFILE") {
        Some(path) => password_file::in_file(path.as_ref(), entry),
        None => password_file::in_home(".pgpass", variable("HOME"), entry),
    }
}

/// Returns the password of the first line that matches the server.
pub(super) fn entry(contents: &[u8], server: &Server, endpoint: &Endpoint) -> Option<Vec<u8>> {
    let (hosts, port) = names(endpoint);
    contents.split(|byte| *byte == b'\n').filter(|line| !line.starts_with(b"#")).find_map(|line| {
        let end = line.iter().rposition(|byte| *byte != b'\r').map_or(0, |last| last + 1);
        let rest = hosts.iter().find_map(|host| after_field(&line[..end], host))?;
        let rest = after_field(rest, port.as_bytes())?;
        let rest = after_field(rest, server.database.as_bytes())?;
        let rest = after_field(rest, server.user.as_bytes())?;
        Some(unescaped(rest))
    })
}

/// Returns the names that a password file may use for the host, and the port. A socket goes by its directory and by
/// `localhost`: libpq accepts the latter only for its default directory, which is not the same everywhere.
fn names(endpoint: &Endpoint) -> (Vec<&[u8]>, String) {
    match endpoint {
        Endpoint::Tcp { host, port, .. } => (vec![host.as_bytes()], port.to_string()),
        Endpoint::Unix(path) => {
            let directory = path.parent().unwrap_or(path).as_os_str().as_bytes();
            let port = path.extension().unwrap_or_default().to_string_lossy();
            (vec![directory, b"localhost"], port.into_owned())
        }
    }
}

/// Returns the rest of a line after its first field, if that is `*` or `wanted`. A character after a backslash is part
/// of the field. As in libpq, so is a `:` where `wanted` has one, so that an IPv6 address can be written as it is.
fn after_field<'a>(line: &'a [u8], mut wanted: &[u8]) -> Option<&'a [u8]> {
    if let Some(rest) = line.strip_prefix(b"*:") {
        return Some(rest);
    }
    let mut rest = line;
    loop {
        if let ([b':', after @ ..], []) = (rest, wanted) {
            return Some(after);
        }
        let (first, after) = rest.strip_prefix(b"\\").unwrap_or(rest).split_first()?;
        let (known, others) = wanted.split_first()?;
        if first != known {
            return None;
        }
        (rest, wanted) = (after, others);
    }
}

/// Returns the last field without its backslashes. It ends at the first `:` that has none, as in libpq.
fn unescaped(field: &[u8]) -> Vec<u8> {
    let mut text = Vec::new();
    let mut rest = field;
    while let [b'\\', first, after @ ..] | [first, after @ ..] = rest {
        if rest[0] == b':' {
            break;
        }
        text.push(*first);
        rest = after;
    }
    text
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt as _, symlink};
    use std::path::Path;

    use tempfile::TempDir;

    use super::*;
    use crate::store::postgres::url::parse;

    fn server(url: &str) -> Server {
        parse(url).expect(url)
    }

    /// Returns the password in a file with these `contents` for the first host of the URL.
    fn found(contents: &[u8], url: &str) -> Option<String> {
        let server = server(url);
        entry(contents, &server, &server.hosts[0]).map(|password| String::from_utf8(password).expect("is UTF-8"))
    }

    #[test]
    fn the_first_line_that_fits_is_taken() {
        let file = b"# h:5432:db:u:comment\n\
                     #h:5432:db:u:comment\n\
                     \n\
                     h:5432:db\n\
                     h:5432:db:u\n\
                     h:5432:db:u:first\n\
                     h:5432:db:u:second\n\
                     h:1:*:u:any database\r\n\
                     *:*:*:v:*\n\
                     localhost:5432:db:u:here\n\
                     /tmp:7:db:u:directory\n\
                     localhost:7:db:u:second\n\
                     ::1:5432:db:u:plain\n\
                     \\:\\:2:5432:db:u:escaped\n\
                     e:5432:d\\:b:a\\\\b\\c:p\\:w\\\\\\x:rest\n\
                     e:*:*:a\\bc:a backslash too few\n\
                     *:5432:*:empty:\n\
                     *x:5432:db:u:no pattern\n\
                     last:*:*:*:without an end";
        for (url, password) in [
            ("postgres://u@h/db", Some("first")),
            ("postgres://u@h:1/other", Some("any database")),
            ("postgres://u@h:2/db", None),
            ("postgres://u@h/other", None),
            ("postgres://w@h/db", None),
            ("postgres://u@hh/db", None),
            ("postgres://u@x/db", None),
            ("postgres://v@anywhere:9/any", Some("*")),
            ("postgres://u@localhost/db", Some("here")),
            ("postgres://u@/db", Some("here")),
            ("postgres://u@/db?host=/anywhere", Some("here")),
            ("postgres://u@/db?host=/tmp&port=7", Some("directory")),
            ("postgres://u@[::1]/db", Some("plain")),
            ("postgres://u@[::2]/db", Some("escaped")),
            ("postgres://a%5Cbc@e/d%3Ab", Some("p:w\\x")),
            ("postgres://a%5Cbc@e/db", None),
            ("postgres://abc@e/db", Some("a backslash too few")),
            ("postgres://empty@h/db", Some("")),
            ("postgres://u@last/db", Some("without an end")),
        ] {
            assert_eq!(found(file, url).as_deref(), password, "{url}");
        }
        assert_eq!(found(b"h:5432:db:u:p\\", "postgres://u@h/db").as_deref(), Some("p\\"));
        assert_eq!(found(b"h\\", "postgres://u@h/db"), None);
    }

    /// Returns the password for `url` with these variables.
    fn find_with(url: &str, variables: &[(&str, &Path)]) -> Result<Option<String>, String> {
        let server = server(url);
        find_by(&server, &server.hosts[0], &|name| {
            let value = variables.iter().find(|(known, _)| *known == name).map(|(_, value)| *value);
            value.map(|value| value.as_os_str().to_owned())
        })
    }

    #[test]
    fn the_url_comes_before_the_variables_and_they_before_the_file() {
        let home = TempDir::new().expect("a directory");
        let write = |name: &str, contents: &[u8]| {
            let path = home.path().join(name);
            fs::write(&path, contents).expect("is written");
            fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).expect("is changed");
            path
        };
        write(".pgpass", b"*:*:*:*:home");
        let named = write("named", b"h:*:*:*:named\ne:*:*:*:\nb:*:*:*:\xff");
        let (home, nothing) = (("HOME", home.path()), Path::new(""));
        let named = ("PGPASSFILE", named.as_path());
        let variable = ("PGPASSWORD", Path::new("variable"));
        for (url, variables, password) in [
            ("postgres://u:url@h/db", &[variable, named, home][..], Some("url")),
            ("postgres://u@h/db", &[variable, named, home], Some("variable")),
            ("postgres://u@h/db", &[named, home], Some("named")),
            ("postgres://u@h/db", &[("PGPASSWORD", nothing), ("PGPASSFILE", nothing), home], Some("home")),
            ("postgres://u:@h/db", &[home], Some("home")),
            // A named file is the only one that is read, and an empty password counts as none.
            ("postgres://u@x/db", &[named, home], None),
            ("postgres://u@e/db", &[named, home], None),
            ("postgres://u@h/db", &[("PGPASSFILE", Path::new("/does/not/exist")), home], None),
            ("postgres://u@h/db", &[("PGPASSFILE", Path::new("/dev/null/x")), home], None),
            ("postgres://u@h/db", &[("HOME", Path::new("/does/not/exist"))], None),
            ("postgres://u@h/db", &[("HOME", Path::new("relative"))], None),
        ] {
            assert_eq!(find_with(url, variables).expect(url).as_deref(), password, "{url} {variables:?}");
        }
        assert!(find_with("postgres://u@b/db", &[named]).expect_err("is not UTF-8").contains("not UTF-8"));
    }

    #[test]
    fn a_file_that_others_can_read_is_an_error_that_says_so() {
        let home = TempDir::new().expect("a directory");
        let path = home.path().join(".pgpass");
        fs::write(&path, "*:*:*:*:secret").expect("is written");
        let find = || find_with("postgres://u@h/db", &[("HOME", home.path())]);
        for mode in [0o600, 0o400, 0o644, 0o640, 0o604, 0o620, 0o666, 0o610] {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("is changed");
            match find() {
                Ok(found) => assert_eq!((found.as_deref(), mode & 0o077), (Some("secret"), 0)),
                Err(why) => {
                    assert!(mode & 0o077 != 0 && why.contains(".pgpass") && why.contains("chmod "), "{mode:o}: {why}");
                    assert!(mode & 0o022 != 0 || why.contains("chmod 0600 /"), "{mode:o}: {why}");
                    assert!(!why.contains("secret"), "{why}");
                }
            }
        }
        fs::remove_file(&path).expect("is removed");
        fs::create_dir(&path).expect("is made");
        assert!(find().expect_err("is a directory").contains("a directory"));
        fs::remove_dir(&path).expect("is removed");
        symlink("elsewhere", &path).expect("is made");
        assert_eq!(find(), Ok(None));
    }
}
