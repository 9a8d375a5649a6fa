//! Opening a connection: the first server that takes writes, TLS, and the introduction.

use std::io;
use std::time::Duration;

use bytes::BytesMut;
use fallible_iterator::FallibleIterator;
use nix::errno::Errno;
use postgres_protocol::authentication::md5_hash;
use postgres_protocol::authentication::sasl::{ChannelBinding, SCRAM_SHA_256, SCRAM_SHA_256_PLUS, ScramSha256};
use postgres_protocol::message::backend::Message;
use postgres_protocol::message::frontend;

use super::connection::Connection;
use super::failure::{Failure, Refusal};
use super::url::Server;
use crate::net::dial::dial;
use crate::net::endpoint::Endpoint;
use crate::sys::clock::Moment;

/// The most rounds of hashing that a server may ask for: a hostile one could keep us busy for ever. PostgreSQL's default is 4096.
const ROUNDS_MAX: u32 = 1_000_000;

/// Connects to the first of the server's hosts that takes writes.
pub(super) fn open(server: &Server, deadline: Moment) -> Result<Connection, Failure> {
    let mut last = Failure::Unreachable("no host is named".to_owned());
    for (tried, endpoint) in server.hosts.iter().enumerate() {
        // A host that does not answer must leave time for the remaining ones.
        let now = Moment::now();
        let share = deadline.since(now) / u32::try_from(server.hosts.len() - tried).unwrap_or(1);
        match connect(server, endpoint, now + share.max(Duration::from_millis(1))) {
            Ok(connection) => return Ok(connection),
            Err(failure) => last = failure,
        }
    }
    Err(last)
}

fn connect(server: &Server, endpoint: &Endpoint, deadline: Moment) -> Result<Connection, Failure> {
    let stream = dial(endpoint, None, deadline).map_err(unreachable)?;
    let mut connection = Connection::over(stream);
    introduce(&mut connection, server, deadline)?;
    let mut is_standby = false;
    loop {
        match connection.next_of_any_kind(deadline)? {
            Message::ParameterStatus(body) => {
                is_standby |=
                    body.name().is_ok_and(|name| name == "in_hot_standby") && body.value().is_ok_and(|on| on == "on");
            }
            Message::BackendKeyData(body) => connection.process = body.process_id(),
            Message::ReadyForQuery(_) if is_standby => {
                return Err(Failure::Unreachable("it is a standby, which takes no writes".to_owned()));
            }
            Message::ReadyForQuery(_) => return Ok(connection),
            Message::ErrorResponse(body) => return Err(rejected(Refusal::read(body.fields()))),
            Message::NoticeResponse(_) => {}
            _ => return Err(Failure::Strange("what follows its welcome is not in its protocol")),
        }
    }
}

/// Says who we are, and proves it as the server wants.
fn introduce(connection: &mut Connection, server: &Server, deadline: Moment) -> Result<(), Failure> {
    let parameters = [
        ("user", server.user.as_str()),
        ("database", server.database.as_str()),
        ("application_name", "lockrun"),
        ("client_encoding", "UTF8"),
    ];
    let mut buffer = BytesMut::new();
    frontend::startup_message(parameters, &mut buffer).map_err(|error| Failure::of_stream(&error))?;
    connection.send(&buffer, deadline)?;
    match connection.next(deadline)? {
        Message::AuthenticationOk => Ok(()),
        Message::AuthenticationCleartextPassword => {
            let password = password(server)?;
            send_password(connection, password.as_bytes(), deadline)
        }
        Message::AuthenticationMd5Password(body) => {
            let hash = md5_hash(server.user.as_bytes(), password(server)?.as_bytes(), body.salt());
            send_password(connection, hash.as_bytes(), deadline)
        }
        Message::AuthenticationSasl(body) => {
            let mut offered = Vec::new();
            let mut mechanisms = body.mechanisms();
            while let Some(mechanism) = mechanisms.next().map_err(|error| Failure::of_stream(&error))? {
                offered.push(mechanism.to_owned());
            }
            scram(connection, server, &offered, deadline)
        }
        Message::ErrorResponse(body) => Err(rejected(Refusal::read(body.fields()))),
        Message::AuthenticationGss | Message::AuthenticationSspi | Message::AuthenticationKerberosV5 => {
            Err(Failure::NotAdmitted("wants Kerberos, which lockrun does not speak".to_owned()))
        }
        _ => Err(Failure::Strange("its first words are not PostgreSQL's")),
    }
}

fn send_password(connection: &mut Connection, password: &[u8], deadline: Moment) -> Result<(), Failure> {
    let mut buffer = BytesMut::new();
    frontend::password_message(password, &mut buffer).map_err(|error| Failure::of_stream(&error))?;
    connection.send(&buffer, deadline)?;
    expect_welcome(connection, deadline)
}

/// Proves that we know the password without showing it, and checks that the server knows it: SCRAM-SHA-256, bound to the TLS
/// connection where the server can do that.
fn scram(connection: &mut Connection, server: &Server, offered: &[String], deadline: Moment) -> Result<(), Failure> {
    let offers = |mechanism: &str| offered.iter().any(|offered| offered == mechanism);
    let end_point = connection.server_end_point();
    let (mechanism, binding) = match end_point {
        Some(end_point) if offers(SCRAM_SHA_256_PLUS) => {
            (SCRAM_SHA_256_PLUS, ChannelBinding::tls_server_end_point(end_point))
        }
        Some(_) => (SCRAM_SHA_256, ChannelBinding::unrequested()),
        None => (SCRAM_SHA_256, ChannelBinding::unsupported()),
    };
    if !offers(mechanism) {
        return Err(Failure::NotAdmitted("wants an authentication that lockrun does not know".to_owned()));
    }
    let strange = |_: io::Error| Failure::Strange("its authentication is not SCRAM's");
    let mut scram = ScramSha256::new(password(server)?.as_bytes(), binding);
    let mut buffer = BytesMut::new();
    frontend::sasl_initial_response(mechanism, scram.message(), &mut buffer).map_err(strange)?;
    connection.send(&buffer, deadline)?;
    match connection.next(deadline)? {
        Message::AuthenticationSaslContinue(body) if rounds(body.data()) <= ROUNDS_MAX => {
            scram.update(body.data()).map_err(strange)?;
        }
        Message::AuthenticationSaslContinue(_) => {
            return Err(Failure::NotAdmitted("wants more rounds of hashing than any password needs".to_owned()));
        }
        Message::ErrorResponse(body) => return Err(rejected(Refusal::read(body.fields()))),
        _ => return Err(Failure::Strange("its authentication is not SCRAM's")),
    }
    let mut buffer = BytesMut::new();
    frontend::sasl_response(scram.message(), &mut buffer).map_err(strange)?;
    connection.send(&buffer, deadline)?;
    match connection.next(deadline)? {
        Message::AuthenticationSaslFinal(body) => scram.finish(body.data()).map_err(|_| {
            Failure::NotAdmitted(
                "does not know the password itself: it is not the server that it claims to be".to_owned(),
            )
        })?,
        Message::ErrorResponse(body) => return Err(rejected(Refusal::read(body.fields()))),
        _ => return Err(Failure::Strange("its authentication is not SCRAM's")),
    }
    expect_welcome(connection, deadline)
}

/// Returns how many rounds of hashing a server's first message of SCRAM asks for (RFC 5802, section 7: `i=`).
fn rounds(message: &[u8]) -> u32 {
    let text = String::from_utf8_lossy(message);
    let rounds = text.split(',').find_map(|attribute| attribute.strip_prefix("i="));
    rounds.map_or(0, |rounds| rounds.parse().unwrap_or(u32::MAX))
}

fn expect_welcome(connection: &mut Connection, deadline: Moment) -> Result<(), Failure> {
    match connection.next(deadline)? {
        Message::AuthenticationOk => Ok(()),
        Message::ErrorResponse(body) => Err(rejected(Refusal::read(body.fields()))),
        _ => Err(Failure::Strange("its authentication does not end")),
    }
}

fn password(server: &Server) -> Result<String, Failure> {
    let wanted = || {
        let why =
            "requires a password; give a password in the store's URL, with --store-file, in PGPASSWORD or in ~/.pgpass";
        Failure::NotAdmitted(why.to_owned())
    };
    server.password.clone().ok_or_else(wanted)
}

/// Returns the failure behind an error message that came instead of a welcome.
fn rejected(refusal: Refusal) -> Failure {
    let advice = match refusal.code.as_str() {
        // invalid_password, invalid_authorization_specification
        "28P01" | "28000" => "; check the user and the password, and the server's pg_hba.conf",
        // invalid_catalog_name
        "3D000" => "; name a database that exists in the store's URL",
        _ => return Failure::Refused(refusal),
    };
    Failure::NotAdmitted(format!("does not let us in: {}{advice}", refusal.message))
}

fn unreachable(error: io::Error) -> Failure {
    let errno = error.raw_os_error().map(Errno::from_raw);
    match errno {
        // That does not pass by itself.
        Some(Errno::EMFILE | Errno::ENFILE | Errno::ENOMEM) => Failure::NoResources(error),
        _ => Failure::Unreachable(error.to_string()),
    }
}
