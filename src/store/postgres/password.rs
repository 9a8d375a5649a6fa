//! Where the password is.

use super::url::Server;
use crate::net::endpoint::Endpoint;

/// Returns the password for the server at `endpoint`.
#[allow(clippy::unnecessary_wraps)]
pub(super) fn find(server: &Server, _endpoint: &Endpoint) -> Result<Option<String>, String> {
    Ok(server.password.clone())
}
