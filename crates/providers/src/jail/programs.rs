//! The two programs of the walls. They travel inside this binary and are written once per version to the data
//! directory, from where all sandboxes share them.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use belljar_core::Result;

use crate::home::{Home, problem};

static GUEST: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/belljar-guest"));
static JAIL: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/belljar-jail"));

/// Where the programs are on disk.
#[derive(Clone, Debug)]
pub(crate) struct Programs {
    /// PID 1 of every sandbox.
    pub(crate) guest: PathBuf,
    /// Launcher and monitor.
    pub(crate) jail: PathBuf,
}

impl Programs {
    /// Writes what is missing.
    pub(crate) fn install(home: &Home) -> Result<Self> {
        let directory = home.programs();
        Ok(Self {
            guest: install(&directory, env!("BELLJAR_GUEST"), GUEST)?,
            jail: install(&directory, env!("BELLJAR_JAIL"), JAIL)?,
        })
    }
}

/// Writes a program under a name that holds its digest.
fn install(directory: &Path, name: &str, program: &[u8]) -> Result<PathBuf> {
    let path = directory.join(name);
    if fs::metadata(&path).is_ok_and(|found| found.len() == program.len() as u64) {
        return Ok(path);
    }
    // Written aside and renamed, so that nobody ever runs half of it; the name is this process's own.
    let temporary = directory.join(format!(".{name}.{}", std::process::id()));
    let write = || {
        let mut file =
            OpenOptions::new().create(true).truncate(true).write(true).mode(0o755).open(&temporary)?;
        file.write_all(program)?;
        file.sync_all()?;
        drop(file);
        fs::rename(&temporary, &path)?;
        File::open(directory)?.sync_all()
    };
    write().map_err(|error| {
        let _ = fs::remove_file(&temporary);
        problem(&path, &error)
    })?;
    Ok(path)
}
