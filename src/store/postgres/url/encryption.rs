//! The parameters for TLS in the URL of a PostgreSQL database.

use crate::net::endpoint::TlsFiles;
use crate::net::tls::Verification;
use crate::store::encryption::{Encryption, Spelling};
use crate::store::url::{Parameters, refuse_if};

/// libpq's names for parameters that all stores have.
const SYNONYMS: [(&str, &str); 3] = [("sslrootcert", "ca"), ("sslcert", "cert"), ("sslkey", "key")];

/// libpq's words for the kinds of encryption.
const SPELLING: Spelling =
    Spelling { parameter: "sslmode", values: ["disable", "prefer", "require", "verify-ca", "verify-full"] };

/// Whether SCRAM is bound to the TLS connection: then only the server whose certificate we see can use our proof.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::store::postgres) enum Binding {
    /// Never, for a proxy in between that shows a certificate of its own.
    Never,
    /// If both sides can.
    IfOffered,
    /// With binding, or not at all. Other kinds of authentication are rejected, too.
    Required,
}

/// Reads the parameters for TLS. As in libpq, a socket is not encrypted whatever `sslmode` is, `ssl=true` means
/// `sslmode=require`, and with an authority `require` verifies the certificate. Unlike in libpq, `allow` means
/// `prefer`. The default is `verify-full` with an authority, else `prefer`.
pub(super) fn encryption(parameters: &mut Parameters, over_tcp: bool) -> Result<(Encryption, TlsFiles), String> {
    let mut trusts_system = false;
    for (synonym, name) in SYNONYMS {
        let value = parameters.take(synonym);
        // libpq's value for the system's authorities.
        if synonym == "sslrootcert" && value.as_deref() == Some("system") {
            trusts_system = true;
            refuse_if(parameters.has(name), "has sslrootcert=system beside ca")?;
        } else if let Some(value) = value {
            parameters.put(name, value).map_err(|_| format!("has both {name} and {synonym}, which mean the same"))?;
        }
    }
    let tls = parameters.take_tls()?;
    let mode = match (parameters.take("sslmode"), parameters.take("ssl").as_deref()) {
        (Some(_), Some(_)) => return Err("has both ssl and sslmode".into()),
        (mode, None) => mode,
        (None, Some("true")) => Some("require".into()),
        (None, Some(_)) => return Err("has a value of ssl that is not true; use sslmode".into()),
    };
    let mode = match mode.as_deref() {
        Some("allow") => Some("prefer"),
        None if trusts_system => Some("verify-full"),
        mode => mode,
    };
    let encryption = Encryption::read(mode, &tls, &SPELLING)?;
    if trusts_system && encryption != Encryption::Required(Verification::Full) {
        return Err("has sslrootcert=system with another sslmode; use verify-full".into());
    }
    let encryption = if over_tcp { encryption } else { Encryption::Never };
    refuse_if(
        encryption == Encryption::Never && tls != TlsFiles::default(),
        "names files for TLS, which it does not use",
    )?;
    Ok((encryption, tls))
}

/// Returns how SCRAM is to be bound to connections with this `encryption`, as `channel_binding` says.
pub(super) fn binding(word: Option<&str>, encryption: Encryption) -> Result<Binding, String> {
    match word {
        Some("disable") => Ok(Binding::Never),
        None | Some("prefer") => Ok(Binding::IfOffered),
        Some("require") if encryption == Encryption::Never => {
            Err("has channel_binding=require, which needs TLS".into())
        }
        Some("require") => Ok(Binding::Required),
        Some(_) => Err("has a channel_binding that is none of disable, prefer and require".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::server;
    use super::*;

    #[test]
    fn modes_of_tls_are_libpqs() {
        let required = Encryption::Required;
        for (query, wanted) in [
            ("", Encryption::IfOffered),
            ("sslmode=disable", Encryption::Never),
            ("sslmode=allow", Encryption::IfOffered),
            ("sslmode=prefer", Encryption::IfOffered),
            ("sslmode=prefer&cert=/c&key=/k", Encryption::IfOffered),
            ("sslmode=require", required(Verification::None)),
            ("ssl=true", required(Verification::None)),
            ("sslmode=require&ca=/a", required(Verification::Authority)),
            ("sslmode=verify-ca&sslrootcert=/a", required(Verification::Authority)),
            ("sslmode=verify-full", required(Verification::Full)),
            ("sslmode=verify-full&ca=/a", required(Verification::Full)),
            ("ca=/a", required(Verification::Full)),
            ("sslrootcert=system", required(Verification::Full)),
            ("sslrootcert=system&sslmode=verify-full", required(Verification::Full)),
        ] {
            assert_eq!(server(&format!("postgres://h/db?{query}")).encryption, wanted, "{query}");
        }
        assert_eq!(server("postgres://h/db?sslrootcert=system").tls, TlsFiles::default());
        let libpqs = server("postgres://h/db?sslrootcert=/a&sslcert=/c&sslkey=/k");
        assert_eq!(libpqs, server("postgres://h/db?ca=/a&cert=/c&key=/k"));
        // Sockets are not encrypted; TCP hosts named beside them are.
        assert_eq!(server("postgres:///db?sslmode=verify-full").encryption, Encryption::Never);
        let mixed = server("postgres:///db?host=/tmp,h&sslmode=verify-full");
        assert_eq!(mixed.encryption, required(Verification::Full));
    }
}
