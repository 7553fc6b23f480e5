//! The host as a template sees it: its files, the few environment variables that matter, and a record of everything
//! that was looked at, so that a cached answer can be checked by looking at the same things again.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::Read;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Settings larger than this are not read.
pub(super) const SETTINGS_LIMIT: u64 = 1 << 20;

/// What version managers need to find the program they stand for; probed programs get these and no others.
pub(super) const TOOLCHAIN_VARIABLES: &[&str] = &[
    "HOME",
    "PATH",
    "PYENV_ROOT",
    "PYENV_VERSION",
    "NVM_DIR",
    "VOLTA_HOME",
    "ASDF_DIR",
    "ASDF_DATA_DIR",
    "MISE_DATA_DIR",
    "CARGO_HOME",
    "RUSTUP_HOME",
    "RUSTUP_TOOLCHAIN",
];

/// The only other variables a template may depend on. What is in neither list is never read.
const VARIABLES: &[&str] = &[
    "VIRTUAL_ENV",
    "XDG_CONFIG_HOME",
    "XDG_DATA_HOME",
    "PIP_CONFIG_FILE",
    "PIP_INDEX_URL",
    "PIP_EXTRA_INDEX_URL",
    "PIP_FIND_LINKS",
    "PIP_TRUSTED_HOST",
    "PIP_CERT",
    "CARGO_REGISTRY_DEFAULT",
    "CARGO_HTTP_CAINFO",
    "SSL_CERT_FILE",
    "REQUESTS_CA_BUNDLE",
    "CURL_CA_BUNDLE",
    "NODE_EXTRA_CA_CERTS",
    "GIT_SSL_CAINFO",
    "AWS_CA_BUNDLE",
];

/// Families of variables named after something the user chose.
const VARIABLE_PREFIXES: &[&str] = &["NPM_CONFIG_", "npm_config_", "CARGO_REGISTRIES_"];

/// The host, or in tests a directory that plays one.
#[derive(Debug)]
pub(super) struct Source {
    root: PathBuf,
    env: BTreeMap<String, String>,
    seen: RefCell<BTreeMap<PathBuf, String>>,
}

impl Source {
    /// This machine, with this process's environment.
    pub(super) fn current() -> Self {
        Self::new(
            PathBuf::from("/"),
            std::env::vars_os()
                .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?))),
        )
    }

    pub(super) fn new(root: PathBuf, env: impl IntoIterator<Item = (String, String)>) -> Self {
        let relevant = |name: &str| {
            TOOLCHAIN_VARIABLES.contains(&name)
                || VARIABLES.contains(&name)
                || VARIABLE_PREFIXES.iter().any(|prefix| name.starts_with(prefix))
        };
        Self {
            root,
            env: env.into_iter().filter(|(name, _)| relevant(name)).collect(),
            seen: RefCell::default(),
        }
    }

    pub(super) fn env(&self) -> &BTreeMap<String, String> {
        &self.env
    }

    /// A variable that is set and not empty.
    pub(super) fn var(&self, name: &str) -> Option<&str> {
        self.env.get(name).map(String::as_str).filter(|value| !value.is_empty())
    }

    /// The directory a variable names, else `default` under the home directory.
    pub(super) fn directory(&self, name: &str, default: &str) -> Option<PathBuf> {
        match self.var(name) {
            Some(value) => Some(PathBuf::from(value)),
            None => self.home().map(|home| home.join(default)),
        }
    }

    pub(super) fn home(&self) -> Option<&Path> {
        self.var("HOME").map(Path::new).filter(|home| home.is_absolute() && *home != Path::new("/"))
    }

    /// Where a path of the host really is.
    pub(super) fn at(&self, path: &Path) -> PathBuf {
        self.root.join(path.strip_prefix("/").unwrap_or(path))
    }

    /// The path with all symbolic links resolved, as the host would say it.
    pub(super) fn canonical(&self, path: &Path) -> Option<PathBuf> {
        let real = self.at(path).canonicalize().ok()?;
        let root = self.root.canonicalize().ok()?;
        Some(Path::new("/").join(real.strip_prefix(root).ok()?))
    }

    /// Records that the answer depends on this path, present or not.
    pub(super) fn watch(&self, path: &Path) {
        let mut seen = self.seen.borrow_mut();
        if !seen.contains_key(path) {
            seen.insert(path.to_owned(), self.stamp(path));
        }
    }

    /// What changes whenever the file does.
    pub(super) fn stamp(&self, path: &Path) -> String {
        match fs::metadata(self.at(path)) {
            Ok(data) => format!(
                "{}:{}:{}.{}:{}:{:o}",
                data.dev(),
                data.ino(),
                data.mtime(),
                data.mtime_nsec(),
                data.size(),
                data.mode()
            ),
            Err(_) => "-".to_owned(),
        }
    }

    /// Everything watched so far, with its stamp at the time.
    pub(super) fn seen(&self) -> Vec<(PathBuf, String)> {
        self.seen.borrow().iter().map(|(path, stamp)| (path.clone(), stamp.clone())).collect()
    }

    pub(super) fn is_dir(&self, path: &Path) -> bool {
        self.watch(path);
        self.at(path).is_dir()
    }

    pub(super) fn is_file(&self, path: &Path) -> bool {
        self.watch(path);
        self.at(path).is_file()
    }

    /// The names in a directory, sorted; none if it cannot be read.
    pub(super) fn names(&self, path: &Path) -> Vec<String> {
        self.watch(path);
        let Ok(entries) = fs::read_dir(self.at(path)) else { return Vec::new() };
        let mut names: Vec<_> =
            entries.flatten().filter_map(|entry| entry.file_name().into_string().ok()).collect();
        names.sort();
        names
    }

    /// The content of a regular file no larger than `limit`.
    pub(super) fn read(&self, path: &Path, limit: u64) -> Option<Vec<u8>> {
        self.watch(path);
        read_regular(&self.at(path), limit).map(|(content, _)| content)
    }

    /// Like [`Source::read`], but only what every account of the host may read anyway, and whether it is executable.
    pub(super) fn read_public(&self, path: &Path, limit: u64) -> Option<(Vec<u8>, bool)> {
        let (content, mode) = read_regular(&self.at(path), limit)?;
        (mode & 0o004 != 0).then_some((content, mode & 0o001 != 0))
    }

    /// A settings file as text; tolerant of stray bytes, since one of them must not hide the rest.
    pub(super) fn settings(&self, path: &Path) -> Option<String> {
        self.read(path, SETTINGS_LIMIT).map(|content| String::from_utf8_lossy(&content).into_owned())
    }
}

/// Opens without blocking, so that a pipe planted in place of a file is noticed rather than waited for.
fn read_regular(path: &Path, limit: u64) -> Option<(Vec<u8>, u32)> {
    let nonblocking = rustix::fs::OFlags::NONBLOCK.bits() as i32;
    let file: File = OpenOptions::new().read(true).custom_flags(nonblocking).open(path).ok()?;
    let data = file.metadata().ok()?;
    if !data.is_file() || data.len() > limit {
        return None;
    }
    let mut content = Vec::new();
    file.take(limit + 1).read_to_end(&mut content).ok()?;
    (content.len() as u64 <= limit).then_some((content, data.mode()))
}

#[cfg(test)]
pub(super) mod testing {
    use super::*;

    /// A directory that plays a host: a merged `/usr`, a shell, accounts, a home at `/home/ann`.
    pub(crate) struct FakeHost(pub(crate) tempfile::TempDir);

    impl FakeHost {
        pub(crate) fn new() -> Self {
            let host = Self(tempfile::tempdir().unwrap());
            host.write("/usr/bin/bash", "", 0o755);
            host.write("/usr/lib/os-release", "ID=fake\n", 0o644);
            host.link("/bin", "usr/bin");
            host.link("/lib", "usr/lib");
            host.write(
                "/etc/passwd",
                "root:x:0:0:root:/root:/bin/zsh\nann:x:1000:1000:Ann:/home/ann:/bin/zsh\n",
                0o644,
            );
            host.write("/etc/group", "root:x:0:\nsudo:x:27:ann\n", 0o644);
            host.directory("/home/ann");
            host
        }

        pub(crate) fn path(&self, path: &str) -> PathBuf {
            self.0.path().join(path.trim_start_matches('/'))
        }

        pub(crate) fn directory(&self, path: &str) {
            fs::create_dir_all(self.path(path)).unwrap();
        }

        pub(crate) fn write(&self, path: &str, content: &str, mode: u32) {
            use std::os::unix::fs::PermissionsExt;
            let path = self.path(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(&path, content).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        }

        pub(crate) fn link(&self, path: &str, target: &str) {
            let path = self.path(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::os::unix::fs::symlink(target, path).unwrap();
        }

        pub(crate) fn source(&self, env: &[(&str, &str)]) -> Source {
            let base = [("HOME", "/home/ann"), ("PATH", "/opt/shims:/usr/bin")];
            let pairs = base.iter().chain(env).map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
            Source::new(self.0.path().to_owned(), pairs)
        }
    }

    #[test]
    fn only_listed_variables_are_seen() {
        let host = FakeHost::new();
        let source = host.source(&[("AWS_SECRET_ACCESS_KEY", "x"), ("PYENV_VERSION", "3.11")]);
        assert_eq!(source.var("AWS_SECRET_ACCESS_KEY"), None);
        assert_eq!(source.var("PYENV_VERSION"), Some("3.11"));
    }

    #[test]
    fn large_files_and_pipes_are_not_read() {
        let host = FakeHost::new();
        host.write("/etc/pip.conf", &"#".repeat(SETTINGS_LIMIT as usize + 1), 0o644);
        rustix::fs::mknodat(
            rustix::fs::CWD,
            host.path("/etc/npmrc"),
            rustix::fs::FileType::Fifo,
            rustix::fs::Mode::from_raw_mode(0o644),
            0,
        )
        .unwrap();
        let source = host.source(&[]);
        assert_eq!(source.settings(Path::new("/etc/pip.conf")), None);
        assert_eq!(source.settings(Path::new("/etc/npmrc")), None);
    }
}
