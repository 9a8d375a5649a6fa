//! The stores over which one contract is tested.

use std::path::PathBuf;

use tempfile::TempDir;

use super::redis::Redis;

/// A store of the test's own, empty when the test begins.
pub(crate) enum Store {
    File(TempDir),
    Redis(Redis),
}

impl Store {
    pub(crate) fn file() -> Self {
        Self::File(TempDir::new().expect("a temporary directory"))
    }

    pub(crate) fn redis() -> Self {
        Self::Redis(Redis::start())
    }

    pub(crate) fn url(&self) -> String {
        match self {
            Self::File(_) => format!("file:{}", self.locks().display()),
            Self::Redis(redis) => redis.url(),
        }
    }

    /// Whether a lock outlives its holder until its lease has run out.
    pub(crate) fn has_leases(&self) -> bool {
        !matches!(self, Self::File(_))
    }

    /// The directory of the file store: the only thing that it may create.
    pub(crate) fn locks(&self) -> PathBuf {
        let Self::File(directory) = self else {
            panic!("only the file store has a directory");
        };
        directory.path().join("locks")
    }

    pub(crate) fn as_redis(&self) -> Option<&Redis> {
        match self {
            Self::File(_) => None,
            Self::Redis(redis) => Some(redis),
        }
    }
}

/// Writes one contract and makes a test of it for every store there is.
macro_rules! on_every_store {
    ($name:ident, |$store:ident| $contract:expr) => {
        mod $name {
            #[allow(unused_imports)]
            use super::*;

            fn contract($store: &$crate::support::Store) {
                $contract
            }

            #[test]
            fn file() {
                contract(&$crate::support::Store::file());
            }

            #[test]
            fn redis() {
                contract(&$crate::support::Store::redis());
            }
        }
    };
}
pub(crate) use on_every_store;
