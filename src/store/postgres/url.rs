//! The URL of a PostgreSQL database.

use crate::store::Kind;

pub(in crate::store) const KIND: Kind = Kind {
    schemes: &["postgres://", "postgresql://"],
    parameters: &["schema", "sslmode", "host", "target_session_attrs", "ca", "cert", "key"],
    has_leases: true,
    parse: |_| Err("cannot be used yet".into()),
};
