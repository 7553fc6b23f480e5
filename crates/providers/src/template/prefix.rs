//! Which directories of the host may be shown to sandboxes as a toolchain, and which never.

use std::fmt;
use std::path::{Component, Path, PathBuf};

use super::source::Source;

/// Why a prefix is not mounted.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    Missing,
    Shared,
    Replaced,
    Home(PathBuf),
    Secrets(&'static str),
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing => write!(f, "it is not a directory"),
            Self::Shared => write!(f, "it is shared with things that are not the toolchain"),
            Self::Replaced => write!(f, "a sandbox has a directory of its own there"),
            Self::Home(home) => write!(f, "it contains the home directory {}", home.display()),
            Self::Secrets(name) => write!(f, "it contains {name}, where secrets are kept"),
        }
    }
}

/// Directories that hold more than one program, or the system itself.
const SHARED: &[&str] = &[
    "/",
    "/bin",
    "/boot",
    "/etc",
    "/home",
    "/lib",
    "/lib64",
    "/media",
    "/mnt",
    "/nix",
    "/opt",
    "/root",
    "/sbin",
    "/snap",
    "/srv",
    "/usr",
    "/usr/local",
    "/var",
    "/var/lib",
];

/// Where a sandbox mounts something fresh, which would hide a toolchain (or be exposed by it).
const REPLACED: &[&str] =
    &["/dev", "/etc", "/home/user", "/proc", "/run", "/sys", "/tmp", "/var/tmp", "/workspace"];

/// Names that make a directory somebody's home, whatever it is called.
const SECRET_STORES: &[&str] = &[
    ".ssh",
    ".gnupg",
    ".aws",
    ".azure",
    ".kube",
    ".docker",
    ".netrc",
    ".npmrc",
    ".pypirc",
    ".pgpass",
    ".config",
    ".git-credentials",
    ".password-store",
    ".env",
    ".bash_history",
];

/// Says why a toolchain's directory (free of links) may not be shown to sandboxes; `None` if it may.
pub(super) fn refusal(source: &Source, prefix: &Path, homes: &[PathBuf]) -> Option<Refusal> {
    if prefix.starts_with("/usr") {
        return None;
    }
    if !source.at(prefix).is_dir() {
        return Some(Refusal::Missing);
    }
    if let Some(home) = homes.iter().find(|home| home.starts_with(prefix)) {
        return Some(Refusal::Home(home.clone()));
    }
    if SHARED.iter().any(|shared| prefix == Path::new(shared)) {
        return Some(Refusal::Shared);
    }
    if REPLACED.iter().any(|replaced| prefix.starts_with(replaced)) {
        return Some(Refusal::Replaced);
    }
    let at = source.at(prefix);
    SECRET_STORES
        .iter()
        .find(|name| at.join(name).symlink_metadata().is_ok())
        .map(|name| Refusal::Secrets(name))
}

/// Whether a link from `stated` to `prefix` is wanted, and may be made in the root.
pub(super) fn is_alias(stated: &Path, prefix: &Path) -> bool {
    let plain = stated.components().skip(1).all(|part| matches!(part, Component::Normal(_)));
    let hidden = REPLACED.iter().chain(&["/usr"]).any(|place| stated.starts_with(place));
    stated.is_absolute() && plain && !hidden && !stated.starts_with(prefix) && !prefix.starts_with(stated)
}

#[cfg(test)]
mod tests {
    use super::super::source::testing::FakeHost;
    use super::*;

    #[test]
    fn home_directories_and_shared_places_are_refused() {
        let host = FakeHost::new();
        for directory in
            ["/opt/py/.ssh", "/home/ann/tools/x", "/srv/homes/bob", "/opt/good", "/tmp/py", "/var/lib"]
        {
            host.directory(directory);
        }
        let source = host.source(&[]);
        let homes = ["/home/ann".into(), "/srv/homes/bob".into()];
        let verdict = |prefix: &str| refusal(&source, Path::new(prefix), &homes);
        assert_eq!(verdict("/home/ann"), Some(Refusal::Home("/home/ann".into())));
        assert_eq!(verdict("/srv/homes"), Some(Refusal::Home("/srv/homes/bob".into())));
        assert_eq!(verdict("/"), Some(Refusal::Home("/home/ann".into())));
        assert_eq!(verdict("/opt"), Some(Refusal::Shared));
        assert_eq!(verdict("/tmp/py"), Some(Refusal::Replaced));
        assert_eq!(verdict("/opt/py"), Some(Refusal::Secrets(".ssh")));
        assert_eq!(verdict("/opt/none"), Some(Refusal::Missing));
        assert_eq!(verdict("/opt/good"), None);
        assert_eq!(verdict("/home/ann/tools/x"), None);
    }
}
