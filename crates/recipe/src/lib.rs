//! Recipes: what a template is to be made of, as people write it, read into steps that a builder takes one by one.
//!
//! There are two ways to write one: a small TOML ([`template`]), and the part of a Dockerfile that makes sense here
//! ([`dockerfile`]). Nothing is looked up, fetched or run: text goes in, and a [`Recipe`] or what is [`Wrong`]
//! comes out.

#![forbid(unsafe_code)]

mod check;
mod dockerfile;
mod model;
mod template;
mod wrong;

pub use dockerfile::{
    Known, MAX_EXPANSION, MAX_INSTRUCTIONS, MAX_STAGES, MAX_TOTAL, dockerfile, dockerfile_on,
};
pub use model::{Action, Base, Origin, Recipe, Stage, Step, Tool};
pub use template::template;
pub use wrong::Wrong;

/// The longest text that is read, in bytes.
pub const MAX_TEXT: usize = 1 << 20;
