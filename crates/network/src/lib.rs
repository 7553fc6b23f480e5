//! The door: what may leave a sandbox, and the languages spoken at it. So far without the door itself: nothing here
//! does I/O.

#![forbid(unsafe_code)]

pub mod client_hello;
pub mod dns;
pub mod http;
pub mod policy;
