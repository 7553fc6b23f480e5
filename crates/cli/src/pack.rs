//! Packing files of the host for a sandbox. Whoever owns a directory may change it while it is packed, and may be allowed
//! less than the caller; so what was listed is opened below the descriptor of its directory, through no link, and what
//! counts is what was opened.

use std::ffi::{OsStr, OsString};
use std::fs::{File, FileType, Metadata};
use std::io::{self, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use belljar_core::Result;
use rustix::fs::{Dir, Mode, OFlags, openat, readlinkat};

use crate::args;

/// Puts one file into an archive.
pub(crate) fn append_file(
    archive: &mut tar::Builder<impl Write>,
    path: &Path,
    file: &File,
    name: &Path,
) -> Result<()> {
    let unreadable = |error: io::Error| args::unreadable(path, &error);
    let metadata = file.metadata().map_err(unreadable)?;
    let mut header = header(tar::EntryType::Regular, &metadata);
    header.set_size(metadata.len());
    let mut content = io::Read::take(file, metadata.len());
    archive.append_data(&mut header, name, &mut content).map_err(unreadable)?;
    if content.limit() > 0 {
        return Err(args::unreadable(path, &io::Error::other("it shrank while it was copied")));
    }
    Ok(())
}

/// Puts everything in a directory into an archive; `path` is for messages. Links are copied as links; sockets, pipes and
/// devices cannot be copied, which ends the copy.
pub(crate) fn append_directory(
    archive: &mut tar::Builder<impl Write>,
    path: &Path,
    directory: &File,
    name: &Path,
) -> Result<()> {
    for listed in names(directory).map_err(|error| args::unreadable(path, &error))? {
        let (path, name) = (path.join(&listed), name.join(&listed));
        let unreadable = |error: io::Error| args::unreadable(&path, &error);
        match Entry::open(directory, &listed).map_err(unreadable)? {
            Entry::Directory(directory, metadata) => {
                let mut header = header(tar::EntryType::Directory, &metadata);
                archive.append_data(&mut header, &name, io::empty()).map_err(unreadable)?;
                append_directory(archive, &path, &directory, &name)?;
            }
            Entry::Link(target, metadata) => {
                let mut header = header(tar::EntryType::Symlink, &metadata);
                archive.append_link(&mut header, &name, &target).map_err(unreadable)?;
            }
            Entry::File(file) => append_file(archive, &path, &file, &name)?,
        }
    }
    Ok(())
}

fn header(kind: tar::EntryType, metadata: &Metadata) -> tar::Header {
    let mut header = tar::Header::new_gnu();
    header.set_entry_type(kind);
    header.set_mode(metadata.permissions().mode() & 0o777);
    header.set_mtime(metadata.mtime().try_into().unwrap_or(0));
    header.set_size(0);
    header
}

/// What a directory holds, in order.
fn names(directory: &File) -> io::Result<Vec<OsString>> {
    let mut names = Vec::new();
    for entry in Dir::read_from(directory)? {
        let entry = entry?;
        let name = OsStr::from_bytes(entry.file_name().to_bytes());
        if name != "." && name != ".." {
            names.push(name.to_owned());
        }
    }
    names.sort();
    Ok(names)
}

/// Something in a directory, open.
enum Entry {
    File(File),
    Directory(File, Metadata),
    /// What it points to.
    Link(PathBuf, Metadata),
}

impl Entry {
    fn open(directory: &File, name: &OsStr) -> io::Result<Self> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let seen = File::from(openat(directory, name, flags, Mode::empty())?);
        let metadata = seen.metadata()?;
        let kind = metadata.file_type();
        if kind.is_symlink() {
            let target = readlinkat(&seen, c"", Vec::new())?.into_bytes();
            return Ok(Self::Link(OsString::from_vec(target).into(), metadata));
        }
        if !kind.is_dir() && !kind.is_file() {
            return Err(io::Error::other("it is neither file, directory nor link"));
        }
        let (file, metadata) = open_as(directory, name, kind)?;
        Ok(if kind.is_dir() { Self::Directory(file, metadata) } else { Self::File(file) })
    }
}

/// Opens what was seen to be of this kind, if it still is.
fn open_as(directory: &File, name: &OsStr, kind: FileType) -> io::Result<(File, Metadata)> {
    // A pipe that came in its place would keep us waiting, and a terminal would become ours.
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let replaced = || io::Error::other("it was replaced while it was copied");
    let file = match openat(directory, name, flags, Mode::empty()) {
        Ok(file) => File::from(file),
        Err(rustix::io::Errno::LOOP) => return Err(replaced()),
        Err(error) => return Err(error.into()),
    };
    let metadata = file.metadata()?;
    if metadata.file_type() == kind { Ok((file, metadata)) } else { Err(replaced()) }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::fs;
    use std::io::Read;
    use std::os::unix::fs::symlink;

    use super::*;

    /// A directory to pack, and beside it one that its owner may not read but the packer may.
    struct Yard(tempfile::TempDir);

    impl Yard {
        fn new() -> Self {
            let yard = Self(tempfile::tempdir().unwrap());
            for directory in ["tree", "secret"] {
                fs::create_dir(yard.at(directory)).unwrap();
            }
            yard.write("secret/file", "secret");
            yard
        }

        fn at(&self, path: &str) -> PathBuf {
            self.0.path().join(path)
        }

        fn write(&self, path: &str, content: &str) {
            fs::create_dir_all(self.at(path).parent().unwrap()).unwrap();
            fs::write(self.at(path), content).unwrap();
        }

        fn tree(&self) -> File {
            File::open(self.at("tree")).unwrap()
        }

        /// Packs, and once something of this content has been written, does `meanwhile`.
        fn pack(&self, mark: &str, meanwhile: impl FnOnce()) -> (Result<()>, Vec<u8>) {
            let writer = Watched { written: Vec::new(), mark, meanwhile: Some(meanwhile) };
            let mut archive = tar::Builder::new(writer);
            let tree = self.tree();
            let packed = append_directory(&mut archive, &self.at("tree"), &tree, Path::new(""));
            let writer = archive.into_inner().unwrap();
            assert!(writer.meanwhile.is_none(), "`{mark}` was never written");
            (packed, writer.written)
        }
    }

    /// Where an archive is written to, by one who is told of it.
    struct Watched<'a, F> {
        written: Vec<u8>,
        mark: &'a str,
        meanwhile: Option<F>,
    }

    impl<F: FnOnce()> Write for Watched<'_, F> {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.written.extend_from_slice(bytes);
            let mark = self.mark.as_bytes();
            if self.written.windows(mark.len()).any(|window| window == mark)
                && let Some(meanwhile) = self.meanwhile.take()
            {
                meanwhile();
            }
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn content(archive: &[u8]) -> BTreeMap<String, String> {
        let mut archive = tar::Archive::new(archive);
        let entries = archive.entries().unwrap().map(|entry| {
            let mut entry = entry.unwrap();
            let name = entry.path().unwrap().display().to_string();
            let mut content = String::new();
            entry.read_to_string(&mut content).unwrap();
            if let Some(target) = entry.link_name().unwrap() {
                content = format!("-> {}", target.display());
            }
            (name, content)
        });
        entries.collect()
    }

    #[test]
    fn a_tree_is_packed_with_its_links_as_links() {
        let yard = Yard::new();
        yard.write("tree/a/deep/file", "one");
        yard.write("tree/b", "two");
        symlink("../secret/file", yard.at("tree/link")).unwrap();
        symlink("nowhere", yard.at("tree/a/broken")).unwrap();
        let (packed, archive) = yard.pack("one", || {});
        packed.unwrap();
        let expected = [
            ("a", ""),
            ("a/broken", "-> nowhere"),
            ("a/deep", ""),
            ("a/deep/file", "one"),
            ("b", "two"),
            ("link", "-> ../secret/file"),
        ];
        let found = content(&archive);
        let found: Vec<_> =
            found.iter().map(|(name, content)| (name.trim_end_matches('/'), &content[..])).collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn a_directory_that_becomes_a_link_while_it_is_packed_does_not_lead_out() {
        let yard = Yard::new();
        yard.write("tree/way/file", "harmless");
        // Its own entry has been written, its content has not been looked at.
        let (_, archive) = yard.pack("way", || {
            fs::rename(yard.at("tree/way"), yard.at("tree/gone")).unwrap();
            symlink(yard.at("secret"), yard.at("tree/way")).unwrap();
        });
        assert_eq!(content(&archive)["way/file"], "harmless");
    }

    #[test]
    fn a_parent_that_becomes_a_link_while_it_is_packed_does_not_lead_out() {
        let yard = Yard::new();
        yard.write("tree/way/file", "harmless");
        yard.write("tree/way/before", "first");
        let (_, archive) = yard.pack("first", || {
            fs::rename(yard.at("tree/way"), yard.at("tree/gone")).unwrap();
            symlink(yard.at("secret"), yard.at("tree/way")).unwrap();
        });
        assert_eq!(content(&archive)["way/file"], "harmless");
    }

    #[test]
    fn what_takes_the_place_of_a_file_after_it_was_seen_is_not_opened() {
        let yard = Yard::new();
        yard.write("tree/file", "harmless");
        let kind = yard.at("tree/file").symlink_metadata().unwrap().file_type();
        let open = || open_as(&yard.tree(), OsStr::new("file"), kind);
        open().unwrap();
        let refused = || {
            let error = open().unwrap_err();
            assert!(error.to_string().contains("replaced"), "{error}");
            fs::remove_file(yard.at("tree/file")).unwrap();
        };
        fs::remove_file(yard.at("tree/file")).unwrap();
        symlink(yard.at("secret/file"), yard.at("tree/file")).unwrap();
        refused();
        // Nobody writes to it, so opening it would wait without an end.
        rustix::fs::mknodat(
            rustix::fs::CWD,
            yard.at("tree/file"),
            rustix::fs::FileType::Fifo,
            Mode::from_raw_mode(0o600),
            0,
        )
        .unwrap();
        refused();
        fs::create_dir(yard.at("tree/file")).unwrap();
        assert!(open().unwrap_err().to_string().contains("replaced"));
    }

    #[test]
    fn a_pipe_ends_the_copy() {
        let yard = Yard::new();
        yard.write("tree/a", "first");
        let mode = Mode::from_raw_mode(0o600);
        rustix::fs::mknodat(rustix::fs::CWD, yard.at("tree/pipe"), rustix::fs::FileType::Fifo, mode, 0)
            .unwrap();
        let error = yard.pack("first", || {}).0.unwrap_err();
        assert!(error.message.contains("pipe") && error.message.contains("neither file"), "{error}");
    }
}
