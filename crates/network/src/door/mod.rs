//! The door itself: the one way out of the sandboxes of a data directory.
//!
//! Two processes. The [`worker`] is the only one that reads what sandboxes send, and has nothing to lose: no rights, no files,
//! no keys. The [`supervisor`] knows the sandboxes: it gets their sockets from their monitors, gives them to the worker with the
//! policies in force, writes down what the worker tells, and starts another when that one dies. Without a worker connections
//! wait, and nothing gets through; without a supervisor there is no worker.
//!
//! A [`Client`] is how the rest of Belljar sees the door.

mod cache;
mod client;
pub(crate) mod clock;
mod log;
mod message;
mod place;
mod post;
mod purposes;
pub mod supervisor;
mod tenants;
pub mod worker;

pub use belljar_jail::rights::close_others;
pub use client::Client;

/// Where callers find the door, in the data directory.
pub const SOCKET_FILE: &str = "door.sock";
/// Held by the one door of a data directory.
pub const LOCK_FILE: &str = "door.lock";
/// What the door says of itself, since it was last opened.
pub const LOG_FILE: &str = "door.log";
