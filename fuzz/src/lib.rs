//! What must hold for everything that reads foreign bytes, whatever the bytes are. Each module is one target: `check` takes
//! any input, and panics when a property does not hold. libFuzzer looks for such inputs (`make fuzz`); a plain test replays
//! the ones that were kept (`tests/replay.rs`).

#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, reason = "a property fails by panicking")]

mod archive;
pub mod cache_index;
pub mod control_protocol;
pub mod door_dns;
pub mod door_hello;
pub mod door_http;
pub mod gateway_usage;
pub mod guest_protocol;
pub mod options;
pub mod paths;
pub mod policy_file;
pub mod policy_rule;
pub mod recording;
mod script;
pub mod spool;
pub mod terminal_text;
pub mod unpack_in;
pub mod unpack_out;
mod yard;

/// A target's name, as its program and its corpus have it, and its property.
pub type Target = (&'static str, fn(&[u8]));

/// Every target.
pub const TARGETS: [Target; 16] = [
    ("cache_index", cache_index::check),
    ("control_protocol", control_protocol::check),
    ("door_dns", door_dns::check),
    ("door_hello", door_hello::check),
    ("door_http", door_http::check),
    ("gateway_usage", gateway_usage::check),
    ("guest_protocol", guest_protocol::check),
    ("options", options::check),
    ("paths", paths::check),
    ("policy_file", policy_file::check),
    ("policy_rule", policy_rule::check),
    ("recording", recording::check),
    ("spool", spool::check),
    ("terminal_text", terminal_text::check),
    ("unpack_in", unpack_in::check),
    ("unpack_out", unpack_out::check),
];
