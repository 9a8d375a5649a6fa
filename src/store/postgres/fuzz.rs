//! Fuzzing of password files.

use std::sync::LazyLock;

use super::password::entry;
use super::url::{self, Server};

static SERVERS: LazyLock<[Server; 3]> = LazyLock::new(|| {
    ["postgres://u@h/db", "postgres://u@/db?host=/tmp&port=7", "postgres://a%5Cbc@[::1]/d%3Ab"]
        .map(|url| url::parse(url).expect("is a URL"))
});

/// Reads a password file: a password that is found is no longer than the file, and if none is found, one in an added
/// last line is.
pub fn pgpass(data: &[u8]) {
    for server in &*SERVERS {
        let endpoint = &server.hosts[0];
        if let Some(password) = entry(data, server, endpoint) {
            assert!(password.len() <= data.len() && !password.contains(&b'\n'));
        } else {
            let longer = [data, b"\n*:*:*:*:p\\:w\\\\"].concat();
            assert_eq!(entry(&longer, server, endpoint).as_deref(), Some(&b"p:w\\"[..]));
        }
    }
}
