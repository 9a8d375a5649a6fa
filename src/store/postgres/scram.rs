//! SCRAM-SHA-256 (RFC 5802, RFC 7677): each side proves that it knows the password, and neither shows it.
//!
//! Not the postgres-protocol crate's: a server says how often the password is to be hashed before it has proved anything, so that crate
//! refuses more than 100000 rounds. Guides ask for up to 600000 (`scram_iterations`; PostgreSQL's default is 4096). Here the deadline of
//! the request bounds them.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use ring::digest::{SHA256, SHA256_OUTPUT_LEN, digest};
use ring::hmac::{self, HMAC_SHA256};
use uuid::Uuid;

use crate::sys::clock::Moment;

/// The name of the mechanism.
pub(super) const SCRAM: &str = "SCRAM-SHA-256";

/// The same with a proof that is bound to the TLS connection.
pub(super) const SCRAM_PLUS: &str = "SCRAM-SHA-256-PLUS";

/// After how many rounds of hashing it is seen whether the time is over: a few milliseconds.
const ROUNDS_AT_A_TIME: u64 = 2048;

/// To what the proof is bound.
pub(super) enum ChannelBinding {
    /// To nothing: the client cannot, or is not to.
    None,
    /// To nothing, because the server does not offer it. One that does offer it learns from this that its offer was withheld.
    NotOffered,
    /// To the server's certificate, by the binding data `tls-server-end-point`.
    EndPoint(Vec<u8>),
}

/// The client's side of an exchange.
pub(super) struct Scram {
    /// The password as it is hashed.
    password: String,
    binding: ChannelBinding,
    /// What nobody can foresee, so that an old exchange is of no use.
    nonce: String,
}

/// Why there is no proof.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum NoProof {
    /// The server's message is not SCRAM's.
    Malformed,
    /// The server asks for this many rounds of hashing, and the time was over before they were done.
    Late { rounds: u64 },
}

/// What the server has to prove.
pub(super) struct ServerProof {
    key: hmac::Key,
    exchange: String,
}

impl ChannelBinding {
    /// Returns the header of the client's first message (RFC 5802, section 7: `gs2-header`).
    fn header(&self) -> &'static str {
        match self {
            ChannelBinding::None => "n,,",
            ChannelBinding::NotOffered => "y,,",
            ChannelBinding::EndPoint(_) => "p=tls-server-end-point,,",
        }
    }

    fn data(&self) -> &[u8] {
        match self {
            ChannelBinding::EndPoint(data) => data,
            ChannelBinding::None | ChannelBinding::NotOffered => &[],
        }
    }
}

impl Scram {
    /// Begins an exchange.
    pub(super) fn new(password: &str, binding: ChannelBinding) -> Self {
        Scram::with_nonce(password, binding, Uuid::new_v4().simple().to_string())
    }

    fn with_nonce(password: &str, binding: ChannelBinding, nonce: String) -> Self {
        // A password that cannot be prepared (RFC 4013) is hashed as it is: so do PostgreSQL and libpq.
        let password = stringprep::saslprep(password).map_or_else(|_| password.to_owned(), Into::into);
        Scram { password, binding, nonce }
    }

    /// Returns the client's first message.
    pub(super) fn first_message(&self) -> String {
        self.binding.header().to_owned() + &self.bare()
    }

    /// Returns that message without its header. The user is the one of the startup message.
    fn bare(&self) -> String {
        format!("n=,r={}", self.nonce)
    }

    /// Returns the answer to the server's first message, and what the server has to prove in turn.
    pub(super) fn prove(&self, challenge: &[u8], deadline: Moment) -> Result<(String, ServerProof), NoProof> {
        let challenge = str::from_utf8(challenge).map_err(|_| NoProof::Malformed)?;
        let (nonce, salt, rounds) = self.read(challenge).ok_or(NoProof::Malformed)?;
        let salted = self.salted(&salt, rounds, deadline).ok_or(NoProof::Late { rounds })?;
        let salted = hmac::Key::new(HMAC_SHA256, &salted);
        let client_key = hmac::sign(&salted, b"Client Key");
        let stored_key = hmac::Key::new(HMAC_SHA256, digest(&SHA256, client_key.as_ref()).as_ref());
        let server_key = hmac::Key::new(HMAC_SHA256, hmac::sign(&salted, b"Server Key").as_ref());

        let bound = [self.binding.header().as_bytes(), self.binding.data()].concat();
        let answer = format!("c={},r={nonce}", BASE64.encode(bound));
        let exchange = format!("{},{challenge},{answer}", self.bare());
        let signature = hmac::sign(&stored_key, exchange.as_bytes());
        let proof: Vec<u8> =
            client_key.as_ref().iter().zip(signature.as_ref()).map(|(key, signed)| key ^ signed).collect();
        Ok((format!("{answer},p={}", BASE64.encode(proof)), ServerProof { key: server_key, exchange }))
    }

    /// Returns the password, hashed that often (RFC 5802, section 2.2: `Hi`), or nothing if the deadline passes before.
    fn salted(&self, salt: &[u8], rounds: u64, deadline: Moment) -> Option<[u8; SHA256_OUTPUT_LEN]> {
        let key = hmac::Key::new(HMAC_SHA256, self.password.as_bytes());
        let mut last = hmac::sign(&key, &[salt, &1_u32.to_be_bytes()].concat());
        let mut salted = [0; SHA256_OUTPUT_LEN];
        salted.copy_from_slice(last.as_ref());
        for round in 1..rounds {
            if round.is_multiple_of(ROUNDS_AT_A_TIME) && Moment::now() >= deadline {
                return None;
            }
            last = hmac::sign(&key, last.as_ref());
            for (byte, other) in salted.iter_mut().zip(last.as_ref()) {
                *byte ^= other;
            }
        }
        Some(salted)
    }

    /// Reads the server's first message: the nonce, the salt and the rounds, at least one.
    fn read<'a>(&self, challenge: &'a str) -> Option<(&'a str, Vec<u8>, u64)> {
        let parts: Vec<&str> = challenge.split(',').collect();
        let [nonce, salt, rounds] = parts[..] else { return None };
        let nonce = nonce.strip_prefix("r=").filter(|nonce| nonce.starts_with(&self.nonce))?;
        let salt = BASE64.decode(salt.strip_prefix("s=")?).ok()?;
        let rounds = rounds.strip_prefix("i=")?.parse().ok().filter(|rounds| *rounds > 0)?;
        Some((nonce, salt, rounds))
    }
}

impl ServerProof {
    /// Returns whether the server's last message proves that it knows the password.
    pub(super) fn is_in(&self, message: &[u8]) -> bool {
        let signature = message.strip_prefix(b"v=").and_then(|signature| BASE64.decode(signature).ok());
        signature.is_some_and(|signature| hmac::verify(&self.key, self.exchange.as_bytes(), &signature).is_ok())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    // An exchange of psql, as the tests of postgres-protocol have recorded it.
    const NONCE: &str = "9IZ2O01zb9IgiIZ1WJ/zgpJB";
    const CHALLENGE: &str = "r=9IZ2O01zb9IgiIZ1WJ/zgpJBjx/oIRLs02gGSHcw1KEty3eY,s=fs3IXBy7U7+IvVjZ,i=4096";
    const ANSWER: &str =
        "c=biws,r=9IZ2O01zb9IgiIZ1WJ/zgpJBjx/oIRLs02gGSHcw1KEty3eY,p=AmNKosjJzS31NTlQYNs5BTeQjdHdk7lOflDo5re2an8=";
    const SIGNATURE: &str = "v=U+ppxD5XUKtradnv8e2MkeupiA8FU87Sg8CXzXHDAzw=";

    fn begun(binding: ChannelBinding) -> Scram {
        Scram::with_nonce("foobar", binding, NONCE.to_owned())
    }

    fn in_a_minute() -> Moment {
        Moment::now() + Duration::from_mins(1)
    }

    fn refused(challenge: &str, deadline: Moment) -> NoProof {
        let proved = begun(ChannelBinding::None).prove(challenge.as_bytes(), deadline);
        proved.map(|(answer, _)| answer).expect_err(challenge)
    }

    #[test]
    fn both_sides_prove_that_they_know_the_password() {
        let scram = begun(ChannelBinding::None);
        assert_eq!(scram.first_message(), format!("n,,n=,r={NONCE}"));
        let (answer, proof) = scram.prove(CHALLENGE.as_bytes(), in_a_minute()).expect("is a challenge");
        assert_eq!(answer, ANSWER);
        assert!(proof.is_in(SIGNATURE.as_bytes()));
        for other in ["", "v=", "v=U+ppxD5XUKtradnv8e2MkeupiA8FU87Sg8CXzXHDAzs=", "e=other-error", &SIGNATURE[2..]] {
            assert!(!proof.is_in(other.as_bytes()), "{other}");
        }
    }

    #[test]
    fn the_answer_names_what_it_is_bound_to() {
        for (binding, header, bound) in [
            (ChannelBinding::NotOffered, "y,,", "c=eSws,"),
            (
                ChannelBinding::EndPoint(b"hash".to_vec()),
                "p=tls-server-end-point,,",
                "c=cD10bHMtc2VydmVyLWVuZC1wb2ludCwsaGFzaA==,",
            ),
        ] {
            let scram = begun(binding);
            assert_eq!(scram.first_message(), format!("{header}n=,r={NONCE}"));
            let (answer, proof) = scram.prove(CHALLENGE.as_bytes(), in_a_minute()).expect("is a challenge");
            assert!(answer.starts_with(bound), "{answer}");
            // What is signed includes it.
            assert!(!proof.is_in(SIGNATURE.as_bytes()), "{header}");
        }
    }

    #[test]
    fn each_exchange_has_a_nonce_of_its_own() {
        let [one, other] = [(); 2].map(|()| Scram::new("foobar", ChannelBinding::None).first_message());
        assert_ne!(one, other);
    }

    #[test]
    fn the_hashing_ends_with_the_deadline() {
        for rounds in [600_000, u64::from(u32::MAX), u64::MAX] {
            let challenge = CHALLENGE.replace("4096", &rounds.to_string());
            assert_eq!(refused(&challenge, Moment::now()), NoProof::Late { rounds });
        }
    }

    #[test]
    fn what_is_not_scrams_is_refused() {
        for challenge in [
            "",
            "r=,s=,i=1",
            "r=another,s=fs3IXBy7U7+IvVjZ,i=4096",
            &CHALLENGE.replace("4096", "0"),
            &CHALLENGE.replace("4096", "-1"),
            &CHALLENGE.replace("4096", "x"),
            &CHALLENGE.replace("4096", "99999999999999999999999"),
            &CHALLENGE.replace("s=", "s=?"),
            &CHALLENGE.replace("r=", "x="),
            &format!("{CHALLENGE},x=y"),
            &format!("m=x,{CHALLENGE}"),
        ] {
            assert_eq!(refused(challenge, in_a_minute()), NoProof::Malformed, "{challenge}");
        }
        assert!(begun(ChannelBinding::None).prove(b"\xff", in_a_minute()).is_err());
    }
}
