//! Parts of a URL, for every kind of store.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

use percent_encoding::percent_decode_str;

use crate::net::endpoint::TlsFiles;
use crate::text::nearest::alike;

/// The parameters of a URL that have not been taken yet.
pub(super) struct Parameters(Vec<(String, String)>);

impl Parameters {
    /// Parses the part after the `?`, if there is one. A `+` stands for itself. Fails if a parameter occurs twice, or has two
    /// `=`: it may then be several parameters, one of them a secret, with another separator than `&`.
    pub(super) fn read(query: Option<&str>) -> Result<Self, String> {
        let mut parameters = Parameters(Vec::new());
        for parameter in query.unwrap_or_default().split('&').filter(|parameter| !parameter.is_empty()) {
            let (name, value) = parameter.split_once('=').unwrap_or((parameter, ""));
            if value.contains('=') {
                return Err("has a parameter with two = in it; write %3D, and & between parameters".into());
            }
            parameters.put(&decoded(name)?, decoded(value)?)?;
        }
        Ok(parameters)
    }

    /// Adds a parameter. Fails if it is already there.
    pub(super) fn put(&mut self, name: &str, value: String) -> Result<(), String> {
        if self.has(name) {
            return Err("has the same parameter twice".into());
        }
        self.0.push((name.to_owned(), value));
        Ok(())
    }

    /// Returns whether there is such a parameter.
    pub(super) fn has(&self, name: &str) -> bool {
        self.0.iter().any(|(known, _)| known == name)
    }

    /// Removes a parameter and returns its value, if it is there.
    pub(super) fn take(&mut self, name: &str) -> Option<String> {
        let at = self.0.iter().position(|(known, _)| known == name)?;
        Some(self.0.swap_remove(at).1)
    }

    /// Takes the parameters for TLS, `ca`, `cert` and `key`, and returns their files.
    pub(super) fn take_tls(&mut self) -> Result<TlsFiles, String> {
        let mut file = |name: &str| match self.take(name) {
            Some(path) if path.is_empty() => Err(format!("has an empty {name}; name a file, or leave it out")),
            path => Ok(path.map(PathBuf::from)),
        };
        let ca = file("ca")?;
        let identity = match (file("cert")?, file("key")?) {
            (Some(cert), Some(key)) => Some((cert, key)),
            (None, None) => None,
            _ => return Err("has one of the parameters cert and key; they go together".into()),
        };
        Ok(TlsFiles { ca, identity })
    }

    /// Fails if a parameter is left: it is none of the `known` ones, or one for TLS, which needs another scheme, `with_tls`, if there is
    /// such a scheme. Does not repeat an unknown name, which may be a password behind an unescaped `?` or `&`.
    pub(super) fn none_left(&self, known: &[&str], with_tls: Option<&str>) -> Result<(), String> {
        let Some((name, _)) = self.0.first() else { return Ok(()) };
        match with_tls.filter(|_| matches!(name.as_str(), "ca" | "cert" | "key")) {
            Some(with_tls) => Err(format!("has the parameter {name:?}, which needs TLS: {with_tls}")),
            None => Err(match alike(name, known.iter()) {
                Some(meant) if name != meant => format!("has a parameter that is not known; did you mean {meant}?"),
                _ => {
                    let are = if known.len() == 1 { "is" } else { "are" };
                    format!("has a parameter that is not known; there {are} {}", known.join(", "))
                }
            }),
        }
    }
}

/// Returns the parameters for these files, as they follow another parameter.
#[cfg(any(test, fuzzing))]
pub(super) fn spelled_tls(files: &TlsFiles) -> String {
    use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};

    let (cert, key) = files.identity.as_ref().map_or((None, None), |(cert, key)| (Some(cert), Some(key)));
    let named = [("ca", files.ca.as_ref()), ("cert", cert), ("key", key)];
    let spelled = |(name, path): (&str, Option<&PathBuf>)| {
        Some(format!("&{name}={}", utf8_percent_encode(path?.to_str()?, NON_ALPHANUMERIC)))
    };
    named.into_iter().filter_map(spelled).collect()
}

/// Decodes a part of a URL.
pub(super) fn decoded(part: &str) -> Result<String, String> {
    let text = percent_decode_str(part).decode_utf8().map_err(|_| "is not UTF-8 when its % are decoded")?;
    Ok(text.into_owned())
}

/// Decodes a path, which may contain any bytes.
pub(super) fn decoded_path(part: &str) -> PathBuf {
    PathBuf::from(OsString::from_vec(percent_decode_str(part).collect()))
}

/// Returns whether a host has only the characters of names and addresses: a password's separator, as in `HOST,password=PASSWORD`, would
/// otherwise make the password a host, which messages repeat.
pub(super) fn is_host(host: &str) -> bool {
    !host.is_empty() && host.chars().all(|c| c.is_alphanumeric() || matches!(c, '.' | '-' | '_' | ':' | '%'))
}

/// Splits `host:port`, where the host may be an IPv6 address in brackets, which are removed.
pub(super) fn split_port(listed: &str) -> Result<(&str, Option<u16>), String> {
    let (host, rest) = match listed.strip_prefix('[') {
        Some(bracketed) => bracketed.split_once(']').ok_or("has a [ without its ]")?,
        // With more than one colon it is not host:port.
        None if listed.bytes().filter(|byte| *byte == b':').count() > 1 && is_address(listed) => {
            return Err("has an IPv6 address without brackets; write [ADDRESS] or [ADDRESS]:PORT".into());
        }
        None => listed.split_at(listed.find(':').unwrap_or(listed.len())),
    };
    match rest.strip_prefix(':') {
        Some(port) => Ok((host, port_number(port)?)),
        None if rest.is_empty() => Ok((host, None)),
        None => Err("has something other than a port behind a ]".into()),
    }
}

/// Returns whether this may be an IPv6 address, with or without a port.
fn is_address(listed: &str) -> bool {
    listed.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b':')
}

/// Returns the port; `None` if the text is empty. The error never repeats the text, which may be a password.
pub(super) fn port_number(port: &str) -> Result<Option<u16>, String> {
    let is_number = || port.bytes().all(|byte| byte.is_ascii_digit());
    match port.parse() {
        _ if port.is_empty() => Ok(None),
        Ok(number) if number > 0 && is_number() => Ok(Some(number)),
        _ => Err("has a port that is not a number from 1 to 65535".into()),
    }
}
