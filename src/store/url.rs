//! Parses what the URLs of all kinds of stores have in common: user and password, hosts, and parameters.
//!
//! No error repeats a part of the URL but the names of known parameters: any other may be a password.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

use percent_encoding::percent_decode_str;

use crate::net::endpoint::{Endpoint, TlsFiles};
use crate::text::nearest::alike;

/// The parts of a URL of servers, `SCHEME://USER:PASSWORD@HOST,HOST/PATH?PARAMETERS`, not yet decoded.
pub(super) struct Url<'a> {
    pub(super) scheme: &'a str,
    /// What is before the `@`, if there is one.
    login: Option<&'a str>,
    pub(super) hosts: &'a str,
    pub(super) path: &'a str,
    pub(super) parameters: Parameters,
}

impl<'a> Url<'a> {
    /// Splits a URL.
    pub(super) fn read(text: &'a str) -> Result<Self, String> {
        let scheme = text.split(':').next().unwrap_or_default();
        let rest = text[scheme.len()..].strip_prefix("://").ok_or_else(|| format!("lacks the // after {scheme}:"))?;
        let (before, query) = split_query(rest)?;
        let (authority, path) = before.split_once('/').unwrap_or((before, ""));
        let (login, hosts) = match authority.rsplit_once('@') {
            Some((login, hosts)) => (Some(login), hosts),
            None => (None, authority),
        };
        // Otherwise the URL would be cut in the middle of a password, and the rest taken for a host. There is no host
        // before the path of a socket.
        let may_have_at = scheme.ends_with("+unix");
        refuse_if(
            login.is_some_and(|login| login.contains('@')) || !may_have_at && rest[authority.len()..].contains('@'),
            "has an @ that belongs to a user, password or value; write %40, and for a / or ? before it %2F or %3F",
        )?;
        Ok(Url { scheme, login, hosts, path, parameters: Parameters::read(query)? })
    }

    /// Returns the user, which may be empty, and the password, if there is an `@`.
    pub(super) fn login(&self) -> Result<Option<(String, Option<String>)>, String> {
        let Some(login) = self.login else { return Ok(None) };
        let (user, password) = login.split_once(':').map_or((login, None), |(user, password)| (user, Some(password)));
        let password = password.map(|password| decoded_as("password", password)).transpose()?;
        Ok(Some((decoded_as("user", user)?, password)))
    }

    /// Fails if there is a comma before the `@`: the text before the comma may be a host, and the text after it a
    /// password that was repeated for each host.
    pub(super) fn check_one_login(&self) -> Result<(), String> {
        refuse_if(
            self.login.is_some_and(|login| login.contains(',')),
            "has a comma before the @; write the user and the password once, before the first host, and %2C for a \
             comma in them",
        )
    }

    /// Reads `HOST:PORT,HOST:PORT`, with this `port` where there is none. Returns at least one server.
    pub(super) fn servers(&self, port: u16, tls: Option<&TlsFiles>) -> Result<Vec<Endpoint>, String> {
        let server = |listed| {
            let (host, own_port) = split_port(listed)?;
            let host = decoded(host)?;
            refuse_if(host.is_empty(), "names no host, or has a comma too many")?;
            refuse_if(!is_host(&host), "has a host that is neither a name nor an address")?;
            Ok(Endpoint::Tcp { host, port: own_port.unwrap_or(port), tls: tls.cloned() })
        };
        self.hosts.split(',').map(server).collect()
    }
}

/// Fails for this reason if the URL `is_wrong`.
pub(super) fn refuse_if(is_wrong: bool, why: &str) -> Result<(), String> {
    if is_wrong { Err(why.to_owned()) } else { Ok(()) }
}

/// Splits what follows the scheme at the `?`, if there is one.
pub(super) fn split_query(rest: &str) -> Result<(&str, Option<&str>), String> {
    refuse_if(rest.contains('#'), "has a # in it; write %23")?;
    Ok(rest.split_once('?').map_or((rest, None), |(before, query)| (before, Some(query))))
}

/// The parameters of a URL that have not been taken yet.
#[derive(Default)]
pub(super) struct Parameters {
    left: Vec<Parameter>,
    /// The names that were asked for: those that this kind of URL knows.
    known: Vec<String>,
}

/// A parameter.
struct Parameter {
    name: String,
    value: String,
    /// Its place behind the `?`, from 1.
    place: usize,
}

impl Parameters {
    /// Parses the part after the `?`, if there is one. A `+` stands for itself. Fails if a parameter occurs twice, or
    /// has two `=`: it may then be several parameters, one of them a secret, with another separator than `&`.
    pub(super) fn read(query: Option<&str>) -> Result<Self, String> {
        let mut parameters = Parameters::default();
        for (parameter, place) in query.unwrap_or_default().split('&').zip(1..) {
            if parameter.is_empty() {
                continue;
            }
            let (name, value) = parameter.split_once('=').unwrap_or((parameter, ""));
            refuse_if(value.contains('='), "has a parameter with two = in it; write %3D, and & between parameters")?;
            parameters.add(Parameter { name: decoded(name)?, value: decoded(value)?, place })?;
        }
        Ok(parameters)
    }

    /// Adds a parameter that the URL has under another name. Fails if it is already there.
    pub(super) fn put(&mut self, name: &str, value: String) -> Result<(), String> {
        self.add(Parameter { name: name.to_owned(), value, place: 0 })
    }

    fn add(&mut self, parameter: Parameter) -> Result<(), String> {
        refuse_if(self.has(&parameter.name), "has the same parameter twice")?;
        self.left.push(parameter);
        Ok(())
    }

    /// Returns whether there is such a parameter. The name does not count as known.
    pub(super) fn has(&self, name: &str) -> bool {
        self.left.iter().any(|parameter| parameter.name == name)
    }

    /// Removes a parameter and returns its value, if it is there. The name counts as known.
    pub(super) fn take(&mut self, name: &str) -> Option<String> {
        self.ask_for(name);
        let at = self.left.iter().position(|parameter| parameter.name == name)?;
        Some(self.left.swap_remove(at).value)
    }

    /// Does the same, and returns this `default` if the parameter is not there.
    pub(super) fn take_or(&mut self, name: &str, default: &str) -> String {
        self.take(name).unwrap_or_else(|| default.to_owned())
    }

    fn ask_for(&mut self, name: &str) {
        if !self.known.iter().any(|known| known == name) {
            self.known.push(name.to_owned());
        }
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

    /// Fails if a parameter is left: it is none of those that were asked for, or one for TLS, which needs another
    /// scheme, `with_tls`, if there is such a scheme. Does not repeat an unknown name, which may be a password behind
    /// an unescaped `?` or `&`, but says where it is.
    pub(super) fn none_left(&self, with_tls: Option<&str>) -> Result<(), String> {
        let Some(Parameter { name, place, .. }) = self.left.iter().min_by_key(|parameter| parameter.place) else {
            return Ok(());
        };
        if let Some(with_tls) = with_tls.filter(|_| matches!(name.as_str(), "ca" | "cert" | "key")) {
            return Err(format!("has the parameter {name:?}, which needs TLS: {with_tls}"));
        }
        let meant = match alike(name, self.known.iter().map(String::as_str)) {
            Some(meant) => format!("did you mean {meant}?"),
            None if self.known.len() == 1 => format!("there is {}", self.known.concat()),
            None => format!("there are {}", self.known.join(", ")),
        };
        Err(format!("has a parameter that is not known, number {place} after the ?; {meant}"))
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

/// Fails if a part of a URL, called `name`, has one of these `separators` in it: what follows may be a parameter of
/// another program's address, such as a password, and messages repeat this part.
pub(super) fn check_separators(part: &str, name: &str, separators: &[char]) -> Result<(), String> {
    match part.chars().find(|c| separators.contains(c)) {
        None => Ok(()),
        Some(found) => Err(format!(
            "has a {found} in its {name}; write %{:02X} if it is part of it, and ? before the first parameter and & between parameters",
            u32::from(found)
        )),
    }
}

/// What separates the parameters of other programs' addresses: from a name, and from a path, in which a comma is more
/// usual.
pub(super) const AFTER_NAMES: &[char] = &[',', ';', '='];
pub(super) const AFTER_PATHS: &[char] = &[';', '='];

/// Decodes a part of a URL.
pub(super) fn decoded(part: &str) -> Result<String, String> {
    let text = percent_decode_str(part).decode_utf8().map_err(|_| "is not UTF-8 when its % are decoded")?;
    Ok(text.into_owned())
}

/// Decodes the part of a URL that is called `name`.
pub(super) fn decoded_as(name: &str, part: &str) -> Result<String, String> {
    decoded(part).map_err(|why| format!("has a {name} that {why}"))
}

/// Decodes a path, which may contain any bytes.
pub(super) fn decoded_path(part: &str) -> PathBuf {
    PathBuf::from(OsString::from_vec(percent_decode_str(part).collect()))
}

/// Returns whether a host has only the characters of names and addresses: a password's separator, as in
/// `HOST,password=PASSWORD`, would otherwise make the password a host, which messages repeat.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_parameter_is_found_by_its_place() {
        let refused = |query: &str, asked: &[&str]| {
            let mut parameters = Parameters::read(Some(query)).expect("is right");
            for name in asked {
                parameters.take(name);
            }
            parameters.none_left(Some("rediss://")).expect_err("one is left")
        };
        let unknown = "has a parameter that is not known, number";
        assert_eq!(refused("prefix=a&db=3&x=y", &["prefix"]), format!("{unknown} 2 after the ?; there is prefix"));
        assert_eq!(
            refused("&sentinel_pasword=s", &["prefix", "sentinel_user", "sentinel_password"]),
            format!("{unknown} 2 after the ?; did you mean sentinel_password?")
        );
        assert_eq!(refused("s3cret", &["a", "b"]), format!("{unknown} 1 after the ?; there are a, b"));
        assert_eq!(refused("ca=x", &["prefix"]), "has the parameter \"ca\", which needs TLS: rediss://");
        assert!(
            Parameters::read(Some("a=1&&"))
                .is_ok_and(|mut read| read.take("a").is_some() && read.none_left(None).is_ok())
        );
    }

    #[test]
    fn a_separator_is_no_part_of_a_name() {
        assert_eq!(check_separators("a-b_c%3B", "service", AFTER_NAMES), Ok(()));
        for part in ["s,password=x", "s;password=x", "password=x"] {
            let why = check_separators(part, "service", AFTER_NAMES).expect_err(part);
            assert!(why.contains("in its service; write %") && !why.contains("password"), "{why}");
        }
    }
}
