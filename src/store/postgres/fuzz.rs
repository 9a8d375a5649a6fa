//! Fuzzing of password files.

use std::sync::LazyLock;

use super::password::entry;
use super::url::{self, Server};

static SERVERS: LazyLock<[Server; 3]> = LazyLock::new(|| {
    ["postgres://u@h/db", "postgres://u@/db?host=/tmp&port=7", "postgres://a%5Cbc@[::1]/d%3Ab"]
        .map(|url| url::parse(url).expect("is a URL"))
});

/// A password file: what is found is part of it, and a line for the server is found if none before it is.
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
