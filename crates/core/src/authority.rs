//! A sandbox's own certificate authority, by which TLS is opened where a rule looks inside.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The file in a sandbox's directory that holds its authority, as JSON.
pub const AUTHORITY_FILE: &str = "authority.json";

/// An authority. Programs in the sandbox believe its certificate; its key stays outside.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Authority {
    /// The certificate, as PEM.
    pub certificate: String,
    /// The key, as PEM.
    pub key: String,
}

impl fmt::Debug for Authority {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Authority").finish_non_exhaustive()
    }
}
