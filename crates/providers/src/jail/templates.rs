//! Templates that are layers: what a sandbox is made from, what becomes of what it wrote, and what nobody needs any more.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use belljar_core::{AUTHORITY_FILE, Error, ErrorCode, Result, SandboxId, SetName};
use belljar_jail::{doorway, slot};
use belljar_layers::{
    Captured, Catalog, Collected, Held, Ids, Layer, Record, Refused, Stack, Times, Upper, capture,
};
use rustix::fs::{Mode, OFlags};

use super::record::{Lease, built, is_alive};
use super::sandbox::blocking;
use super::{Jail, host_template, template_problem};
use crate::home::{Home, problem};
use crate::template::certificates::BUNDLE;
use crate::template::{self, HOST, Template, TemplateError, layered};

/// What a sandbox was made from, in its directory.
const TEMPLATE_FILE: &str = "template.json";
/// The longest that is read.
const LONGEST: u64 = 4 << 20;
/// What differs from sandbox to sandbox, and is nobody's work.
const OWN: [&str; 3] = ["etc/hostname", "etc/hosts", "etc/machine-id"];
/// More layers than a sandbox can be mounted from are not asked about.
const MOST_MOUNTS: usize = 64;

/// The catalogue of a data directory.
pub fn catalog(home: &Home) -> Result<Catalog> {
    let path = home.catalog();
    Catalog::open(&path).map_err(|error| problem(&path, &error))
}

impl Jail {
    /// The template of this name, and what keeps it from being collected; what the sandbox is made from is written down in its
    /// directory.
    pub(super) async fn template_of(&self, name: &str, state_dir: &Path) -> Result<(Template, Option<Held>)> {
        let cache = self.home.templates();
        let host = host_template(&cache).await?;
        if name == HOST {
            return Ok((host, None));
        }
        let (name, home, state_dir) = (name.to_owned(), self.home.clone(), state_dir.to_owned());
        blocking(move || {
            let catalog = catalog(&home)?;
            let failed = |error: io::Error| problem(&home.catalog(), &error);
            let held = catalog.store().hold().map_err(failed)?;
            let record = catalog.find(&name).map_err(failed)?;
            let record =
                record.ok_or_else(|| template_problem(&TemplateError::Unknown { name: name.clone() }))?;
            write_record(&state_dir, &record).map_err(|error| problem(&state_dir, &error))?;
            let template = layered::resolve(&catalog, (&name, &record), host, &cache);
            Ok((template.map_err(|error| template_problem(&error))?, Some(held)))
        })
        .await
    }

    /// Makes a layer of what a sandbox has written; it should stand still meanwhile. What comes back lies over what the sandbox was
    /// made from.
    pub async fn capture(&self, id: &SandboxId, times: Times) -> Result<(Record, Captured, Held)> {
        let (home, id) = (self.home.clone(), id.clone());
        let host = host_template(&home.templates()).await?;
        blocking(move || {
            let state_dir = home.sandbox(&id);
            if Lease::read(&state_dir).is_none() {
                return Err(Error::new(ErrorCode::NotFound, format!("no sandbox `{id}`"))
                    .hint("`belljar ls` lists the ones there are"));
            }
            if !is_alive(&state_dir) {
                return Err(Error::new(
                    ErrorCode::SandboxGone,
                    format!("sandbox {id} has ended, and its files with it"),
                )
                .hint("take a snapshot while it runs or is paused"));
            }
            let catalog = catalog(&home)?;
            let held = catalog.store().hold().map_err(|error| problem(&home.catalog(), &error))?;
            let (layer, captured, record) = capture_from(&catalog, &state_dir, &held, &host, times)?;
            Ok((record.with(layer), captured, held))
        })
        .await
    }

    /// The files of ours that a template lies on, if it does.
    pub async fn ground(&self, record: &Record) -> Result<Option<PathBuf>> {
        let host = host_template(&self.home.templates()).await?;
        Ok((record.ground == belljar_layers::Ground::Host).then_some(host.root))
    }

    /// The layers of a template as a sandbox would see them, without what is mounted over them.
    pub async fn stack(&self, record: &Record) -> Result<Stack> {
        let (home, record) = (self.home.clone(), record.clone());
        let host = host_template(&home.templates()).await?;
        blocking(move || {
            layered::stack(&catalog(&home)?, &record, &host).map_err(|error| problem(&home.catalog(), &error))
        })
        .await
    }

    /// The numbers of whom a template means by `user` or `user:group`.
    pub async fn account(&self, record: &Record, said: &str) -> Result<(u32, u32)> {
        let stack = self.stack(record).await?;
        let (record, said) = (record.clone(), said.to_owned());
        blocking(move || layered::account(&stack, &record, &said).map_err(|error| template_problem(&error)))
            .await
    }

    /// What identifies the ground of templates that lie on the host's programs, as long as those stay the same.
    pub async fn host_digest(&self) -> Result<String> {
        Ok(host_template(&self.home.templates()).await?.digest)
    }

    /// The ready-made sets of hosts that stand for something here.
    pub async fn known_sets(&self) -> Result<Vec<SetName>> {
        Ok(host_template(&self.home.templates()).await?.sets().keys().copied().collect())
    }

    /// Its data directory.
    pub fn home(&self) -> &Home {
        &self.home
    }

    /// Removes what no template, no sandbox and no recent work refers to.
    pub async fn collect(&self, unused: Duration) -> Result<Collected> {
        let home = self.home.clone();
        blocking(move || {
            let catalog = catalog(&home)?;
            let failed = |error: io::Error| problem(&home.catalog(), &error);
            let collected = catalog.collect(|| in_use(&home.sandboxes()), unused).map_err(failed)?;
            undress(&home.templates(), &catalog).map_err(failed)?;
            Ok(collected)
        })
        .await
    }
}

/// What the sandboxes that are there are made from.
fn in_use(sandboxes: &Path) -> io::Result<Vec<Record>> {
    let mut used = Vec::new();
    for entry in fs::read_dir(sandboxes)? {
        let state_dir = entry?.path();
        // One that has ended has no files any more, and one that is being made holds what it is made from.
        if let (Some(record), true) = (read_record(&state_dir)?, is_alive(&state_dir)) {
            used.push(record);
        }
    }
    Ok(used)
}

/// Removes the layers of ours that lay over what is no more.
fn undress(templates: &Path, catalog: &Catalog) -> io::Result<()> {
    let entries = match fs::read_dir(templates.join("dressed")) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        entries => entries?,
    };
    for entry in entries {
        let path = entry?.path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let digest = name.split('-').next().and_then(|hex| format!("sha256:{hex}").parse().ok());
        if let Some(digest) = digest
            && catalog.get(&digest)?.is_none()
        {
            fs::remove_dir_all(&path)?;
        }
    }
    Ok(())
}

fn write_record(state_dir: &Path, record: &Record) -> io::Result<()> {
    let path = state_dir.join(TEMPLATE_FILE);
    let mut file = fs::OpenOptions::new().create_new(true).write(true).mode(0o600).open(path)?;
    file.write_all(&serde_json::to_vec(record)?)
}

/// What a sandbox was made from; `None` if it was the host's programs alone.
fn read_record(state_dir: &Path) -> io::Result<Option<Record>> {
    let mut text = Vec::new();
    match File::open(state_dir.join(TEMPLATE_FILE)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        file => file?.take(LONGEST).read_to_end(&mut text)?,
    };
    Ok(serde_json::from_slice(&text).ok())
}

fn capture_from(
    catalog: &Catalog,
    state_dir: &Path,
    held: &Held,
    host: &Template,
    times: Times,
) -> Result<(Layer, Captured, Record)> {
    let failed = |error: io::Error| problem(state_dir, &error);
    let record = read_record(state_dir).map_err(failed)?.unwrap_or_else(Record::host);
    let disk = doorway::disk(state_dir).map_err(|error| {
        let code = match error.kind() {
            io::ErrorKind::Unsupported => ErrorCode::Unsupported,
            _ => ErrorCode::Internal,
        };
        Error::new(code, format!("the sandbox's files cannot be had: {error}"))
    })?;
    let uppers = uppers(&disk, &record, host).map_err(failed)?;
    let ids = match built(state_dir).and_then(|built| built.slot) {
        Some(number) => Ids::From(slot::first_id(number)),
        None => Ids::One,
    };
    let mut without: Vec<&Path> = OWN.iter().map(Path::new).collect();
    if state_dir.join(AUTHORITY_FILE).exists() {
        without.push(Path::new(BUNDLE.trim_start_matches('/')));
        without.push(Path::new("etc/ssl/certs/java/cacerts"));
    }
    let added = catalog.store().add(held, |_, tree| {
        let captured = capture(&uppers, &tree, (ids, times), &without)?;
        Ok((captured, None, captured.bytes))
    });
    let (layer, captured) = added.map_err(|refused| refusal(&refused))?;
    Ok((layer, captured, record))
}

/// Where a sandbox's own files are, and what they lie over.
fn uppers(disk: &OwnedFd, record: &Record, host: &Template) -> io::Result<Vec<Upper>> {
    let mut targets = vec![PathBuf::new()];
    if record.ground == belljar_layers::Ground::Host {
        let inner =
            |mount: &template::Mount| mount.target.strip_prefix("/").unwrap_or(&mount.target).to_owned();
        targets.extend(host.mounts.iter().map(inner).take(MOST_MOUNTS));
    }
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let open = |(number, target): (usize, PathBuf)| {
        let files = rustix::fs::openat(disk, format!("upper{number}"), flags, Mode::empty())?;
        Ok(Upper { files, target })
    };
    targets.into_iter().enumerate().map(open).collect()
}

/// What is said of an archive or of files that are refused.
pub fn refusal(refused: &Refused) -> Error {
    let code = match refused {
        Refused::Offence { .. } => ErrorCode::InvalidArgument,
        Refused::Io { source, .. } if source.kind() == io::ErrorKind::StorageFull => {
            ErrorCode::ResourceExhausted
        }
        Refused::Io { .. } => ErrorCode::Internal,
    };
    Error::new(code, refused.to_string())
}
