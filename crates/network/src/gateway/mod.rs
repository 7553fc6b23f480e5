//! The gateway: calls to providers that need a key, made for sandboxes that do not have it.

pub mod price;
pub mod refusal;
pub mod usage;
