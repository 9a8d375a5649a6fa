//! Parts of a URL, for every kind of store.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

use percent_encoding::percent_decode_str;
use url::form_urlencoded;

use crate::net::endpoint::TlsFiles;

/// The parameters of a URL that nobody has asked for yet.
pub(super) struct Parameters(Vec<(String, String)>);

impl Parameters {
    /// Reads what stands behind the `?`, if anything does. Fails if a parameter is there twice.
    pub(super) fn read(query: Option<&str>) -> Result<Self, String> {
        let pairs: Vec<(String, String)> =
            form_urlencoded::parse(query.unwrap_or_default().as_bytes()).into_owned().collect();
        for (at, (name, _)) in pairs.iter().enumerate() {
            if pairs[..at].iter().any(|(earlier, _)| earlier == name) {
                return Err(format!("has the parameter {name:?} twice"));
            }
        }
        Ok(Parameters(pairs))
    }

    /// Returns the value of one, if it is there.
    pub(super) fn take(&mut self, name: &str) -> Option<String> {
        let at = self.0.iter().position(|(known, _)| known == name)?;
        Some(self.0.swap_remove(at).1)
    }

    /// Returns the files that TLS needs: `ca`, `cert` and `key`.
    pub(super) fn take_tls(&mut self) -> Result<TlsFiles, String> {
        let ca = self.take("ca").map(PathBuf::from);
        let identity = match (self.take("cert"), self.take("key")) {
            (Some(cert), Some(key)) => Some((cert.into(), key.into())),
            (None, None) => None,
            _ => return Err("has one of the parameters cert and key; they go together".into()),
        };
        Ok(TlsFiles { ca, identity })
    }

    /// Fails if some are left. Those of TLS need another scheme, `with_tls`, if there is one.
    pub(super) fn none_left(&self, with_tls: Option<&str>) -> Result<(), String> {
        let Some((name, _)) = self.0.first() else { return Ok(()) };
        match with_tls.filter(|_| matches!(name.as_str(), "ca" | "cert" | "key")) {
            Some(with_tls) => Err(format!("has the parameter {name:?}, which needs TLS: {with_tls}")),
            None => Err(format!("has the parameter {name:?}, which is not known")),
        }
    }
}

/// Returns a part of a URL, decoded.
pub(super) fn decoded(part: &str) -> Result<String, String> {
    let text = percent_decode_str(part).decode_utf8().map_err(|_| "is not UTF-8 when its % are decoded")?;
    Ok(text.into_owned())
}

/// The same for a path, which may be any bytes.
pub(super) fn decoded_path(part: &str) -> PathBuf {
    PathBuf::from(OsString::from_vec(percent_decode_str(part).collect()))
}
