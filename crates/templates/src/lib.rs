//! Builds templates: from recipes, step by step, each in a sandbox behind the same walls as everybody's code; what came of a step is
//! kept, and not done again as long as nothing that it depends on changes.

#![forbid(unsafe_code)]

mod build;
mod debian;
mod files;
mod glob;
mod install;
mod pack;
mod ready;
mod step;
mod workshop;

pub use self::build::{Ingredients, build};
pub use self::install::{Install, install, installed};
pub use self::ready::{READY, ready};
pub use self::workshop::{How, Progress, Tell, Workshop, registries};
