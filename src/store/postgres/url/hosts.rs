//! The hosts in the URL of a PostgreSQL database: names, addresses, and directories of sockets.

use std::path::Path;

use crate::net::endpoint::Endpoint;
use crate::store::url::{Parameters, decoded, is_host, port_number, refuse_if, split_port};

/// The directory of the socket if the URL names no host: PostgreSQL's directory on Debian, Fedora and Arch.
const SOCKETS: &str = "/run/postgresql";

/// Reads the servers' addresses: between the user and the path, or in the parameters `host` and `port`.
pub(super) fn endpoints(authority: &str, parameters: &mut Parameters) -> Result<Vec<Endpoint>, String> {
    let mut hosts = Vec::new();
    match parameters.take("host") {
        Some(_) if !authority.is_empty() => return Err("names its host twice".into()),
        Some(listed) => hosts.extend(listed.split(',').map(|host| (host.to_owned(), None))),
        None => {
            for listed in authority.split(',') {
                let (host, port) = split_port(listed)?;
                hosts.push((decoded(host)?, port));
            }
        }
    }
    if let Some(listed) = parameters.take("port") {
        let ports: Vec<&str> = listed.split(',').collect();
        refuse_if(hosts.iter().any(|(_, port)| port.is_some()), "names its port twice")?;
        if ports.len() != 1 && ports.len() != hosts.len() {
            return Err(format!("has {} ports for {} hosts", ports.len(), hosts.len()));
        }
        for ((_, port), named) in hosts.iter_mut().zip(ports.iter().cycle()) {
            *port = port_number(named)?;
        }
    }
    let is_only = hosts.len() == 1;
    let endpoint = |(host, port): (String, Option<u16>)| endpoint(&host, port.unwrap_or(5432), is_only);
    hosts.into_iter().map(endpoint).collect()
}

/// Returns the endpoint for `host`: a name, an IP address, or the directory of a socket. An empty host that `is_only`
/// means the default directory.
fn endpoint(host: &str, port: u16, is_only: bool) -> Result<Endpoint, String> {
    let socket = |directory: &str| Endpoint::Unix(Path::new(directory).join(format!(".s.PGSQL.{port}")));
    match host {
        "" if is_only => Ok(socket(SOCKETS)),
        "" => Err("has an empty host among others".into()),
        _ if host.contains('\0') => Err("has a NUL character in it".into()),
        _ if host.starts_with('/') => Ok(socket(host)),
        _ if !is_host(host) => {
            Err("has a host that is neither a name nor an address nor the path of a directory".into())
        }
        _ => Ok(Endpoint::Tcp { host: host.to_owned(), port, tls: None }),
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::server;
    use super::*;

    fn tcp(host: &str, port: u16) -> Endpoint {
        Endpoint::Tcp { host: host.into(), port, tls: None }
    }

    fn unix(path: &str) -> Endpoint {
        Endpoint::Unix(path.into())
    }

    #[test]
    fn hosts_are_where_libpq_finds_them() {
        for (url, hosts) in [
            ("postgres://a,b:1,[::1]:2,[::2]/db", &[tcp("a", 5432), tcp("b", 1), tcp("::1", 2), tcp("::2", 5432)][..]),
            ("postgres://a:/db", &[tcp("a", 5432)]),
            ("postgres:///db", &[unix("/run/postgresql/.s.PGSQL.5432")]),
            ("postgres://u@:1/db", &[unix("/run/postgresql/.s.PGSQL.1")]),
            ("postgres://%2Ftmp%2Fx:1/db", &[unix("/tmp/x/.s.PGSQL.1")]),
            ("postgres:///db?host=/tmp&port=1", &[unix("/tmp/.s.PGSQL.1")]),
            ("postgres:///db?host=/tmp,a&port=1,2", &[unix("/tmp/.s.PGSQL.1"), tcp("a", 2)]),
            ("postgres:///db?host=a,::1&port=1", &[tcp("a", 1), tcp("::1", 1)]),
            ("postgres://a,b/db?port=1", &[tcp("a", 1), tcp("b", 1)]),
        ] {
            assert_eq!(server(url).hosts, hosts, "{url}");
        }
    }
}
