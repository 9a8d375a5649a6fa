//! Locks in the tables of a PostgreSQL database, as leases.

#![expect(dead_code, reason = "the store uses it next")]

mod password;
mod url;

pub(super) use url::KIND;
