//! The tables.
//!
//! ```text
//! PREFIXversion   version                           one row: the version of these tables
//! PREFIXlocks     k, state                          one row per key: its `LockState` without the waiters, as JSON
//! PREFIXwaiters   k, place, token, waiter, ends_ms  one row per waiter, in the order in which they came: its
//!                                                   `WaiterState` as JSON, and when its place ends
//! ```
//!
//! Keys and tokens are bytes: no collation makes two of them one. The server never looks into the JSON. The queue has
//! rows of its own, so that an operation on a lock costs the same however many wait: it reads only the first few.

use std::fmt::Write as _;

use crate::text::escape::escaped;

/// The version of the tables that this program works with.
pub(super) const VERSION: i64 = 1;

/// The names of the tables, quoted.
#[derive(Clone, Debug)]
pub(super) struct Tables {
    pub(super) version: String,
    pub(super) locks: String,
    pub(super) waiters: String,
}

impl Tables {
    /// Returns the tables whose names begin with this prefix.
    pub(super) fn named(prefix: &str) -> Self {
        let table = |name: &str| format!("`{prefix}{name}`");
        Tables { version: table("version"), locks: table("locks"), waiters: table("waiters") }
    }

    /// Returns the statements that create the tables that are missing. Each of them is a transaction of its own, so the
    /// version, whose absence means that the tables are of this version, comes last.
    pub(super) fn creation(&self) -> [String; 4] {
        let Tables { version, locks, waiters } = self;
        [
            format!(
                "CREATE TABLE IF NOT EXISTS {locks} (\n    \
                 k VARBINARY(512) NOT NULL PRIMARY KEY,\n    \
                 state LONGBLOB NOT NULL\n) ENGINE = InnoDB"
            ),
            format!(
                "CREATE TABLE IF NOT EXISTS {waiters} (\n    \
                 k VARBINARY(512) NOT NULL,\n    \
                 place BIGINT NOT NULL,\n    \
                 token VARBINARY(128) NOT NULL,\n    \
                 waiter LONGBLOB NOT NULL,\n    \
                 ends_ms BIGINT NOT NULL,\n    \
                 PRIMARY KEY (k, place),\n    \
                 UNIQUE KEY token (k, token)\n) ENGINE = InnoDB"
            ),
            format!("CREATE TABLE IF NOT EXISTS {version} (version BIGINT NOT NULL PRIMARY KEY) ENGINE = InnoDB"),
            format!("INSERT IGNORE INTO {version} VALUES ({VERSION})"),
        ]
    }

    /// Returns the script that an administrator of the `database` runs, with mysql or any other client, for a `user` who
    /// may not create tables. Running the script again does no harm.
    pub(super) fn script(&self, database: &str, user: &str) -> String {
        let Tables { version, locks, waiters } = self;
        let (schema, account) = (quoted(database, '`'), format!("{}@'%'", quoted(user, '\'')));
        let mut statements = vec![format!("USE {schema}")];
        statements.extend(self.creation());
        for table in [locks, waiters] {
            statements.push(format!("GRANT SELECT, INSERT, UPDATE, DELETE ON {schema}.{table} TO {account}"));
        }
        statements.push(format!("GRANT SELECT ON {schema}.{version} TO {account}"));
        let comment = [
            format!("The tables of lockrun (version {VERSION}) in the database {}.", escaped(database)),
            format!("For the user {}, who must exist; write another host than % if the user has one.", escaped(user)),
            "It can be run again: existing tables are kept.".to_owned(),
        ];
        let comment = comment.map(|line| format!("-- {line}\n")).concat();
        format!("{comment}\n{};\n", statements.join(";\n"))
    }
}

/// Returns a text between these quotation marks. A backslash is only an escape between the ones of a string.
fn quoted(text: &str, mark: char) -> String {
    let escaped = text.replace(mark, &format!("{mark}{mark}"));
    let escaped = if mark == '\'' { escaped.replace('\\', "\\\\") } else { escaped };
    format!("{mark}{escaped}{mark}")
}

/// Returns bytes as a literal that no setting of the session changes.
pub(super) fn bytes(value: &str) -> String {
    let mut literal = String::with_capacity(3 + 2 * value.len());
    literal.push_str("x'");
    for byte in value.bytes() {
        let _ = write!(literal, "{byte:02x}");
    }
    literal.push('\'');
    literal
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_does_not_end_its_comment_nor_its_quotes() {
        let script = Tables::named("l_").script("a`b\nDROP", "x'\\\n; DROP");
        let comments: Vec<&str> = script.lines().take_while(|line| !line.is_empty()).collect();
        assert!(comments.len() == 3 && comments.iter().all(|line| line.starts_with("-- ")), "{script}");
        assert!(script.contains("USE `a``b\nDROP`;"), "{script}");
        assert!(script.contains("ON `a``b\nDROP`.`l_locks` TO 'x''\\\\\n; DROP'@'%';"), "{script}");
    }

    #[test]
    fn values_are_literals_of_bytes() {
        assert_eq!((bytes("a'é").as_str(), bytes("").as_str()), ("x'6127c3a9'", "x''"));
    }
}
