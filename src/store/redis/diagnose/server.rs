//! What kind of server it is.

use redis::Value;

use super::Session;
use super::info::Info;
use crate::store::diagnostic::Diagnostic;
use crate::store::redis::failure::Failure;
use crate::store::redis::reply;
use crate::store::redis::url::Server;

/// The oldest Redis that has the scripts and users that lockrun needs.
const OLDEST: u32 = 6;

/// The answer to HELLO, which every user may send.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Hello {
    product: String,
    version: String,
    mode: String,
    role: String,
}

impl Hello {
    fn read(reply: &Value) -> Self {
        let mut hello = Hello::default();
        let Value::Array(fields) = reply else { return hello };
        for pair in fields.chunks_exact(2) {
            let (Some(name), Some(value)) = (reply::text(&pair[0]), reply::text(&pair[1])) else { continue };
            match name.as_str() {
                "server" => hello.product = value,
                "version" => hello.version = value,
                "mode" => hello.mode = value,
                "role" => hello.role = value,
                _ => {}
            }
        }
        hello
    }

    /// Returns whether it is a Sentinel, which is no store but knows of one.
    pub(super) fn is_sentinel(&self) -> bool {
        self.mode == "sentinel"
    }
}

/// Greets the server; `None` if it does not know HELLO. This is the first request, so it fails if the server rejects
/// us.
pub(super) fn ask(session: &mut Session) -> Result<Option<Hello>, Failure> {
    match session.ask(redis::cmd("HELLO").arg(2)) {
        Ok(reply) => Ok(Some(Hello::read(&reply))),
        Err(Failure::Rejected(refused)) if refused.command == "HELLO" && refused.is_of_unknown_command() => Ok(None),
        Err(failure) => Err(failure),
    }
}

/// Judges what kind of server this is, by its answer to HELLO, or else to INFO. `of_a_cluster`: the URL says that it is
/// one.
pub(super) fn judge(
    hello: Option<&Hello>,
    info: Option<&Info>,
    server: &Server,
    of_a_cluster: bool,
) -> Vec<Diagnostic> {
    let unknown = Hello {
        product: "redis".into(),
        version: info.and_then(|info| info.text("redis_version")).unwrap_or_default().into(),
        mode: info.and_then(|info| info.text("redis_mode")).unwrap_or_default().into(),
        role: String::new(),
    };
    let hello = hello.unwrap_or(&unknown);
    let Hello { version, mode, role, .. } = hello;
    let product = if hello.product == "valkey" { "Valkey" } else { "Redis" };
    let major = version.split('.').next().and_then(|major| major.parse::<u32>().ok());
    let mut diagnostics = vec![match major {
        None => Diagnostic::note(
            format!("{server} answers, and does not say its version"),
            format!("see by hand that it is Redis {OLDEST} or newer, or a Valkey"),
        ),
        Some(major) if product == "Redis" && major < OLDEST => Diagnostic::fail(
            format!("{server} answers: {product} {version}"),
            format!("lockrun does not support Redis before {OLDEST}; use a newer one"),
        ),
        Some(_) => Diagnostic::ok(format!("{server} answers: {product} {version}")),
    }];
    if hello.is_sentinel() {
        diagnostics.push(Diagnostic::unusable(
            "it is a Sentinel, which keeps no data",
            "write redis+sentinel://HOST/SERVICE in the store's URL",
        ));
    } else if mode == "cluster" && !of_a_cluster {
        diagnostics.push(Diagnostic::fail(
            "it is a node of a cluster",
            "lockrun asks no other node, so locks that belong to those cannot be acquired (status 69); write \
             redis+cluster:// in the store's URL",
        ));
    }
    if role == "replica" || role == "slave" {
        diagnostics.push(Diagnostic::fail(
            "it is a replica",
            "what is written there is refused, or is not seen by the primary and is lost; name the primary in the \
             store's URL",
        ));
    }
    diagnostics
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::diagnostic::Level;
    use crate::store::redis::url;

    fn worst(product: &str, version: &str, mode: &str, role: &str) -> Option<Level> {
        let server = url::parse("redis://127.0.0.1").expect("is a URL").server;
        let [product, version, mode, role] = [product, version, mode, role].map(str::to_owned);
        let hello = Hello { product, version, mode, role };
        judge(Some(&hello), None, &server, false).into_iter().map(|diagnostic| diagnostic.level).max()
    }

    #[test]
    fn kinds_of_servers_are_told_apart() {
        assert_eq!(worst("redis", "7.0.15", "standalone", "master"), Some(Level::Ok));
        assert_eq!(worst("valkey", "8.1.0", "standalone", "master"), Some(Level::Ok));
        assert_eq!(worst("redis", "5.0.7", "standalone", "master"), Some(Level::Fail));
        assert_eq!(worst("redis", "", "standalone", "master"), Some(Level::Note));
        assert_eq!(worst("redis", "7.0.15", "standalone", "replica"), Some(Level::Fail));
        assert_eq!(worst("redis", "7.0.15", "cluster", "master"), Some(Level::Fail));
        assert_eq!(worst("redis", "7.0.15", "sentinel", "sentinel"), Some(Level::Unusable));
    }

    #[test]
    fn a_greeting_is_read() {
        let text = |text: &str| Value::BulkString(text.as_bytes().to_vec());
        let reply = [text("server"), text("valkey"), text("proto"), Value::Int(2), text("role"), text("replica")];
        let wanted = Hello { product: "valkey".into(), role: "replica".into(), ..Hello::default() };
        assert_eq!(Hello::read(&Value::Array(reply.into())), wanted);
    }
}
