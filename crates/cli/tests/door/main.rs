//! The door, from end to end: real sandboxes whose traffic comes to real servers, in a network that each test makes for itself.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod provider;
#[path = "../surroundings/mod.rs"]
mod surroundings;
mod world;

mod agents;
mod attacks;
mod attribution;
mod cache;
mod command_line;
mod deaths;
mod everyday;
mod gateway;
mod gateway_attacks;
mod gateway_faults;
mod limits;
mod memory;
mod nothing_else;
mod opened;
mod opened_attacks;
mod recording;
mod recording_attacks;
mod recording_files;
mod rootless;
mod tenants;
mod tokens;
mod tools;
