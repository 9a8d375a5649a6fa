//! Connections to servers, for every store that has one: each operation is bounded by a deadline for the whole request.

pub mod dial;
pub mod endpoint;
pub mod resolve;
pub mod stream;
pub mod tls;
