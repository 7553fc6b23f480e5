//! The gateway: does for sandboxes what needs a key, and keeps the keys.

mod answer;
pub mod body;
pub mod budget;
pub mod config;
pub mod customer;
pub(crate) mod headers;
pub mod issue;
pub mod kind;
pub(crate) mod ledger;
pub(crate) mod message;
pub mod operation;
pub mod price;
pub mod process;
pub mod redact;
pub mod refusal;
pub mod secret;
pub mod service;
pub mod token;
pub mod upstream;
pub mod usage;
