//! A directory tree under construction, and the digest of a finished one.
//!
//! Nothing is ever written through a symbolic link: links of the host are copied into the tree, and one of them must
//! not turn a later write into a write to the host.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt, lchown, symlink};
use std::path::{Component, Path, PathBuf};

use sha2::{Digest, Sha256};

use super::TemplateError;

/// The root being filled. Paths are given as they will be seen inside.
#[derive(Debug)]
pub(super) struct Tree {
    root: PathBuf,
}

impl Tree {
    /// Starts with an empty directory at `root`.
    pub(super) fn create(root: PathBuf) -> Result<Self, TemplateError> {
        fs::create_dir(&root)
            .map_err(|source| TemplateError::CreateDirectory { path: root.clone(), source })?;
        set_mode(&root, 0o755)?;
        Ok(Self { root })
    }

    pub(super) fn at(&self, path: &Path) -> PathBuf {
        self.root.join(path.strip_prefix("/").unwrap_or(path))
    }

    pub(super) fn contains(&self, path: &Path) -> bool {
        self.at(path).symlink_metadata().is_ok()
    }

    /// Makes a directory and those above it, each with mode 0755, so that every account inside can pass.
    pub(super) fn directory(&self, path: &Path) -> Result<(), TemplateError> {
        let mut at = self.root.clone();
        for part in path.components() {
            let Component::Normal(name) = part else { continue };
            at.push(name);
            match fs::create_dir(&at) {
                Ok(()) => set_mode(&at, 0o755)?,
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                    if !at.symlink_metadata().is_ok_and(|data| data.is_dir()) {
                        return Err(TemplateError::CreateDirectory {
                            path: at,
                            source: io::ErrorKind::NotADirectory.into(),
                        });
                    }
                }
                Err(source) => return Err(TemplateError::CreateDirectory { path: at, source }),
            }
        }
        Ok(())
    }

    /// Makes a directory with a mode of its own.
    pub(super) fn directory_with_mode(&self, path: &Path, mode: u32) -> Result<(), TemplateError> {
        self.directory(path)?;
        set_mode(&self.at(path), mode)
    }

    /// Writes a new file; it is an error if something is there already.
    pub(super) fn file(&self, path: &Path, content: &[u8], mode: u32) -> Result<(), TemplateError> {
        self.parent(path)?;
        let at = self.at(path);
        let written =
            OpenOptions::new().write(true).create_new(true).mode(mode).open(&at).and_then(|mut file| {
                file.write_all(content)?;
                file.set_permissions(fs::Permissions::from_mode(mode))
            });
        written.map_err(|source| TemplateError::WriteFile { path: at, source })
    }

    /// Makes a symbolic link; it is an error if something is there already.
    pub(super) fn link(&self, path: &Path, target: &Path) -> Result<(), TemplateError> {
        self.parent(path)?;
        let at = self.at(path);
        symlink(target, &at).map_err(|source| TemplateError::CreateLink { path: at, source })
    }

    fn parent(&self, path: &Path) -> Result<(), TemplateError> {
        path.parent().map_or(Ok(()), |parent| self.directory(parent))
    }

    /// Gives a path and all below it to an account inside.
    pub(super) fn give(&self, path: &Path, id: u32) -> Result<(), TemplateError> {
        for at in walk(&self.at(path))? {
            lchown(&at, Some(id), Some(id))
                .map_err(|source| TemplateError::SetAttributes { path: at, source })?;
        }
        Ok(())
    }
}

fn set_mode(path: &Path, mode: u32) -> Result<(), TemplateError> {
    fs::set_permissions(path, fs::Permissions::from_mode(mode))
        .map_err(|source| TemplateError::SetAttributes { path: path.to_owned(), source })
}

/// The path and everything below it, sorted.
fn walk(top: &Path) -> Result<Vec<PathBuf>, TemplateError> {
    let failed = |path: &Path| {
        let path = path.to_owned();
        move |source| TemplateError::Digest { path, source }
    };
    let mut found = vec![top.to_owned()];
    let mut next = 0;
    while let Some(path) = found.get(next).cloned() {
        next += 1;
        if path.symlink_metadata().map_err(failed(&path))?.is_dir() {
            for entry in fs::read_dir(&path).map_err(failed(&path))? {
                found.push(entry.map_err(failed(&path))?.path());
            }
        }
    }
    found.sort();
    Ok(found)
}

/// Feeds names, kinds, modes, link targets and contents of a tree to a hash. Times and owners do not count.
pub(super) fn digest(root: &Path, hash: &mut Sha256) -> Result<(), TemplateError> {
    for path in walk(root)? {
        let failed = |source| TemplateError::Digest { path: path.clone(), source };
        let data = path.symlink_metadata().map_err(failed)?;
        let content = if data.is_symlink() {
            fs::read_link(&path).map_err(failed)?.as_os_str().as_bytes().to_vec()
        } else if data.is_file() {
            fs::read(&path).map_err(failed)?
        } else {
            Vec::new()
        };
        let name = path.strip_prefix(root).unwrap_or(&path).as_os_str().as_bytes();
        for part in [name, &data.permissions().mode().to_le_bytes(), &content] {
            hash.update((part.len() as u64).to_le_bytes());
            hash.update(part);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copied_link_is_never_written_through() {
        let place = tempfile::tempdir().unwrap();
        let outside = place.path().join("outside");
        fs::create_dir(&outside).unwrap();
        let tree = Tree::create(place.path().join("root")).unwrap();
        tree.link(Path::new("/etc/ssl"), &outside).unwrap();
        assert!(tree.file(Path::new("/etc/ssl/x"), b"x", 0o644).is_err());
        tree.link(Path::new("/etc/y"), &outside.join("y")).unwrap();
        assert!(tree.file(Path::new("/etc/y"), b"x", 0o644).is_err());
        assert_eq!(fs::read_dir(&outside).unwrap().count(), 0);
    }

    #[test]
    fn digest_sees_content_mode_and_name() {
        let place = tempfile::tempdir().unwrap();
        let of = |name: &str, file: &str, content: &[u8], mode| {
            let tree = Tree::create(place.path().join(name)).unwrap();
            tree.file(Path::new(file), content, mode).unwrap();
            let mut hash = Sha256::new();
            digest(&place.path().join(name), &mut hash).unwrap();
            hash.finalize()
        };
        let base = of("a", "/x/y", b"1", 0o644);
        assert_eq!(base, of("b", "/x/y", b"1", 0o644));
        assert_ne!(base, of("c", "/x/y", b"2", 0o644));
        assert_ne!(base, of("d", "/x/y", b"1", 0o755));
        assert_ne!(base, of("e", "/x/z", b"1", 0o644));
    }
}
