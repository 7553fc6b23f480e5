//! The door: what may leave a sandbox, and the languages spoken at it. So far without the door itself: nothing here
//! does I/O.

#![forbid(unsafe_code)]

pub mod policy;
