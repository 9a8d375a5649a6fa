//! Checks the names of lockrun's variables. A misspelt one must not be ignored, or a run would use another store than
//! intended. Kubernetes adds variables of the same prefix where a service is called `lockrun…`: these are ignored, and so
//! is `LOCKRUN_VERSION`.

use std::ffi::OsStr;

use super::files;
use super::layer::variable;
use super::settings::UsageError;
use crate::cli::text;
use crate::text::escape::{escaped_os, is_plain_word};
use crate::text::nearest::alike;

pub use super::layer::PREFIX;

/// What images and build scripts commonly name the version of a program by. It has no effect.
const VERSION: &str = "LOCKRUN_VERSION";

/// Checks an environment variable's name that begins with [`PREFIX`]. Fails if it is neither the variable of an option,
/// nor one that lockrun sets for COMMAND, nor one that describes a service.
pub fn check(name: &OsStr) -> Result<(), UsageError> {
    let known = || {
        let of_commands = text::ENVIRONMENT.iter().map(|(name, _)| (*name).to_owned());
        files::option_names().map(variable).chain(of_commands)
    };
    let is_ignored = || name == VERSION || name.to_str().is_some_and(describes_service);
    if known().any(|known| name == known.as_str()) || is_ignored() {
        return Ok(());
    }
    // The prefix, which all share, would make wrong names look alike.
    let typed = name.to_string_lossy().to_ascii_uppercase();
    let typed = typed.strip_prefix(PREFIX).unwrap_or(&typed);
    let names = || known().filter_map(|known| known.strip_prefix(PREFIX).map(str::to_owned));
    // As TIMEOUT stands for STORE_TIMEOUT.
    let longer = || names().find(|name| !typed.is_empty() && name.ends_with(&format!("_{typed}")));
    let meant = match alike(typed, names()).or_else(longer) {
        Some(meant) => format!("the nearest is {PREFIX}{meant}: rename it or unset it"),
        None => "unset it; `lockrun --help` names those that it has".to_owned(),
    };
    // A name with other characters may be a store's address.
    let is_plain = name.to_str().is_some_and(is_plain_word);
    let shown = if is_plain {
        escaped_os(name)
    } else {
        format!("a variable that begins with {PREFIX} (not shown, as it may contain a password)")
    };
    Err(format!("{shown} is not a variable of lockrun; {meant}").into())
}

/// Returns whether Kubernetes gives a container a variable of this name for a service: `lockrun`, or one whose name
/// begins with `lockrun-`.
fn describes_service(name: &str) -> bool {
    let is_word = |text: &str| {
        let is_letter = |byte: u8| byte.is_ascii_uppercase() || byte.is_ascii_digit() || byte == b'_';
        !text.is_empty() && text.bytes().all(is_letter)
    };
    let ends = |end: &str| name.ends_with(end);
    is_word(name)
        && (ends("_SERVICE_HOST")
            || ends("_PORT")
            || name.rsplit_once("_SERVICE_PORT_").is_some_and(|(_, port)| is_word(port))
            || name.rsplit_once("_PORT_").is_some_and(|(_, port)| describes_port(port)))
}

/// Returns whether the rest of a variable's name describes a port of a service, as in `6379_TCP` and `6379_TCP_ADDR`.
fn describes_port(port: &str) -> bool {
    let mut words = port.split('_');
    let is_number = words.next().is_some_and(|number| number.parse::<u16>().is_ok());
    let is_protocol = words.next().is_some_and(|protocol| ["TCP", "UDP", "SCTP"].contains(&protocol));
    is_number && is_protocol && [None, Some("PROTO"), Some("ADDR")].contains(&words.next()) && words.next().is_none()
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStrExt as _;

    use super::*;

    #[test]
    fn every_variable_is_known() {
        for name in ["LOCKRUN_STORE", "LOCKRUN_CONFLICT_EXIT_CODE", "LOCKRUN_KEY", "LOCKRUN_OUTER_TOKENS", VERSION] {
            assert!(check(name.as_ref()).is_ok(), "{name}");
        }
    }

    #[test]
    fn the_nearest_is_named() {
        for (name, nearest) in [
            ("LOCKRUN_STOER", "LOCKRUN_STORE"),
            ("LOCKRUN_store", "LOCKRUN_STORE"),
            ("LOCKRUN_STOREFILE", "LOCKRUN_STORE_FILE"),
            ("LOCKRUN_STORE-FILE", "LOCKRUN_STORE_FILE"),
            ("LOCKRUN_TIMEOUT", "LOCKRUN_STORE_TIMEOUT"),
            ("LOCKRUN_SKPI", "LOCKRUN_SKIP"),
            ("LOCKRUN_TOKENS", "LOCKRUN_TOKEN"),
        ] {
            let wrong = check(name.as_ref()).expect_err(name).to_string();
            assert!(
                wrong.starts_with(&format!("{name} ")) && wrong.contains(&format!("nearest is {nearest}:")),
                "{wrong}"
            );
        }
        for name in ["LOCKRUN_", "LOCKRUN_LOG", "LOCKRUN_DEBUG"] {
            let wrong = check(name.as_ref()).expect_err(name).to_string();
            assert!(wrong.contains("unset it; `lockrun --help`"), "{wrong}");
        }
    }

    #[test]
    fn the_variables_of_a_service_are_ignored() {
        for service in ["LOCKRUN", "LOCKRUN_REDIS", "LOCKRUN_2_PORT"] {
            for end in [
                "_SERVICE_HOST",
                "_SERVICE_PORT",
                "_SERVICE_PORT_HTTP_METRICS",
                "_PORT",
                "_PORT_6379_TCP",
                "_PORT_53_UDP_PROTO",
                "_PORT_5000_SCTP_PORT",
                "_PORT_6379_TCP_ADDR",
            ] {
                let name = format!("{service}{end}");
                assert!(check(name.as_ref()).is_ok(), "{name}");
            }
        }
        for name in [
            "LOCKRUN_SERVICE",
            "LOCKRUN_HOST",
            "LOCKRUN_REDIS_SERVICE_HOSTS",
            "LOCKRUN_redis_SERVICE_HOST",
            "LOCKRUN_SERVICE_PORT_",
            "LOCKRUN_PORT_TCP",
            "LOCKRUN_PORT_65536_TCP",
            "LOCKRUN_PORT_6379_HTTP",
            "LOCKRUN_PORT_6379_TCP_NAME",
            "LOCKRUN_PORT_6379_TCP_ADDR_",
        ] {
            assert!(check(name.as_ref()).is_err(), "{name}");
        }
    }

    #[test]
    fn a_hostile_name_is_not_shown() {
        let wrong = check(OsStr::from_bytes(b"LOCKRUN_\x1b[31m\xff\n")).expect_err("is none").to_string();
        assert!(
            wrong.starts_with("a variable that begins with LOCKRUN_ (not shown, as it may contain a password) is not"),
            "{wrong}"
        );
    }
}
