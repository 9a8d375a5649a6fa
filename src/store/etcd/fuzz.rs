//! Fuzzing of etcd's URLs.

use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};

use super::url::parse;
use crate::net::endpoint::Endpoint;
use crate::store::url::spelled_tls;

/// A URL of a cluster: written again, it reads the same.
pub fn url(text: &str) {
    let Ok(cluster) = parse(text) else { return };
    let encoded = |text: &str| utf8_percent_encode(text, NON_ALPHANUMERIC).to_string();
    let login = cluster.login.as_ref().map(|(user, password)| format!("{}:{}@", encoded(user), encoded(password)));
    let mut files = None;
    let members = cluster.members.iter().map(|member| {
        let Endpoint::Tcp { host, port, tls } = member else { panic!("is a socket") };
        files = tls.as_ref();
        format!("[{}]:{port}", encoded(host))
    });
    let members = members.collect::<Vec<_>>().join(",");
    let scheme = if files.is_some() { "etcds" } else { "etcd" };
    let again = format!(
        "{scheme}://{}{members}?prefix={}{}",
        login.unwrap_or_default(),
        encoded(&cluster.prefix),
        files.map(spelled_tls).unwrap_or_default()
    );
    assert!(parse(&again).is_ok_and(|read| read == cluster), "{again}");
}
