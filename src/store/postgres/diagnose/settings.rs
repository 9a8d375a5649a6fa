//! The server's parameters, as they are for our role.

use std::collections::BTreeMap;

use super::ask;
use crate::store::postgres::PostgresStore;
use crate::store::postgres::failure::Failure;

/// The parameters that matter to locks. Times are in milliseconds.
const NAMES: [&str; 10] = [
    "fsync",
    "full_page_writes",
    "idle_session_timeout",
    "max_connections",
    "reserved_connections",
    "server_encoding",
    "superuser_reserved_connections",
    "synchronous_commit",
    "synchronous_standby_names",
    "wal_level",
];

/// The values of the parameters; a server need not have all of them.
#[derive(Default)]
pub(super) struct Settings(BTreeMap<String, String>);

impl Settings {
    /// Asks for the session's values: lockrun's transactions change some for themselves.
    pub(super) fn ask(store: &mut PostgresStore) -> Result<Self, Failure> {
        let statement = "SELECT name, reset_val FROM pg_catalog.pg_settings WHERE name = ANY ($1::text[])";
        let rows = ask(store, statement, &[Some(&format!("{{{}}}", NAMES.join(",")))])?;
        let pair = |row: Vec<Option<String>>| {
            let mut values = row.into_iter().flatten();
            values.next().zip(values.next())
        };
        Ok(Settings(rows.into_iter().filter_map(pair).collect()))
    }

    /// Returns the value of a parameter.
    pub(super) fn text(&self, name: &str) -> Option<&str> {
        debug_assert!(NAMES.contains(&name), "{name}");
        self.0.get(name).map(String::as_str)
    }

    /// Returns the value of a parameter that is a number.
    pub(super) fn number(&self, name: &str) -> Option<i64> {
        self.text(name)?.parse().ok()
    }
}

#[cfg(test)]
impl<const N: usize> From<[(&str, &str); N]> for Settings {
    fn from(pairs: [(&str, &str); N]) -> Self {
        Settings(pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).into())
    }
}
