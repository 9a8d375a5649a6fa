//! Opens a connection: finds the first server that takes writes, starts TLS and logs in.

use std::io::{Read as _, Write as _};

use bytes::BytesMut;
use fallible_iterator::FallibleIterator;
use postgres_protocol::authentication::md5_hash;
use postgres_protocol::authentication::sasl::{ChannelBinding, SCRAM_SHA_256, SCRAM_SHA_256_PLUS, ScramSha256};
use postgres_protocol::escape::escape_identifier;
use postgres_protocol::message::backend::Message;
use postgres_protocol::message::frontend;

use super::connection::Connection;
use super::failure::Failure;
use super::password;
use super::server_error::ServerError;
use super::url::{Binding, Server};
use crate::net::dial::dial;
use crate::net::endpoint::Endpoint;
use crate::net::stream::Stream;
use crate::net::tls::Tls;
use crate::store::RetryClass;
use crate::store::encryption::Encryption;
use crate::store::hosts::first_usable;
use crate::sys::clock::Moment;

/// The most rounds of hashing that the postgres-protocol crate accepts: a server chooses their number before it has
/// proved anything.
const ROUNDS_MAX: u64 = 100_000;

/// Connects to the first of the server's hosts that takes writes.
pub(super) fn open(server: &Server, tls: Option<&Tls>, deadline: Moment) -> Result<Connection, Failure> {
    let connect = |endpoint: &Endpoint, deadline| Login { server, endpoint, deadline }.connect(tls);
    let explain = |endpoint: &Endpoint, failure: &Failure| {
        failure.explain(&Server { hosts: vec![endpoint.clone()], ..server.clone() })
    };
    let (host, mut connection) = first_usable(&server.hosts, deadline, "PostgreSQL", connect, explain)?;
    connection.host = host;
    Ok(connection)
}

/// An attempt to connect to one host.
struct Login<'a> {
    server: &'a Server,
    endpoint: &'a Endpoint,
    deadline: Moment,
}

impl Login<'_> {
    fn connect(&self, tls: Option<&Tls>) -> Result<Connection, Failure> {
        let stream = dial(self.endpoint, None, self.deadline).map_err(|error| Failure::of_dial(&error, self.server))?;
        let mut connection = match (tls, self.endpoint) {
            (Some(tls), Endpoint::Tcp { host, .. }) => {
                let mut connection = Connection::over(self.encrypt(stream, tls, host)?);
                // The server has already said whether it offers TLS.
                connection.has_spoken = true;
                connection
            }
            _ => Connection::over(stream),
        };
        self.introduce(&mut connection)?;
        let mut says_primary = false;
        loop {
            match connection.next_of_any_kind()? {
                Message::ParameterStatus(body) => {
                    if body.name().is_ok_and(|name| name == "in_hot_standby") {
                        says_primary = body.value().is_ok_and(|value| value == "off");
                    }
                }
                Message::BackendKeyData(body) => connection.process = body.process_id(),
                Message::ReadyForQuery(_) => break,
                Message::ErrorResponse(body) => return Err(self.excluded(ServerError::read(body.fields()))),
                Message::NoticeResponse(_) => {}
                _ => return Err(Failure::UnexpectedReply("what follows its welcome is not in its protocol")),
            }
        }
        // Servers older than PostgreSQL 14 do not report `in_hot_standby`. A pooler reports what its server said when
        // the two first met: a standby may have been promoted since. If a primary has become a standby, it rejects the
        // first transaction.
        if !says_primary && connection.is_in_recovery(self.deadline)? {
            let what = "is a standby, which takes no writes; name the primary in the store's URL";
            return Err(Failure::Other(RetryClass::Unavailable, what.to_owned()));
        }
        Ok(connection)
    }

    /// Asks for TLS, and begins it with `host` if the server agrees.
    fn encrypt(&self, mut stream: Stream, tls: &Tls, host: &str) -> Result<Stream, Failure> {
        let mut buffer = BytesMut::new();
        frontend::ssl_request(&mut buffer);
        stream.set_deadline(self.deadline);
        let mut answer = [0];
        let asked = stream.write_all(&buffer).and_then(|()| stream.flush());
        // Not a byte more: what follows belongs to the handshake, which would reject injected text.
        let answered = asked.and_then(|()| stream.read_exact(&mut answer));
        answered.map_err(|error| Failure::of_stream(&error))?;
        match answer {
            [b'S'] => stream.upgrade(tls, host).map_err(|error| {
                let Server { encryption, tls, .. } = self.server;
                encryption.failed_handshake(&error, tls, "sslmode=disable")
            }),
            [b'N'] if self.server.encryption == Encryption::IfOffered => Ok(stream),
            [b'N'] => Err(Failure::lasting(
                "does not offer TLS; turn it on there (ssl = on), or write sslmode=disable in the store's URL",
            )),
            _ => Err(Failure::UnexpectedReply("its first words are not PostgreSQL's")),
        }
    }

    /// Sends the user and database, and authenticates as the server demands.
    fn introduce(&self, connection: &mut Connection) -> Result<(), Failure> {
        let Server { user, database, application_name, .. } = self.server;
        let parameters = [
            ("user", user.as_str()),
            ("database", database.as_str()),
            ("application_name", application_name.as_str()),
            ("client_encoding", "UTF8"),
        ];
        let mut buffer = BytesMut::new();
        frontend::startup_message(parameters, &mut buffer).map_err(|error| Failure::of_stream(&error))?;
        connection.send(&buffer, self.deadline)?;
        let asked = connection.next()?;
        let is_bound = matches!(asked, Message::AuthenticationSasl(_) | Message::ErrorResponse(_));
        if self.server.binding == Binding::Required && !is_bound {
            return Err(Failure::lasting(
                "does not offer an authentication that is bound to the TLS connection, which channel_binding=require \
                 wants",
            ));
        }
        match asked {
            Message::AuthenticationOk => Ok(()),
            Message::AuthenticationCleartextPassword if !self.is_proved(connection) => Err(Failure::lasting(
                "wants the password in clear, and any server could: it has not proved by a verified certificate which \
                           one it is. Write sslmode=verify-full in the store's URL, and ca=FILE if the authority is \
                           your own; or let its pg_hba.conf want scram-sha-256 (for a pooler: auth_type)",
            )),
            Message::AuthenticationCleartextPassword => self.send_password(connection, self.password()?.as_bytes()),
            Message::AuthenticationMd5Password(body) => {
                let hash = md5_hash(user.as_bytes(), self.password()?.as_bytes(), body.salt());
                self.send_password(connection, hash.as_bytes())
            }
            Message::AuthenticationSasl(body) => {
                let mut offered = Vec::new();
                let mut mechanisms = body.mechanisms();
                while let Some(mechanism) = mechanisms.next().map_err(|error| Failure::of_stream(&error))? {
                    offered.push(mechanism.to_owned());
                }
                self.scram(connection, &offered)
            }
            Message::ErrorResponse(body) => Err(self.rejected(connection, ServerError::read(body.fields()))),
            Message::AuthenticationGss | Message::AuthenticationSspi | Message::AuthenticationKerberosV5 => {
                Err(Failure::lasting("wants Kerberos, which lockrun does not speak"))
            }
            _ => Err(Failure::UnexpectedReply("its first words are not PostgreSQL's")),
        }
    }

    /// Returns whether the server is known to be the one that the URL names: by its certificate, or by the directory of
    /// its socket.
    fn is_proved(&self, connection: &Connection) -> bool {
        matches!(self.endpoint, Endpoint::Unix(_)) || connection.is_encrypted() && self.server.encryption.verifies()
    }

    fn send_password(&self, connection: &mut Connection, password: &[u8]) -> Result<(), Failure> {
        let mut buffer = BytesMut::new();
        frontend::password_message(password, &mut buffer).map_err(|error| Failure::of_stream(&error))?;
        connection.send(&buffer, self.deadline)?;
        self.expect_welcome(connection)
    }

    /// Proves that we know the password without revealing it, and checks that the server knows it: SCRAM-SHA-256 (RFC
    /// 7677), bound to the TLS connection where that can be done.
    fn scram(&self, connection: &mut Connection, offered: &[String]) -> Result<(), Failure> {
        let offers = |mechanism: &str| offered.iter().any(|offered| offered == mechanism);
        let (mechanism, binding) = self.binding(connection, offers(SCRAM_SHA_256_PLUS))?;
        if !offers(mechanism) {
            return Err(Failure::lasting("wants an authentication that lockrun does not know"));
        }
        let strange = || Failure::UnexpectedReply("its authentication is not SCRAM's");
        let mut scram = ScramSha256::new(self.password()?.as_bytes(), binding);
        let mut buffer = BytesMut::new();
        frontend::sasl_initial_response(mechanism, scram.message(), &mut buffer).map_err(|_| strange())?;
        connection.send(&buffer, self.deadline)?;
        match connection.next()? {
            Message::AuthenticationSaslContinue(body) if rounds(body.data()) <= ROUNDS_MAX => {
                scram.update(body.data()).map_err(|_| strange())?;
            }
            Message::AuthenticationSaslContinue(body) => {
                return Err(Failure::lasting(format!(
                    "wants the password hashed {} times, and lockrun does so {ROUNDS_MAX} times at most; lower \
                     scram_iterations there, and set the password anew",
                    rounds(body.data())
                )));
            }
            Message::ErrorResponse(body) => return Err(self.rejected(connection, ServerError::read(body.fields()))),
            _ => return Err(strange()),
        }
        let mut buffer = BytesMut::new();
        frontend::sasl_response(scram.message(), &mut buffer).map_err(|_| strange())?;
        connection.send(&buffer, self.deadline)?;
        match connection.next()? {
            Message::AuthenticationSaslFinal(body) => scram.finish(body.data()).map_err(|_| {
                Failure::lasting("does not know the password itself: it is not the server that it claims to be")
            })?,
            Message::ErrorResponse(body) => return Err(self.rejected(connection, ServerError::read(body.fields()))),
            _ => return Err(strange()),
        }
        self.expect_welcome(connection)
    }

    /// Returns the mechanism and its channel binding on this connection. `is_offered`: whether the server offers
    /// channel binding.
    fn binding(&self, connection: &Connection, is_offered: bool) -> Result<(&'static str, ChannelBinding), Failure> {
        let unbound = |binding| Ok((SCRAM_SHA_256, binding));
        let Server { binding, .. } = self.server;
        match connection.server_end_point().filter(|_| is_offered) {
            _ if *binding == Binding::Never => unbound(ChannelBinding::unsupported()),
            Some(end_point) => Ok((SCRAM_SHA_256_PLUS, ChannelBinding::tls_server_end_point(end_point))),
            None if *binding == Binding::Required => Err(Failure::lasting(
                "cannot bind its authentication to the TLS connection, which channel_binding=require wants",
            )),
            None if !connection.is_encrypted() => unbound(ChannelBinding::unsupported()),
            // A server that does offer it learns from this that its offer was withheld from us.
            None if !is_offered => unbound(ChannelBinding::unrequested()),
            // A server in between could show such a certificate to keep the proof from being bound to it.
            None if !self.server.encryption.verifies() => Err(Failure::lasting(
                "has a certificate that SCRAM cannot be bound to, such as one of Ed25519, and that is not verified; \
                           write sslmode=verify-full in the store's URL, or channel_binding=disable if the network is \
                           safe",
            )),
            None => unbound(ChannelBinding::unsupported()),
        }
    }

    fn expect_welcome(&self, connection: &mut Connection) -> Result<(), Failure> {
        match connection.next()? {
            Message::AuthenticationOk => Ok(()),
            Message::ErrorResponse(body) => Err(self.rejected(connection, ServerError::read(body.fields()))),
            _ => Err(Failure::UnexpectedReply("its authentication does not end")),
        }
    }

    fn password(&self) -> Result<String, Failure> {
        let found =
            password::find(self.server, self.endpoint).map_err(|why| Failure::Unsent(RetryClass::Permanent, why))?;
        found.ok_or_else(|| {
            Failure::lasting(
                "requires a password; give one in the store's URL, with --store-file, in PGPASSWORD or in ~/.pgpass",
            )
        })
    }

    /// Returns the failure for an error message that the server sent instead of a welcome.
    fn rejected(&self, connection: &Connection, rejection: ServerError) -> Failure {
        let Server { encryption, tls, .. } = self.server;
        let check = "; check the user and the password, and the server's pg_hba.conf";
        let advice = match rejection.code.as_str() {
            // invalid_password
            "28P01" => check.to_owned(),
            // invalid_authorization_specification: pg_hba.conf admits no such connection, or wants another proof.
            "28000" => {
                let wants_identity = connection.is_encrypted() && tls.identity.is_none();
                let identity = ". If it wants a certificate of its clients, name one with cert=FILE and key=FILE in the store's URL";
                let wants_plain = connection.is_encrypted() && *encryption == Encryption::IfOffered;
                let plain =
                    ". If it admits the user only without TLS (hostnossl), write sslmode=disable in the store's URL";
                let more = [(wants_identity, identity), (wants_plain, plain)]
                    .map(|(is_so, text)| if is_so { text } else { "" });
                format!("{check}{}", more.concat())
            }
            _ => return self.excluded(rejection),
        };
        Failure::lasting(format!("refused the login: {}{advice}", rejection.message))
    }

    /// Returns the failure for an error message that the server sent after its welcome: pg_hba.conf has admitted us.
    fn excluded(&self, rejection: ServerError) -> Failure {
        let Server { user, database, .. } = self.server;
        let advice = match rejection.code.as_str() {
            // invalid_authorization_specification: there is no such role, or it may not log in.
            "28000" => "; name a role that may log in as the user in the store's URL".to_owned(),
            // insufficient_privilege
            "42501" => {
                let [database, user] = [database, user].map(|name| escape_identifier(name));
                format!("; its owner admits the user with GRANT CONNECT ON DATABASE {database} TO {user}")
            }
            // invalid_catalog_name
            "3D000" => "; name a database that exists in the store's URL".to_owned(),
            _ => return Failure::Rejected(rejection),
        };
        Failure::lasting(format!("refused the login: {}{advice}", rejection.message))
    }
}

/// Returns how many rounds of hashing the server's first SCRAM message asks for (RFC 5802, section 7: `i=`).
fn rounds(message: &[u8]) -> u64 {
    let text = String::from_utf8_lossy(message);
    let rounds = text.split(',').find_map(|attribute| attribute.strip_prefix("i="));
    rounds.map_or(0, |rounds| rounds.parse().unwrap_or(u64::MAX))
}
