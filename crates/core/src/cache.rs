//! What is kept of what package registries serve, so that the next sandbox need not fetch it.

use serde::{Deserialize, Serialize};

use crate::{Rule, Tenant};

/// The directory in a data directory where that is.
pub const CACHE: &str = "cache";
/// The file of a sandbox's directory that says of which registries it is kept.
pub const CACHE_FILE: &str = "cache.json";

/// What the door is told of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CachePlan {
    /// The registries.
    pub of: Vec<Rule>,
    /// Whose the sandbox is. What it fetches with credentials is for nobody else's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tenant: Option<Tenant>,
}
