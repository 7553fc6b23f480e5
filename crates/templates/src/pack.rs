//! Archives of what is copied into a template. They are the same for the same files, whoever's they are and whenever they changed.

use std::fs::{self, File};
use std::io::{self, BufReader, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use belljar_core::{Error, ErrorCode, Result};
use belljar_layers::Digest;
use sha2::{Digest as _, Sha256};
use tar::{EntryType, Header};

use crate::workshop::{EPOCH, failed};

/// Whose what is copied is, and what may be done with it: as it was where nothing is said.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Dress {
    pub(crate) owner: Option<(u32, u32)>,
    pub(crate) mode: Option<u32>,
}

impl Dress {
    pub(crate) const AS_IT_WAS: Self = Self { owner: None, mode: None };
}

/// What is known of a file that is copied.
#[derive(Clone, Copy)]
struct Nature {
    mode: u32,
    owner: (u32, u32),
}

impl Nature {
    /// Root's, as whatever comes from outside.
    fn of_root(mode: u32) -> Self {
        Self { mode, owner: (0, 0) }
    }
}

/// An archive that is being made.
pub(crate) struct Packer {
    builder: tar::Builder<Hashed>,
    dress: Dress,
}

/// An archive, and its digest.
pub(crate) struct Packed {
    pub(crate) file: File,
    pub(crate) digest: Digest,
}

struct Hashed {
    file: File,
    hash: Sha256,
}

impl Write for Hashed {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let count = self.file.write(bytes)?;
        self.hash.update(&bytes[..count]);
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl Packer {
    pub(crate) fn new(dress: Dress) -> Result<Self> {
        let file = tempfile::tempfile().map_err(failed)?;
        let builder = tar::Builder::new(Hashed { file, hash: Sha256::new() });
        Ok(Self { builder, dress })
    }

    pub(crate) fn finish(self) -> Result<Packed> {
        let Hashed { mut file, hash } = self.builder.into_inner().map_err(failed)?;
        file.seek(SeekFrom::Start(0)).map_err(failed)?;
        let digest = Digest::from_bytes(hash.finalize().into());
        Ok(Packed { file, digest })
    }

    fn header(&self, kind: EntryType, nature: Nature, size: u64) -> Header {
        let Nature { mode, owner } = nature;
        let owner = self.dress.owner.unwrap_or(owner);
        let mut header = Header::new_gnu();
        header.set_entry_type(kind);
        let is_link = kind == EntryType::Symlink;
        header.set_mode(self.dress.mode.filter(|_| !is_link).unwrap_or(mode & 0o7777));
        header.set_uid(owner.0.into());
        header.set_gid(owner.1.into());
        header.set_mtime(EPOCH as u64);
        header.set_size(size);
        header
    }

    pub(crate) fn directory(&mut self, target: &Path, mode: u32) -> Result<()> {
        self.directory_of(target, Nature::of_root(mode))
    }

    fn directory_of(&mut self, target: &Path, nature: Nature) -> Result<()> {
        if target.as_os_str().is_empty() {
            return Ok(());
        }
        let mut header = self.header(EntryType::Directory, nature, 0);
        self.builder.append_data(&mut header, target, io::empty()).map_err(failed)
    }

    pub(crate) fn bytes(&mut self, target: &Path, mode: u32, content: &[u8]) -> Result<()> {
        let mut header = self.header(EntryType::Regular, Nature::of_root(mode), content.len() as u64);
        self.builder.append_data(&mut header, target, content).map_err(failed)
    }

    fn file(&mut self, target: &Path, source: &Path) -> Result<()> {
        let unreadable = |error: io::Error| unreadable(source, &error);
        let file = File::open(source).map_err(unreadable)?;
        let data = file.metadata().map_err(unreadable)?;
        // It may grow meanwhile, and then has what it had.
        let mut header =
            self.header(EntryType::Regular, Nature::of_root(data.permissions().mode()), data.len());
        self.builder.append_data(&mut header, target, file.take(data.len())).map_err(unreadable)
    }

    fn link(&mut self, target: &Path, leads_to: &Path, owner: (u32, u32)) -> Result<()> {
        let mut header = self.header(EntryType::Symlink, Nature { mode: 0o777, owner }, 0);
        self.builder.append_link(&mut header, target, leads_to).map_err(failed)
    }

    /// A file or a directory of the host with all that is in it and not left out. Links are copied as links.
    pub(crate) fn tree(
        &mut self,
        target: &Path,
        source: &Path,
        is_left_out: &dyn Fn(&Path) -> bool,
    ) -> Result<()> {
        let data = source.symlink_metadata().map_err(|error| unreadable(source, &error))?;
        if data.is_symlink() {
            let leads_to = fs::read_link(source).map_err(|error| unreadable(source, &error))?;
            return self.link(target, &leads_to, (0, 0));
        }
        if data.is_file() {
            return self.file(target, source);
        }
        if !data.is_dir() {
            return Ok(());
        }
        self.directory(target, data.permissions().mode())?;
        let entries = fs::read_dir(source).and_then(Iterator::collect::<io::Result<Vec<_>>>);
        let mut entries = entries.map_err(|error| unreadable(source, &error))?;
        entries.sort_by_key(fs::DirEntry::file_name);
        for entry in entries.iter().filter(|entry| !is_left_out(&entry.path())) {
            self.tree(&target.join(entry.file_name()), &entry.path(), is_left_out)?;
        }
        Ok(())
    }

    /// What is in another archive, at other places. Names that lead out are refused later, by whoever unpacks this.
    pub(crate) fn archive(&mut self, archive: impl Read, place: impl Fn(&Path) -> PathBuf) -> Result<()> {
        let broken = |error: io::Error| {
            Error::new(ErrorCode::InvalidArgument, format!("the archive cannot be read: {error}"))
        };
        let mut archive = tar::Archive::new(archive);
        for entry in archive.entries().map_err(broken)? {
            let mut entry = entry.map_err(broken)?;
            let target = place(&entry.path().map_err(broken)?);
            if target.components().any(|part| part == std::path::Component::ParentDir) {
                let name = target.display().to_string();
                let wrong = format!("traversal: `{}` leads out of a directory", name.escape_debug());
                return Err(Error::new(ErrorCode::InvalidArgument, wrong));
            }
            let kind = entry.header().entry_type();
            let id = |id: u64| u32::try_from(id).unwrap_or(u32::MAX);
            let header = entry.header();
            let owner = (id(header.uid().unwrap_or(0)), id(header.gid().unwrap_or(0)));
            let nature = Nature { mode: header.mode().map_err(broken)?, owner };
            let linked = entry.link_name().map_err(broken)?.map(|name| name.into_owned());
            match kind {
                EntryType::Directory => self.directory_of(&target, nature)?,
                EntryType::Symlink => self.link(&target, &linked.unwrap_or_default(), owner)?,
                EntryType::Link => {
                    let mut header = self.header(EntryType::Link, nature, 0);
                    let linked = place(&linked.unwrap_or_default());
                    self.builder.append_link(&mut header, &target, linked).map_err(failed)?;
                }
                EntryType::Regular | EntryType::Continuous | EntryType::GNUSparse => {
                    let mut header = self.header(EntryType::Regular, nature, entry.size());
                    self.builder.append_data(&mut header, &target, &mut entry).map_err(broken)?;
                }
                EntryType::XGlobalHeader => {}
                _ => {
                    let name = target.display().to_string();
                    return Err(Error::new(
                        ErrorCode::InvalidArgument,
                        format!("the archive has `{}`, which is no file", name.escape_debug()),
                    ));
                }
            }
        }
        Ok(())
    }
}

/// A tar archive of the host, packed or not; nothing if it is something else.
pub(crate) fn as_archive(path: &Path) -> Result<Option<Box<dyn Read>>> {
    let read = || -> io::Result<Option<Box<dyn Read>>> {
        let mut unpacked = belljar_layers::unpacking(BufReader::new(File::open(path)?))?;
        let mut start = Vec::new();
        // What cannot be unpacked is no archive.
        let is_tar = (&mut unpacked).take(512).read_to_end(&mut start).is_ok()
            && start.get(257..262).is_some_and(|mark| mark == b"ustar");
        Ok(is_tar.then(|| Box::new(io::Cursor::new(start).chain(unpacked)) as Box<dyn Read>))
    };
    read().map_err(|error| unreadable(path, &error))
}

fn unreadable(path: &Path, error: &io::Error) -> Error {
    Error::new(ErrorCode::InvalidArgument, format!("cannot read {}: {error}", path.display()))
}
