//! The files of a modelled sandbox.

use std::collections::BTreeMap;

use belljar_core::{Error, ErrorCode, Result};

/// A file system in memory: absolute, normal paths to files and directories.
#[derive(Clone, Debug)]
pub struct Tree(BTreeMap<String, Node>);

#[derive(Clone, Debug)]
enum Node {
    Directory,
    File(Vec<u8>),
}

impl Tree {
    /// The home of the modelled user.
    pub const HOME: &'static str = "/home/user";
    /// Where temporary files go.
    pub const TMP: &'static str = "/tmp";

    pub(super) fn new() -> Self {
        let directories = ["/", "/home", Self::HOME, Self::TMP];
        Self(directories.map(|path| (path.to_owned(), Node::Directory)).into())
    }

    /// The absolute path that `path` means in the directory `cwd`; `..` never leads above the root.
    pub fn absolute(cwd: &str, path: &str) -> String {
        let start = if path.starts_with('/') { "" } else { cwd };
        let mut parts = Vec::new();
        for part in start.split('/').chain(path.split('/')) {
            match part {
                "" | "." => {}
                ".." => drop(parts.pop()),
                part => parts.push(part),
            }
        }
        format!("/{}", parts.join("/"))
    }

    /// Whether a directory is at this absolute path.
    pub fn is_directory(&self, path: &str) -> bool {
        matches!(self.0.get(path), Some(Node::Directory))
    }

    /// Whether a file is at this absolute path.
    pub fn is_file(&self, path: &str) -> bool {
        matches!(self.0.get(path), Some(Node::File(_)))
    }

    /// The content of a file.
    pub fn read(&self, path: &str) -> Result<&[u8]> {
        match self.0.get(path) {
            Some(Node::File(content)) => Ok(content),
            Some(Node::Directory) => {
                Err(Error::new(ErrorCode::InvalidArgument, format!("`{path}` is a directory")))
            }
            None => Err(Error::new(ErrorCode::NotFound, format!("there is no file `{path}`"))),
        }
    }

    /// Replaces a file; its directory must exist.
    pub fn write(&mut self, path: &str, content: Vec<u8>) -> Result<()> {
        if self.is_directory(path) {
            return Err(Error::new(ErrorCode::InvalidArgument, format!("`{path}` is a directory")));
        }
        let parent = parent(path);
        if !self.is_directory(parent) {
            return Err(Error::new(ErrorCode::NotFound, format!("there is no directory `{parent}`")));
        }
        self.0.insert(path.to_owned(), Node::File(content));
        Ok(())
    }

    /// Makes a directory and its parents.
    pub fn make_directories(&mut self, path: &str) -> Result<()> {
        if path != "/" {
            self.make_directories(parent(path))?;
        }
        if self.is_file(path) {
            return Err(Error::new(ErrorCode::InvalidArgument, format!("`{path}` is not a directory")));
        }
        self.0.insert(path.to_owned(), Node::Directory);
        Ok(())
    }

    /// Removes a file, or a directory with all that is in it.
    pub fn remove(&mut self, path: &str) -> Result<()> {
        if self.0.remove(path).is_none() {
            return Err(Error::new(ErrorCode::NotFound, format!("there is no `{path}`")));
        }
        let below = format!("{path}/");
        self.0.retain(|name, _| !name.starts_with(&below));
        Ok(())
    }

    /// The names in a directory, sorted.
    pub fn names(&self, directory: &str) -> Vec<&str> {
        let prefix = if directory == "/" { "/".to_owned() } else { format!("{directory}/") };
        self.0
            .keys()
            .filter_map(|path| path.strip_prefix(&prefix))
            .filter(|name| !name.is_empty() && !name.contains('/'))
            .collect()
    }
}

/// The directory that holds an absolute path.
pub(super) fn parent(path: &str) -> &str {
    match path.rsplit_once('/') {
        None | Some(("", _)) => "/",
        Some((parent, _)) => parent,
    }
}
