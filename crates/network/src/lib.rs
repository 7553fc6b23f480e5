//! The door: what may leave a sandbox, the languages spoken at it, and the processes that keep it.

#![forbid(unsafe_code)]

pub mod authority;
pub mod cache;
mod channel;
pub mod client_hello;
pub mod dns;
pub mod door;
pub mod gateway;
pub mod http;
mod journal;
pub mod policy;
pub mod recording;
pub mod tenants;
