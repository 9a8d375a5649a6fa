//! Finds the password: in the URL, in `MYSQL_PWD`, or in the file `~/.my.cnf` of MySQL's own programs.

use std::env;
use std::ffi::OsString;

use super::url::Server;
use crate::store::password_file;

/// Returns the password. `None` if there is none, or if it is empty.
pub(super) fn find(server: &Server) -> Result<Option<String>, String> {
    find_by(server, &|name| env::var_os(name))
}

/// The same with this environment.
fn find_by(server: &Server, environment: &dyn Fn(&str) -> Option<OsString>) -> Result<Option<String>, String> {
    let variable = |name| environment(name).filter(|value| !value.is_empty());
    if server.password.is_some() {
        return Ok(server.password.clone());
    }
    if let Some(password) = variable("MYSQL_PWD") {
        return password.into_string().map(Some).map_err(|_| "the password in MYSQL_PWD is not UTF-8".into());
    }
    password_file::in_home(".my.cnf", variable("HOME"), entry)
}

/// Returns the last password in the group `[client]` of an option file, as "Using Option Files" in MySQL's manual
/// describes it: `password=VALUE`, with blanks around each part, and quotation marks around the value or not.
pub(super) fn entry(contents: &[u8]) -> Option<Vec<u8>> {
    let (mut is_ours, mut found) = (false, None);
    for line in contents.split(|byte| *byte == b'\n').map(<[u8]>::trim_ascii) {
        if let [b'[', name @ .., b']'] = line {
            is_ours = [&b"client"[..], b"client-server", b"client-mariadb"].contains(&name.trim_ascii());
        } else if let Some(at) = line.iter().position(|byte| *byte == b'=').filter(|_| is_ours)
            && line[..at].trim_ascii() == b"password"
        {
            found = Some(unquoted(line[at + 1..].trim_ascii()));
        }
    }
    found
}

/// Returns a value without its quotation marks, and without the backslashes in front of those and of themselves. One
/// without quotation marks ends at a comment.
fn unquoted(value: &[u8]) -> Vec<u8> {
    let value = match value {
        [b'"', inner @ .., b'"'] | [b'\'', inner @ .., b'\''] => inner,
        plain => plain.split(|byte| *byte == b'#').next().unwrap_or_default().trim_ascii(),
    };
    let (mut text, mut rest) = (Vec::new(), value);
    while let [first, after @ ..] = rest {
        let (byte, after) = match (first, after) {
            (b'\\', [escaped @ (b'\\' | b'"' | b'\''), after @ ..]) => (*escaped, after),
            (b'\\', [b's', after @ ..]) => (b' ', after),
            (b'\\', [b'n', after @ ..]) => (b'\n', after),
            (b'\\', [b't', after @ ..]) => (b'\t', after),
            (b'\\', [b'r', after @ ..]) => (b'\r', after),
            (b'\\', [b'b', after @ ..]) => (8, after),
            _ => (*first, after),
        };
        text.push(byte);
        rest = after;
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_password_of_the_client_is_taken() {
        for (file, password) in [
            ("[client]\npassword=plain", Some("plain")),
            ("# x\n[mysqld]\npassword=theirs\n[client]\n user = u \n password = \"a # b\" \n", Some("a # b")),
            ("[client]\npassword=one\npassword=two # comment\r\n[mysql]\npassword=three", Some("two")),
            ("[client]\npassword='it\\'s \\\\ here'", Some("it's \\ here")),
            ("[client]\npasswords=x\npassword", None),
            ("password=outside", None),
            ("[client]\npassword=", Some("")),
        ] {
            let found = entry(file.as_bytes()).map(|found| String::from_utf8(found).expect("is UTF-8"));
            assert_eq!(found.as_deref(), password, "{file}");
        }
    }

    #[test]
    fn the_url_comes_before_the_variable_and_that_before_the_file() {
        let find = |url: &str, variables: &[(&str, &str)]| {
            let server = super::super::url::parse(url).expect(url);
            let value = |name: &str| variables.iter().find(|(known, _)| *known == name).map(|(_, it)| (*it).into());
            find_by(&server, &value).expect("nothing is wrong")
        };
        let (variable, nowhere) = (("MYSQL_PWD", "variable"), ("HOME", "/does/not/exist"));
        assert_eq!(find("mysql://u:url@h/db", &[variable]).as_deref(), Some("url"));
        assert_eq!(find("mysql://u@h/db", &[variable]).as_deref(), Some("variable"));
        assert_eq!(find("mysql://u@h/db", &[("MYSQL_PWD", ""), nowhere]), None);
    }
}
