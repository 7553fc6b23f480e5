//! The part that remembers. Sessions, their executions and what they used outlive every process of Belljar: what was
//! accepted is written down before anything is done about it, so that whoever comes after a crash knows what to look for.

#![forbid(unsafe_code)]

pub mod admission;
mod clock;
mod engine;
pub mod event;
mod face;
pub mod failpoint;
mod live;
pub mod meter;
pub mod price;
mod recovery;
mod redact;
pub mod service;
pub mod session;
pub mod store;

pub use engine::{Config, Engine};
