//! A small root directory for rivals that want one of their own: two programs, an interpreter, and what they link to.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::process::output;
use crate::error::{Result, at};

/// Below the interpreter's library, what `print(1)` never looks at.
const UNUSED: [&str; 2] = ["dist-packages", "test"];

/// A root directory, and the same as a tar archive.
pub(super) struct Image {
    /// The directory.
    pub(super) root: PathBuf,
    /// The archive.
    pub(super) tar: PathBuf,
}

impl Image {
    /// Copies the host's own programs together below `scratch`.
    pub(super) fn make(scratch: &Path) -> Result<Self> {
        let (root, tar) = (scratch.join("root"), scratch.join("root.tar"));
        for folder in ["bin", "dev", "etc", "proc", "sys", "tmp", "usr/bin", "usr/lib"] {
            let path = root.join(folder);
            fs::create_dir_all(&path).map_err(at(&path))?;
        }
        for (program, place) in [("/bin/true", "bin/true"), ("/bin/sleep", "bin/sleep")] {
            bring(Path::new(program), &root, place)?;
        }
        let python = Path::new("/usr/bin/python3");
        if python.exists() {
            bring(python, &root, "usr/bin/python3")?;
            let mut ask = Command::new(python);
            ask.args(["-I", "-S", "-c", "import sysconfig; print(sysconfig.get_path('stdlib'))"]);
            let library = PathBuf::from(output(ask)?);
            copy_tree(&library, &below(&root, &library))?;
        }
        let mut pack = Command::new("tar");
        pack.arg("-C").arg(&root).arg("-cf").arg(&tar).arg(".");
        output(pack)?;
        Ok(Self { root, tar })
    }
}

fn below(root: &Path, path: &Path) -> PathBuf {
    root.join(path.strip_prefix("/").unwrap_or(path))
}

/// Copies a program and the libraries it is linked to.
fn bring(program: &Path, root: &Path, place: &str) -> Result<()> {
    let target = root.join(place);
    fs::copy(program, &target).map_err(at(program))?;
    let mut ask = Command::new("ldd");
    ask.arg(program);
    for library in libraries(&output(ask)?) {
        let target = below(root, &library);
        if let Some(folder) = target.parent() {
            fs::create_dir_all(folder).map_err(at(folder))?;
        }
        fs::copy(&library, &target).map_err(at(&library))?;
    }
    Ok(())
}

/// The paths in what `ldd` prints.
fn libraries(text: &str) -> Vec<PathBuf> {
    let words = text.lines().filter_map(|line| line.split_whitespace().find(|word| word.starts_with('/')));
    words.map(PathBuf::from).collect()
}

fn copy_tree(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to).map_err(at(to))?;
    for entry in fs::read_dir(from).map_err(at(from))? {
        let entry = entry.map_err(at(from))?;
        let (source, target) = (entry.path(), to.join(entry.file_name()));
        let kind = entry.file_type().map_err(at(&source))?;
        if kind.is_dir() {
            if !UNUSED.iter().any(|unused| entry.file_name() == *unused) {
                copy_tree(&source, &target)?;
            }
        } else if kind.is_file() {
            fs::copy(&source, &target).map_err(at(&source))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_are_found_in_what_ldd_prints() {
        let text = "\tlinux-vdso.so.1 (0x00007ffd)\n\tlibc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x00007f)\n\t\
                    /lib64/ld-linux-x86-64.so.2 (0x00007f)\n";
        let found = libraries(text);
        let expected = ["/lib/x86_64-linux-gnu/libc.so.6", "/lib64/ld-linux-x86-64.so.2"];
        assert_eq!(found, expected.map(PathBuf::from));
        assert!(libraries("\tstatically linked\n").is_empty());
    }

    #[test]
    fn trees_are_copied_without_what_nobody_needs() {
        let scratch = tempfile::tempdir().unwrap();
        let (from, to) = (scratch.path().join("from"), scratch.path().join("to"));
        fs::create_dir_all(from.join("deep/er")).unwrap();
        fs::create_dir_all(from.join("test")).unwrap();
        fs::write(from.join("deep/er/file"), "x").unwrap();
        fs::write(from.join("test/file"), "x").unwrap();
        copy_tree(&from, &to).unwrap();
        assert!(to.join("deep/er/file").exists() && !to.join("test").exists());
    }
}
