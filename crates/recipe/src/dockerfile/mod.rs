//! Dockerfiles: the part of them that makes a template. What would be done differently here is refused, with its line;
//! what only says something about running containers is left out, with a note.

mod copy;
mod lines;
mod list;
mod reader;
mod run;
mod scope;
mod words;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use crate::check;
use crate::model::{Base, Recipe};
use crate::wrong::{Wrong, quoted};
use reader::Reader;

/// The most instructions that one text may have.
pub const MAX_INSTRUCTIONS: usize = 1000;

/// The most stages that one text may have.
pub const MAX_STAGES: usize = 100;

/// The most bytes that one value may have once its variables are replaced. Files in the text may have
/// [`MAX_TEXT`](crate::MAX_TEXT).
pub const MAX_EXPANSION: usize = 64 << 10;

/// The most bytes that all values together may have.
pub const MAX_TOTAL: usize = 16 << 20;

/// What a base brings along that the reading of a text depends on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Known {
    /// The variables it sets.
    pub env: BTreeMap<String, String>,
    /// Where its commands run; the root if it does not say.
    pub working_directory: Option<String>,
    /// The shell that its lines are read with; `/bin/sh -c` if it does not say.
    pub shell: Option<Vec<String>>,
}

/// Reads a Dockerfile with these build arguments, while nothing is known of what its bases bring along.
///
/// `FROM host` begins as what sandboxes see of the host, `FROM scratch` as nothing, and anything else is an earlier
/// stage or the name of a template or an image. Mounts of caches are left out with a note: what a command puts there
/// stays in the template. A source of `ADD` is unpacked if it proves to be an archive.
///
/// ```
/// let recipe = belljar_recipe::dockerfile("FROM python:3.12\nRUN pip install numpy\n", &Default::default())?;
/// assert_eq!(recipe.stages[0].steps[0].text, "RUN pip install numpy");
/// # Ok::<(), belljar_recipe::Wrong>(())
/// ```
pub fn dockerfile(text: &str, args: &BTreeMap<String, String>) -> Result<Recipe, Wrong> {
    dockerfile_on(text, args, &BTreeMap::new())
}

/// Reads a Dockerfile as [`dockerfile`] does, knowing what some of its bases bring along.
///
/// Which bases there are does not depend on that. So a builder reads twice: once to learn the bases, and again with
/// what they bring along. Once each is known, no stage [`wants`](crate::Stage::wants) anything, and all is checked.
pub fn dockerfile_on(
    text: &str,
    args: &BTreeMap<String, String>,
    bases: &BTreeMap<Base, Known>,
) -> Result<Recipe, Wrong> {
    check::text(text)?;
    for (name, value) in args {
        let fits = check::variable(name).is_ok() && value.len() <= MAX_EXPANSION && !value.contains('\0');
        if !fits {
            return Err(Wrong::at(1, format!("the build argument {} is not one", quoted(name))).hint(
                format!("names are those of variables, and values have at most {MAX_EXPANSION} bytes"),
            ));
        }
    }
    let lines = lines::read(text)?;
    let mut reader = Reader::new(lines.escape, args, bases);
    for instruction in &lines.instructions {
        reader.read(instruction)?;
    }
    reader.finish()
}
