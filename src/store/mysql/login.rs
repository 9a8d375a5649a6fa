//! Opens a connection: finds the first server that answers, starts TLS and logs in.

use std::collections::HashMap;

use mysql_common::auth::plugins::caching_sha2_password::scramble_sha256;
use mysql_common::auth::plugins::mysql_native_password::{SCRAMBLE_LENGTH, scramble_native};
use mysql_common::constants::CapabilityFlags;
use mysql_common::io::ParseBuf;
use mysql_common::packets::{AuthPlugin, AuthSwitchRequest, HandshakePacket, HandshakeResponse, SslRequest};
use mysql_common::proto::MySerialize;

use super::connection::{CAPABILITIES, Connection, ERROR, rejection};
use super::failure::{Failure, ServerError};
use super::password;
use super::url::Server;
use crate::net::dial::dial;
use crate::net::endpoint::Endpoint;
use crate::net::tls::Tls;
use crate::store::RetryClass;
use crate::store::encryption::Encryption;
use crate::store::hosts::first_usable;
use crate::sys::clock::Moment;

/// The longest packet that the server may send us, in bytes, and the character set of its messages: utf8mb4.
const PACKET_MAX: u32 = 1 << 24;
const UTF8MB4: u8 = 45;

/// The end of a successful login, and what else a server says during one.
const OK: u8 = 0x00;
const MORE_DATA: u8 = 0x01;
const SWITCH: u8 = 0xfe;

/// In a login by caching_sha2_password: the server knows the proof; or it does not yet, and wants the password itself.
const KNOWS_PROOF: [u8; 1] = [0x03];
const WANTS_PASSWORD: [u8; 1] = [0x04];

/// Connects to the first of the server's hosts that answers. Whether it takes writes shows when it is asked to.
pub(super) fn open(server: &Server, tls: Option<&Tls>, deadline: Moment) -> Result<Connection, Failure> {
    let connect = |endpoint: &Endpoint, deadline| Login { server, endpoint, deadline }.connect(tls);
    let explain = |endpoint: &Endpoint, failure: &Failure| {
        failure.explain(&Server { hosts: vec![endpoint.clone()], ..server.clone() })
    };
    let (host, mut connection) = first_usable(&server.hosts, deadline, "MySQL or MariaDB", connect, explain)?;
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
        const STRANGE: Failure = Failure::UnexpectedReply("its first words are not MySQL's");
        let mut stream = dial(self.endpoint, None, self.deadline).map_err(|e| Failure::of_dial(&e, self.server))?;
        stream.set_deadline(self.deadline);
        let mut connection = Connection::over(stream);
        let greeting = connection.packet()?;
        if greeting.first() == Some(&ERROR) {
            return Err(self.refused(rejection(&greeting, 0)));
        }
        if !has_sane_nonce(&greeting) {
            return Err(STRANGE);
        }
        let greeting: HandshakePacket<'_> = ParseBuf(&greeting).parse(()).map_err(|_| STRANGE)?;
        if !greeting.capabilities().contains(CAPABILITIES) {
            return Err(Failure::lasting(
                "is too old, or a proxy that lacks what lockrun needs (several statements at once)",
            ));
        }
        let mut capabilities = CAPABILITIES | (greeting.capabilities() & CapabilityFlags::CLIENT_CONNECT_ATTRS);
        if let (Some(tls), Endpoint::Tcp { host, .. }) = (tls, self.endpoint) {
            if greeting.capabilities().contains(CapabilityFlags::CLIENT_SSL) {
                capabilities |= CapabilityFlags::CLIENT_SSL;
                connection.send(&encoded(&SslRequest::new(capabilities, PACKET_MAX, UTF8MB4)), self.deadline)?;
                let Server { encryption, tls: files, .. } = self.server;
                connection = connection.upgraded(|stream| {
                    let failed = |error| encryption.failed_handshake(&error, files, "tls=disabled");
                    stream.upgrade(tls, host).map_err(failed)
                })?;
            } else if self.server.encryption != Encryption::IfOffered {
                return Err(Failure::lasting(
                    "does not offer TLS; set it up there (ssl_cert, ssl_key), or write tls=disabled in the store's URL",
                ));
            }
        }
        let is_encrypted = capabilities.contains(CapabilityFlags::CLIENT_SSL);
        self.authenticate(&mut connection, &greeting, capabilities, is_encrypted)?;
        Ok(connection)
    }

    /// Sends user and database, and proves that we know the password in the way that the server wants.
    fn authenticate(
        &self,
        connection: &mut Connection,
        greeting: &HandshakePacket<'_>,
        capabilities: CapabilityFlags,
        is_encrypted: bool,
    ) -> Result<(), Failure> {
        let Server { user, database, .. } = self.server;
        let password = password::find(self.server).map_err(|why| Failure::Unsent(RetryClass::Permanent, why))?;
        let password = password.unwrap_or_default();
        // What the server offers may be a kind that this user does not have; then it asks for another one.
        let offered = AuthPlugin::from_bytes(greeting.auth_plugin_name_ref().unwrap_or_default()).into_owned();
        let mut plugin = match offered {
            AuthPlugin::CachingSha2Password => offered,
            _ => AuthPlugin::MysqlNativePassword,
        };
        let proof = self.proof(&plugin, password.as_bytes(), &greeting.nonce(), is_encrypted)?;
        let attributes = HashMap::from([("program_name".to_owned(), "lockrun".to_owned())]);
        let response = HandshakeResponse::new(
            Some(proof.as_slice()),
            (8, 0, 0),
            Some(user.as_bytes()),
            Some(database.as_bytes()),
            Some(plugin.borrow()),
            capabilities,
            capabilities.contains(CapabilityFlags::CLIENT_CONNECT_ATTRS).then_some(attributes),
            PACKET_MAX,
        );
        connection.send(&encoded(&response), self.deadline)?;
        loop {
            let packet = connection.packet()?;
            match packet.split_first() {
                Some((&OK, _)) => return Ok(()),
                Some((&ERROR, _)) => return Err(self.refused(rejection(&packet, 0))),
                Some((&SWITCH, [_, ..])) => {
                    let request: AuthSwitchRequest<'_> = ParseBuf(&packet).parse(()).map_err(|_| unreadable())?;
                    plugin = request.auth_plugin().into_owned();
                    let proof = self.proof(&plugin, password.as_bytes(), request.plugin_data(), is_encrypted)?;
                    connection.send(&proof, self.deadline)?;
                }
                Some((&MORE_DATA, data)) if plugin == AuthPlugin::CachingSha2Password => {
                    if data == WANTS_PASSWORD {
                        self.check_password_may_be_sent(&plugin, is_encrypted)?;
                        connection.send(&nul_terminated(password.as_bytes()), self.deadline)?;
                    } else if data != KNOWS_PROOF {
                        return Err(unreadable());
                    }
                }
                _ => return Err(unreadable()),
            }
        }
    }

    /// Returns the proof that we know the password, of the kind that `plugin` asks for: a hash of it and of the server's
    /// `nonce`, or the password itself. Fails if that must not be sent to this server.
    fn proof(
        &self,
        plugin: &AuthPlugin<'_>,
        password: &[u8],
        nonce: &[u8],
        is_encrypted: bool,
    ) -> Result<Vec<u8>, Failure> {
        let nonce = || <&[u8; SCRAMBLE_LENGTH]>::try_from(nonce).map_err(|_| unreadable());
        match plugin {
            AuthPlugin::MysqlNativePassword => {
                Ok(scramble_native(nonce()?, password).map(Vec::from).unwrap_or_default())
            }
            AuthPlugin::CachingSha2Password => {
                Ok(scramble_sha256(nonce()?, password).map(Vec::from).unwrap_or_default())
            }
            AuthPlugin::MysqlClearPassword | AuthPlugin::Sha256Password => {
                self.check_password_may_be_sent(plugin, is_encrypted)?;
                Ok(nul_terminated(password))
            }
            _ => {
                let name = String::from_utf8_lossy(plugin.as_bytes()).into_owned();
                Err(Failure::lasting(format!(
                    "wants the authentication {name}, which lockrun does not know; let the user have \
                     mysql_native_password or caching_sha2_password"
                )))
            }
        }
    }

    /// Fails unless the password itself may be sent: to a server that a certificate has proved to be the one that the URL
    /// names, or to any that speaks TLS if the URL says that this is enough, and the server stores only a hash.
    fn check_password_may_be_sent(&self, plugin: &AuthPlugin<'_>, is_encrypted: bool) -> Result<(), Failure> {
        let Server { encryption, .. } = self.server;
        let is_enough = matches!(encryption, Encryption::Required(_)) && *plugin != AuthPlugin::MysqlClearPassword;
        if is_encrypted && (encryption.verifies() || is_enough) {
            return Ok(());
        }
        Err(Failure::lasting(
            "wants the password itself, and any server could: it has not proved by a certificate which one it is. Write \
             tls=verify-identity in the store's URL, and ca=FILE if the authority is your own (a MySQL makes one for \
             itself, ca.pem in its data: tls=verify-ca&ca=FILE); or tls=required if the network is safe",
        ))
    }

    /// Returns the failure of a login that the server has refused.
    fn refused(&self, failure: Failure) -> Failure {
        let Failure::Rejected(ServerError { code, message, .. }) = &failure else { return failure };
        let advice = match code {
            // ER_ACCESS_DENIED_ERROR, ER_ACCESS_DENIED_NO_PASSWORD_ERROR
            1045 | 1698 if self.server.password.is_none() => {
                "; check the user and the password: in the store's URL, in MYSQL_PWD or in ~/.my.cnf"
            }
            1045 | 1698 => "; check the user and the password",
            // ER_DBACCESS_DENIED_ERROR, ER_BAD_DB_ERROR
            1044 | 1049 => "; name a database in the store's URL that exists and that the user may use",
            // ER_HOST_NOT_PRIVILEGED, ER_HOST_IS_BLOCKED
            1130 => "; it has no user for connections from this machine",
            1129 => "; mariadb-admin flush-hosts there, or TRUNCATE performance_schema.host_cache, ends that",
            // ER_SECURE_TRANSPORT_REQUIRED
            3159 => "; write tls=required in the store's URL, or better tls=verify-identity",
            // ER_ACCOUNT_HAS_BEEN_LOCKED, of MySQL and of MariaDB; ER_MUST_CHANGE_PASSWORD_LOGIN
            3118 | 4151 => "; ALTER USER … ACCOUNT UNLOCK there",
            1862 => "; give the user a new password",
            _ => return failure,
        };
        Failure::lasting(format!("refused the login: {message}{advice}"))
    }
}

/// Returns whether the length of the nonce in a greeting is one with which mysql_common can compute: it takes the byte
/// for a signed one, and subtracts from it.
fn has_sane_nonce(greeting: &[u8]) -> bool {
    // The length follows the version of the protocol, that of the server and a zero, and twenty bytes.
    let end = greeting.iter().skip(1).position(|byte| *byte == 0);
    end.and_then(|end| greeting.get(1 + end + 1 + 20)).is_some_and(|length| *length < 128)
}

/// Returns the password as it is sent without a hash.
fn nul_terminated(password: &[u8]) -> Vec<u8> {
    [password, &[0]].concat()
}

fn unreadable() -> Failure {
    Failure::UnexpectedReply("its authentication is not in its protocol")
}

fn encoded(packet: &impl MySerialize) -> Vec<u8> {
    let mut bytes = Vec::new();
    packet.serialize(&mut bytes);
    bytes
}
