//! Locks in the tables of a PostgreSQL database, as leases.

mod url;

pub(super) use url::KIND;
