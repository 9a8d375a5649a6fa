//! The URL of a PostgreSQL database.

use std::fmt;
use std::time::Duration;

use url::Url;

use super::PostgresStore;
use crate::net::endpoint::{Endpoint, TlsFiles};
use crate::store::{Backend, Kind, Location};

pub(in crate::store) const KIND: Kind = Kind {
    schemes: &["postgres://", "postgresql://"],
    parameters: &["schema", "sslmode", "host", "target_session_attrs", "ca", "cert", "key"],
    has_leases: true,
    parse: |url| Ok(Box::new(parse(url)?)),
};

#[derive(Clone, PartialEq, Eq)]
pub(super) struct Server {
    pub(super) hosts: Vec<Endpoint>,
    pub(super) user: String,
    pub(super) password: Option<String>,
    pub(super) database: String,
    pub(super) schema: String,
    pub(super) encryption: Encryption,
    pub(super) tls: TlsFiles,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Encryption {
    Never,
    IfOffered,
    Required,
}

impl Location for Server {
    fn open(&self, timeout: Duration) -> Result<Box<dyn Backend>, String> {
        Ok(Box::new(PostgresStore::new(self.clone(), timeout)?))
    }
}

pub(super) fn parse(text: &str) -> Result<Server, String> {
    let url = Url::parse(text).map_err(|error| format!("cannot be read: {error}"))?;
    let host = url.host_str().unwrap_or("localhost").to_owned();
    Ok(Server {
        hosts: vec![Endpoint::Tcp { host, port: url.port().unwrap_or(5432), tls: None }],
        user: url.username().to_owned(),
        password: url.password().map(str::to_owned),
        database: url.path().trim_start_matches('/').to_owned(),
        schema: "lockrun".into(),
        encryption: Encryption::Never,
        tls: TlsFiles::default(),
    })
}

impl fmt::Display for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(Endpoint::Tcp { host, port, .. }) = self.hosts.first() else { return Ok(()) };
        write!(f, "PostgreSQL at {host}:{port}")
    }
}
