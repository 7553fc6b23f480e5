//! Templates as others read them: an archive in the layout of OCI.

use std::collections::{BTreeMap, HashMap};
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, FileType, Mode, OFlags, Stat};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use tar::{EntryType, Header};

use crate::digest::Digest;
use crate::record::{Record, Settings};
use crate::stack::{OPAQUE, is_opaque_at, names_in, open_beneath};
use crate::store::Store;

/// What a template lies on, and what images have no word for.
pub(crate) const GROUND: &str = "dev.belljar.ground";
pub(crate) const SETTINGS: &str = "dev.belljar.settings";

/// Writes a template as an image.
pub fn export(store: &Store, record: &Record, into: impl Write) -> io::Result<()> {
    let mut archive = tar::Builder::new(into);
    put(&mut archive, "oci-layout", br#"{"imageLayoutVersion":"1.0.0"}"#)?;
    let (mut layers, mut contents) = (Vec::new(), Vec::new());
    for layer in &record.layers {
        let mut file = tempfile::tempfile()?;
        let (content, length) = pack(&File::open(store.tree(&layer.digest))?.into(), &mut file)?;
        file.seek(SeekFrom::Start(0))?;
        contents.push(content);
        if layers.iter().any(|known: &Value| known["digest"] == json!(content)) {
            layers.push(described("application/vnd.oci.image.layer.v1.tar", content, length));
            continue;
        }
        let mut header = header(length);
        archive.append_data(&mut header, blob(&content), file.take(length))?;
        layers.push(described("application/vnd.oci.image.layer.v1.tar", content, length));
    }
    let config = serde_json::to_vec(&config(&record.settings, &contents))?;
    let config_digest = put_blob(&mut archive, &config)?;
    let own: BTreeMap<&str, String> = [
        (GROUND, serde_json::to_string(&record.ground)?),
        (SETTINGS, serde_json::to_string(&record.settings)?),
    ]
    .into();
    let manifest = serde_json::to_vec(&json!({
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": described("application/vnd.oci.image.config.v1+json", config_digest, config.len() as u64),
        "layers": layers,
        "annotations": own,
    }))?;
    let manifest_digest = put_blob(&mut archive, &manifest)?;
    let described =
        described("application/vnd.oci.image.manifest.v1+json", manifest_digest, manifest.len() as u64);
    put(
        &mut archive,
        "index.json",
        &serde_json::to_vec(&json!({ "schemaVersion": 2, "manifests": [described] }))?,
    )?;
    archive.into_inner()?.flush()
}

fn described(kind: &str, digest: Digest, length: u64) -> Value {
    json!({ "mediaType": kind, "digest": digest, "size": length })
}

fn config(settings: &Settings, contents: &[Digest]) -> Value {
    let env: Vec<String> = settings.env.iter().map(|(name, value)| format!("{name}={value}")).collect();
    let architecture = match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    };
    json!({
        "architecture": architecture,
        "os": "linux",
        "config": {
            "Env": env,
            "User": settings.user.as_deref().unwrap_or_default(),
            "WorkingDir": settings.working_directory.as_deref().unwrap_or_default(),
            "Entrypoint": settings.entrypoint,
            "Cmd": settings.command,
        },
        "rootfs": { "type": "layers", "diff_ids": contents },
    })
}

fn header(length: u64) -> Header {
    let mut header = Header::new_gnu();
    header.set_size(length);
    header.set_mode(0o644);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(0);
    header
}

fn put(archive: &mut tar::Builder<impl Write>, name: &str, content: &[u8]) -> io::Result<()> {
    archive.append_data(&mut header(content.len() as u64), name, content)
}

fn blob(digest: &Digest) -> String {
    format!("blobs/sha256/{}", digest.hex())
}

fn put_blob(archive: &mut tar::Builder<impl Write>, content: &[u8]) -> io::Result<Digest> {
    let digest = Digest::of(content);
    put(archive, &blob(&digest), content)?;
    Ok(digest)
}

/// Packs the files of a layer; answers the archive's digest and length.
fn pack(root: &OwnedFd, into: &mut File) -> io::Result<(Digest, u64)> {
    let hashed = Hashed { inner: into, hash: Sha256::new(), length: 0 };
    let mut packing = Packing { builder: tar::Builder::new(hashed), root, links: HashMap::new() };
    packing.below(Path::new(""))?;
    let Hashed { hash, length, .. } = packing.builder.into_inner()?;
    Ok((Digest(hash.finalize().into()), length))
}

struct Hashed<'a> {
    inner: &'a mut File,
    hash: Sha256,
    length: u64,
}

impl Write for Hashed<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let count = self.inner.write(bytes)?;
        self.hash.update(&bytes[..count]);
        self.length += count as u64;
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

struct Packing<'a> {
    builder: tar::Builder<Hashed<'a>>,
    root: &'a OwnedFd,
    /// Files with several names: the first of them.
    links: HashMap<(u64, u64), PathBuf>,
}

impl Packing<'_> {
    fn below(&mut self, place: &Path) -> io::Result<()> {
        let directory = open_beneath(self.root, place)?;
        if is_opaque_at(self.root, place)? {
            self.builder.append_data(&mut header(0), place.join(".wh..wh..opq"), io::empty())?;
        }
        let mut names = names_in(&directory)?;
        names.sort();
        for name in names {
            self.entry(&directory, &name, &place.join(&name))?;
        }
        Ok(())
    }

    fn entry(&mut self, directory: &OwnedFd, name: &OsStr, path: &Path) -> io::Result<()> {
        let stat = rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW)?;
        let mut header = natural(&stat);
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory => {
                self.attributes(&open_beneath(self.root, path)?)?;
                header.set_entry_type(EntryType::Directory);
                self.builder.append_data(&mut header, path, io::empty())?;
                self.below(path)
            }
            FileType::RegularFile => {
                if stat.st_nlink > 1 {
                    if let Some(first) = self.links.get(&(stat.st_dev, stat.st_ino)) {
                        header.set_entry_type(EntryType::Link);
                        return self.builder.append_link(&mut header, path, first);
                    }
                    self.links.insert((stat.st_dev, stat.st_ino), path.to_owned());
                }
                let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                let file = rustix::fs::openat(directory, name, flags, Mode::empty())?;
                self.attributes(&file)?;
                header.set_size(stat.st_size as u64);
                self.builder.append_data(&mut header, path, File::from(file).take(stat.st_size as u64))
            }
            FileType::Symlink => {
                let target = rustix::fs::readlinkat(directory, name, Vec::new())?;
                header.set_entry_type(EntryType::Symlink);
                self.builder.append_link(&mut header, path, OsStr::from_bytes(target.to_bytes()))
            }
            // The mark of what was taken away.
            _ => {
                let mut mark = OsStr::new(".wh.").to_owned();
                mark.push(name);
                self.builder.append_data(&mut self::header(0), path.with_file_name(mark), io::empty())
            }
        }
    }

    /// Attributes go before the file that has them.
    fn attributes(&mut self, node: &OwnedFd) -> io::Result<()> {
        let mut list = vec![0; 64 << 10];
        let length = match rustix::fs::flistxattr(node, &mut list[..]) {
            Err(rustix::io::Errno::NOTSUP) => 0,
            length => length?,
        };
        let mut found = Vec::new();
        for name in list[..length]
            .split(|byte| *byte == 0)
            .filter(|name| !name.is_empty() && *name != OPAQUE.as_bytes())
        {
            let mut value = vec![0; 64 << 10];
            let length = rustix::fs::fgetxattr(node, OsStr::from_bytes(name), &mut value[..])?;
            value.truncate(length);
            found.push((format!("SCHILY.xattr.{}", String::from_utf8_lossy(name)), value));
        }
        found.sort();
        let pairs = found.iter().map(|(name, value)| (name.as_str(), value.as_slice()));
        if found.is_empty() { Ok(()) } else { self.builder.append_pax_extensions(pairs) }
    }
}

fn natural(stat: &Stat) -> Header {
    let mut header = Header::new_gnu();
    header.set_mode(stat.st_mode & 0o7777);
    header.set_uid(stat.st_uid.into());
    header.set_gid(stat.st_gid.into());
    header.set_mtime(u64::try_from(stat.st_mtime).unwrap_or(0));
    header.set_size(0);
    header
}
