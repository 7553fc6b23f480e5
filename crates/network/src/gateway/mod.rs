//! The gateway: does for sandboxes what needs a key, and keeps the keys.

pub mod body;
pub mod budget;
pub mod config;
pub mod kind;
pub mod operation;
pub mod price;
pub mod redact;
pub mod refusal;
pub mod secret;
pub mod token;
pub mod upstream;
pub mod usage;
