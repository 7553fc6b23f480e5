//! The rungs of the isolation ladder. Each implements [`belljar_core::Provider`], and each passes the same
//! conformance suite.

#![forbid(unsafe_code)]

pub mod doctor;
pub mod fake;
pub mod frames;
pub mod home;
pub mod jail;
pub mod local;
mod names;
pub mod template;
pub mod unpacker;

pub use names::new_id;
