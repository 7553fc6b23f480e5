//! The doors for the fuzz targets: what of this crate reads foreign bytes, and nothing else.

use std::ffi::OsString;
use std::path::Path;

use belljar_core::{Error, ExecRequest, FilePath, Result, SandboxId, SandboxSpec};

use crate::args::{self, Parsed, Place, Verb};
use crate::print::escape;
use crate::transfer::Limit;
use crate::unpack;

/// Unpacks an archive of a sandbox; the lines about what was left out.
pub fn unpack(archive: &[u8], directory: &Path, strip: bool, limit: u64) -> Result<Vec<String>> {
    let mut archive = archive;
    unpack::unpack(&mut archive, directory, strip, Limit::new(limit)).map(|left_out| left_out.first)
}

/// The parts of a name in such an archive, none if it names the destination itself.
pub fn components(name: &[u8], strip: bool) -> Result<Vec<Vec<u8>>> {
    let parts = unpack::components(name, strip)?.unwrap_or_default();
    Ok(parts.into_iter().map(|part| part.as_encoded_bytes().to_vec()).collect())
}

/// Whether a link in such an archive may be made.
pub fn stays_inside(target: &[u8], depth: usize) -> bool {
    unpack::stays_inside(target, depth)
}

/// One side of `cp`, if it is in a sandbox.
pub fn side_of_copy(text: &str) -> Result<Option<(SandboxId, FilePath)>> {
    Ok(match Place::parse(text)? {
        Place::Inside(id, path) => Some((id, path)),
        Place::Host(_) | Place::Stream => None,
    })
}

/// What is shown of output on a terminal.
pub fn sieved<'a>(pieces: impl Iterator<Item = &'a [u8]>) -> String {
    let mut sieve = escape::Sieve::default();
    pieces.map(|piece| sieve.pass(piece)).collect()
}

/// What is shown of a name.
pub fn escaped(text: &str) -> String {
    escape::escape(text).into_owned()
}

/// What came of a command line.
#[derive(Debug, Default)]
pub struct Understood {
    /// The sandbox it would make.
    pub spec: Option<SandboxSpec>,
    /// The command it would run.
    pub request: Option<ExecRequest>,
    /// The paths inside that it would touch.
    pub inside: Vec<FilePath>,
}

/// Reads a command line, up to where something would be done.
pub fn understand(words: Vec<OsString>) -> Result<Understood> {
    let cli = match args::parse(words) {
        Parsed::Command(cli) => *cli,
        Parsed::Text(_) => return Ok(Understood::default()),
        Parsed::Refused { error, .. } => return Err(error),
    };
    understand_verb(cli.command)
}

fn understand_verb(verb: Verb) -> Result<Understood, Error> {
    Ok(match verb {
        Verb::Run(run) => {
            let plan = run.plan()?;
            let uploads = plan.files.iter().map(|upload| upload.to.clone());
            let inside = uploads.chain(plan.outs.iter().map(|fetch| fetch.from.clone())).collect();
            Understood { spec: Some(plan.spec), request: Some(plan.request), inside }
        }
        Verb::Create(create) => {
            let plan = create.plan()?;
            let inside = plan.files.into_iter().map(|upload| upload.to).collect();
            Understood { spec: Some(plan.request.spec), request: None, inside }
        }
        Verb::Exec(exec) => Understood { request: Some(exec.plan()?.1), ..Understood::default() },
        Verb::Cp(cp) => {
            let sides = [side_of_copy(&cp.from)?, side_of_copy(&cp.to)?];
            let inside = sides.into_iter().flatten().map(|(_, path)| path).collect();
            Understood { inside, ..Understood::default() }
        }
        Verb::Sessions(sessions) => sessions.query().map(|_| Understood::default())?,
        _ => Understood::default(),
    })
}
