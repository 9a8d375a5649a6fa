//! The URL of a MySQL or MariaDB database.

use std::fmt;
use std::time::Duration;

use nix::unistd::geteuid;

use super::MysqlStore;
use super::schema::Tables;
use crate::net::endpoint::{self, Endpoint, TlsFiles};
use crate::store::encryption::{Encryption, Spelling};
use crate::store::url::{AFTER_NAMES, Url, check_separators, decoded_as, refuse_if};
use crate::store::{Backend, Kind, Location};
use crate::sys::accounts;

pub(in crate::store) const KIND: Kind = Kind {
    schemes: &["mysql://", "mariadb://"],
    parameters: &["tables", "tls", "ca", "cert", "key"],
    has_leases: true,
    parse: |url| Ok(Box::new(parse(url)?)),
};

const PORT: u16 = 3306;

/// The longest prefix of the tables' names, in bytes: the server takes names of 64.
const PREFIX_MAX: usize = 48;

/// The words of the parameter `tls`: those of `--ssl-mode` of MySQL's own client.
const SPELLING: Spelling =
    Spelling { parameter: "tls", values: ["disabled", "preferred", "required", "verify-ca", "verify-identity"] };

/// A database, and how we log in to it.
#[derive(Clone, PartialEq, Eq)]
pub(in crate::store) struct Server {
    /// The servers, of which the first that takes writes is used. At least one.
    pub(super) hosts: Vec<Endpoint>,
    pub(super) user: String,
    /// The password that the URL names. Never shown.
    pub(super) password: Option<String>,
    pub(super) database: String,
    /// The beginning of the tables' names.
    pub(super) tables: String,
    pub(super) encryption: Encryption,
    /// The files for TLS.
    pub(super) tls: TlsFiles,
}

impl Location for Server {
    fn open(&self, timeout: Duration) -> Result<Box<dyn Backend>, String> {
        Ok(Box::new(MysqlStore::new(self.clone(), timeout)?))
    }

    fn schema(&self) -> Option<String> {
        Some(Tables::named(&self.tables).script(&self.database, &self.user))
    }
}

/// Reads a URL that begins with one of the schemes. The user is that of the URL, else the one we run as.
pub(super) fn parse(text: &str) -> Result<Server, String> {
    let mut url = Url::read(text)?;
    url.check_one_login()?;
    let (user, password) = url.login()?.unwrap_or_default();
    let user = Some(user).filter(|user| !user.is_empty()).or_else(|| accounts::user_name(geteuid()));
    let user = user.ok_or("names no user, and neither does /etc/passwd; write mysql://USER@HOST/DATABASE")?;
    check_separators(url.path, "database", AFTER_NAMES)?;
    let database = decoded_as("database", url.path)?;
    refuse_if(database.is_empty(), "names no database; write mysql://HOST/DATABASE")?;
    let tables = url.parameters.take_or("tables", "lockrun_");
    refuse_if(
        tables.len() > PREFIX_MAX || !tables.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_'),
        "has a value of tables that is no beginning of a table's name: up to 48 letters, digits and underscores",
    )?;
    let tls = url.parameters.take_tls()?;
    let encryption = Encryption::read(url.parameters.take("tls").as_deref(), &tls, &SPELLING)?;
    refuse_if(
        encryption == Encryption::Never && tls != TlsFiles::default(),
        "names files for TLS, which it does not use",
    )?;
    refuse_if(
        url.parameters.has("password"),
        "has its password in a parameter; write mysql://USER:PASSWORD@HOST/DATABASE",
    )?;
    url.parameters.none_left(None)?;
    let password = password.filter(|password| !password.is_empty());
    for value in [&user, &database].into_iter().chain(&password) {
        refuse_if(value.contains('\0'), "has a NUL character in it")?;
    }
    Ok(Server { hosts: url.servers(PORT, None)?, user, password, database, tables, encryption, tls })
}

/// Writes the servers' addresses, for messages: never a password.
impl fmt::Display for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MySQL at {}", endpoint::list(&self.hosts))
    }
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::tls::Verification;

    fn tcp(host: &str, port: u16) -> Endpoint {
        Endpoint::Tcp { host: host.into(), port, tls: None }
    }

    #[test]
    fn urls_are_read() {
        let plain = parse("mysql://u@web/db").expect("is right");
        assert_eq!(plain.hosts, [tcp("web", 3306)]);
        assert_eq!((plain.user.as_str(), plain.password, plain.database.as_str()), ("u", None, "db"));
        assert_eq!((plain.tables.as_str(), plain.encryption), ("lockrun_", Encryption::IfOffered));
        let full = parse("mariadb://u%40x:p%3Aw+%2F@a,[::1]:7000/a%20db?tables=my_&ca=/ca.pem&cert=/c&key=/k");
        let full = full.expect("is right");
        assert_eq!(full.hosts, [tcp("a", 3306), tcp("::1", 7000)]);
        assert_eq!((full.user.as_str(), full.password.as_deref()), ("u@x", Some("p:w+/")));
        assert_eq!((full.database.as_str(), full.tables.as_str()), ("a db", "my_"));
        assert_eq!(full.encryption, Encryption::Required(Verification::Full));
    }

    #[test]
    fn modes_of_tls_are_mysqls() {
        for (query, wanted) in [
            ("tls=disabled", Encryption::Never),
            ("tls=preferred", Encryption::IfOffered),
            ("tls=required", Encryption::Required(Verification::None)),
            ("tls=verify-ca&ca=/a", Encryption::Required(Verification::Authority)),
            ("tls=verify-identity", Encryption::Required(Verification::Full)),
        ] {
            assert_eq!(parse(&format!("mysql://u@h/db?{query}")).expect(query).encryption, wanted, "{query}");
        }
    }

    #[test]
    fn what_cannot_be_meant_is_refused() {
        for (url, wanted) in [
            ("mysql://h", "names no database"),
            ("mysql://h/", "names no database"),
            ("mysql:///db", "names no host"),
            ("mysql://a,,b/db", "names no host"),
            ("mysql://h:0/db", "port that is not"),
            ("mysql://h/db?tables=a-b", "no beginning of a table's name"),
            ("mysql://h/db?tables=a%60b", "no beginning of a table's name"),
            ("mysql://h/db?tls=on", "has a value of tls that is none of disabled"),
            ("mysql://h/db?tls=verify-ca", "without ca"),
            ("mysql://h/db?tls=preferred&ca=/a", "use verify-identity"),
            ("mysql://h/db?tls=disabled&cert=/c&key=/k", "does not use"),
            ("mysql://h/db?cert=/c", "go together"),
            ("mysql://h/db?charset=utf8", "a parameter that is not known"),
            ("mysql://u:p%00@h/db", "NUL"),
            ("mysql://u:secret@@h/db", "write %40"),
            ("mysql://h/db?password=secret", "in a parameter"),
        ] {
            let why = parse(url).expect_err(url);
            assert!(why.contains(wanted) && !why.contains("secret"), "{url}: {why}");
        }
    }

    #[test]
    fn servers_are_named_without_their_password() {
        let server = parse("mysql://u:secret@a:1,[::1]/db").expect("is right");
        let shown = "MySQL at a:1, [::1]:3306";
        assert_eq!((server.to_string().as_str(), format!("{server:?}").as_str()), (shown, shown));
    }
}
