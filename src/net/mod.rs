//! Connections to servers, for every store that has one. Each operation is bounded by a deadline for the whole request.

mod certificate;
pub mod dial;
pub mod endpoint;
pub mod resolve;
#[cfg(any(test, fuzzing))]
pub mod scripted;
pub mod stream;
#[cfg(test)]
mod testing;
pub mod tls;
pub mod tls_error;
mod verifier;
