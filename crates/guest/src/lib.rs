//! The first process inside every sandbox. It starts commands and does file operations as the sandbox's users, on
//! behalf of the outside, which it hears over one socket; it inherits and reaps every orphan; and it ends, and the
//! sandbox with it, when that socket closes or the deadline passes.

mod account;
mod birth;
mod child;
mod clock;
mod connection;
mod end;
mod execution;
mod failure;
mod files;
mod filter;
mod flow;
#[doc(hidden)]
pub mod fuzzing;
mod group;
mod guest;
mod keeper;
mod leaf;
mod locks;
mod members;
mod operation;
mod polls;
mod pty;
mod questions;
mod reap;
mod setup;
mod sockets;
mod spawn;
mod start;
mod step;
mod worker;

use guest::Guest;

/// The whole program, from the first descriptor to the exit status.
pub fn main() -> u8 {
    #[cfg(feature = "ablation")]
    if let Err(error) = belljar_core::wall::ablation::read() {
        eprintln!("belljar-guest: {error}");
        return 2;
    }
    let begun =
        start::prepare().and_then(|(connection, children, alarm)| Guest::greet(connection, children, alarm));
    let end = match begun {
        Ok(guest) => guest.serve(),
        Err(end) => end,
    };
    if end.status() != 0 {
        eprintln!("belljar-guest: {end}");
    }
    end.status()
}
