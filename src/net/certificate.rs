//! Reads what rustls does not from a server's certificate: the hash for channel binding, and the public key even of a
//! certificate that rustls cannot parse.

use const_oid::ObjectIdentifier;
use const_oid::db::rfc5912::{
    ECDSA_WITH_SHA_256, ECDSA_WITH_SHA_384, ECDSA_WITH_SHA_512, ID_RSASSA_PSS, MD_5_WITH_RSA_ENCRYPTION,
    SHA_1_WITH_RSA_ENCRYPTION, SHA_256_WITH_RSA_ENCRYPTION, SHA_384_WITH_RSA_ENCRYPTION, SHA_512_WITH_RSA_ENCRYPTION,
};
use der::{Reader as _, SliceReader, Tag};
use ring::digest::{Algorithm, SHA256, SHA384, SHA512, digest};
use rustls::pki_types::{CertificateDer, SubjectPublicKeyInfoDer, alg_id};

/// RFC 3279, section 2.2.3.
const ECDSA_WITH_SHA_1: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.2.840.10045.4.1");

/// The parts of a certificate that are read here (RFC 5280, section 4.1).
struct Parts<'a> {
    /// The complete `subjectPublicKeyInfo`.
    public_key: &'a [u8],
    /// The contents of `signatureAlgorithm`.
    signature_algorithm: &'a [u8],
}

impl<'a> Parts<'a> {
    fn read(certificate: &'a [u8]) -> der::Result<Self> {
        SliceReader::new(certificate)?.sequence(|certificate| {
            let public_key = certificate.sequence(|signed| {
                // The version; version 1 omits it.
                if Tag::peek(signed)?.is_context_specific() {
                    signed.tlv_bytes()?;
                }
                for _before in ["serialNumber", "signature", "issuer", "validity", "subject"] {
                    signed.tlv_bytes()?;
                }
                let public_key = signed.tlv_bytes()?;
                skip_rest(signed)?;
                Ok::<_, der::Error>(public_key)
            })?;
            let signature_algorithm = certificate.decode::<der::asn1::AnyRef>()?.value();
            skip_rest(certificate)?;
            Ok(Parts { public_key, signature_algorithm })
        })
    }

    /// Returns the hash function of the signature algorithm, with SHA-256 in place of MD5 and SHA-1. `None` if the
    /// algorithm has none of its own, like Ed25519, or is not known.
    fn hash(&self) -> Option<&'static Algorithm> {
        let algorithm = SliceReader::new(self.signature_algorithm).ok()?.decode().ok()?;
        match algorithm {
            MD_5_WITH_RSA_ENCRYPTION
            | SHA_1_WITH_RSA_ENCRYPTION
            | ECDSA_WITH_SHA_1
            | SHA_256_WITH_RSA_ENCRYPTION
            | ECDSA_WITH_SHA_256 => Some(&SHA256),
            SHA_384_WITH_RSA_ENCRYPTION | ECDSA_WITH_SHA_384 => Some(&SHA384),
            SHA_512_WITH_RSA_ENCRYPTION | ECDSA_WITH_SHA_512 => Some(&SHA512),
            // The hash function is one of the algorithm's parameters.
            ID_RSASSA_PSS => {
                let known = [
                    (alg_id::RSA_PSS_SHA256, &SHA256),
                    (alg_id::RSA_PSS_SHA384, &SHA384),
                    (alg_id::RSA_PSS_SHA512, &SHA512),
                ];
                known.into_iter().find(|(id, _)| id.as_ref() == self.signature_algorithm).map(|(_, hash)| hash)
            }
            _ => None,
        }
    }
}

/// Skips the remaining values.
fn skip_rest(reader: &mut SliceReader<'_>) -> der::Result<()> {
    while !reader.is_finished() {
        reader.tlv_bytes()?;
    }
    Ok(())
}

/// Returns the channel binding data `tls-server-end-point` (RFC 5929, section 4.1): the certificate's hash, by the hash
/// function of its signature algorithm. `None` if that algorithm has no hash function of its own, like Ed25519, for
/// which the RFC defines no such data.
pub(super) fn server_end_point(certificate: &CertificateDer<'_>) -> Option<Vec<u8>> {
    let hash = Parts::read(certificate).ok()?.hash()?;
    Some(digest(hash, certificate).as_ref().to_vec())
}

/// Returns the public key, even of a certificate of X.509 version 1. `None` if it is not a certificate.
pub(super) fn public_key<'a>(certificate: &'a CertificateDer<'_>) -> Option<SubjectPublicKeyInfoDer<'a>> {
    Some(Parts::read(certificate).ok()?.public_key.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::testing::{Certificates, ECDSA};

    #[test]
    fn a_server_is_known_by_the_hash_of_its_certificates_signature() {
        let made = Certificates::make();
        let rsa = "rsa:2048";
        let pss = "-sigopt rsa_padding_mode:pss -sigopt rsa_pss_saltlen:digest";
        for (key, options, hash) in [
            (rsa, "-sha256", "sha256"),
            (rsa, "-sha384", "sha384"),
            (rsa, "-sha512", "sha512"),
            (ECDSA, "-sha256", "sha256"),
            (ECDSA, "-sha384", "sha384"),
            (ECDSA, "-sha512", "sha512"),
            (rsa, &format!("-sha256 {pss}"), "sha256"),
            (rsa, &format!("-sha512 {pss}"), "sha512"),
            // Too weak to identify a server by.
            (rsa, "-md5", "sha256"),
            (rsa, "-sha1", "sha256"),
            (ECDSA, "-sha1", "sha256"),
        ] {
            made.sign_itself("server", key, options);
            made.openssl("x509 -in server.crt -outform DER -out server.der");
            let wanted = made.openssl(&format!("dgst -{hash} -binary server.der"));
            assert_eq!(server_end_point(&made.certificate("server")), Some(wanted), "{key} {options}");
        }
        made.sign_itself("server", "ed25519", "");
        assert_eq!(server_end_point(&made.certificate("server")), None);
    }

    #[test]
    fn keys_are_found_in_certificates_of_both_versions() {
        let made = Certificates::make();
        made.issue("first", &[]);
        made.issue("third", &["subjectAltName=DNS:localhost"]);
        for name in ["first", "third"] {
            made.openssl(&format!("pkey -in {name}.key -pubout -outform DER -out key.der"));
            let wanted = std::fs::read(made.path("key.der")).expect("is there");
            let certificate = made.certificate(name);
            assert_eq!(public_key(&certificate).expect("has a key").as_ref(), wanted, "{name}");
        }
    }

    #[test]
    fn what_is_no_certificate_has_neither() {
        let made = Certificates::make();
        let whole = made.certificate("ca");
        for length in 0..whole.len() {
            let part = CertificateDer::from(&whole[..length]);
            assert!(server_end_point(&part).is_none() && public_key(&part).is_none(), "{length}");
        }
        // No change of a byte causes a panic.
        for at in 0..whole.len() {
            let mut changed = whole.to_vec();
            changed[at] ^= 0xff;
            let changed = CertificateDer::from(changed);
            let _ = (server_end_point(&changed), public_key(&changed));
        }
    }
}
