//! The generated root: the directories every program expects, and an `/etc` written or copied by an allow-list.

use std::fs;
use std::path::{Component, Path, PathBuf};

use super::accounts::{self, USER_ID};
use super::certificates;
use super::interpreter::Found;
use super::settings::Settings;
use super::source::Source;
use super::tree::Tree;
use super::{Mount, TemplateError};

/// Files of `/etc` copied as they are, links followed.
const FILES: &[&str] = &[
    "adduser.conf",
    "apt/trusted.gpg",
    "ca-certificates.conf",
    "debconf.conf",
    "debian_version",
    "deluser.conf",
    "dpkg/dpkg.cfg",
    "inputrc",
    "ld.so.cache",
    "ld.so.conf",
    "localtime",
    "login.defs",
    "magic",
    "magic.mime",
    "maven/m2.conf",
    "mime.types",
    "os-release",
    "protocols",
    "services",
    "ssl/certs/java/cacerts",
    "ssl/openssl.cnf",
    "timezone",
];

/// Directories of `/etc` copied with what every account of the host may read.
const TREES: &[&str] = &[
    "alternatives",
    "apt/keyrings",
    "apt/trusted.gpg.d",
    "ca-certificates",
    "dpkg/origins",
    "fonts",
    "ld.so.conf.d",
    "maven/logging",
    "perl",
    "terminfo",
    "R",
];

/// The same, for directories that carry a version in their name.
const TREE_PREFIXES: &[&str] = &["java-", "python3", "ImageMagick-"];

/// Names of files that stay outside whoever may read them. R's `.site` files set variables, keys among them.
const PRIVATE_NAMES: &[&str] =
    &["password", "passwd", "secret", "credential", "private", ".key", "auth", ".site"];

/// Where a link may lead: to what every sandbox has.
const LINK_PLACES: &[&str] =
    &["/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/etc/alternatives"];

const DIRECTORIES: &[&str] = &[
    "/dev",
    "/etc/apt/preferences.d",
    "/etc/apt/sources.list.d",
    "/home/user/.local/bin",
    "/mnt",
    "/opt",
    "/proc",
    "/root",
    "/run",
    "/srv",
    "/usr",
    "/var/cache/apt/archives/partial",
    "/var/cache/debconf",
    "/var/lib/apt/lists/partial",
    "/var/log",
];

const BASHRC: &str = "case $- in *i*) ;; *) return ;; esac\nalias ls='ls --color=auto'\n";

const GENERATED: &[(&str, &str)] = &[
    ("/etc/hosts", "127.0.0.1 localhost\n::1 localhost ip6-localhost ip6-loopback\n"),
    ("/etc/host.conf", "multi on\n"),
    // Any address that is not the sandbox's own: whichever is asked, the door answers, and where there is none, nobody.
    ("/etc/resolv.conf", "nameserver 10.255.255.53\noptions timeout:3 attempts:2\n"),
    (
        "/etc/nsswitch.conf",
        "passwd: files\ngroup: files\nshadow: files\nhosts: files dns\nnetworks: files\nprotocols: files\n\
         services: files\nethers: files\nrpc: files\n",
    ),
    ("/etc/shells", "/bin/sh\n/bin/bash\n"),
    (
        "/etc/profile",
        "if [ -n \"$BASH_VERSION\" ] && [ -r /etc/bash.bashrc ]; then\n    . /etc/bash.bashrc\nfi\n",
    ),
    (
        "/etc/bash.bashrc",
        "case $- in *i*) ;; *) return ;; esac\nshopt -s checkwinsize\nPS1='\\u@\\h:\\w\\$ '\n",
    ),
    ("/etc/skel/.bashrc", BASHRC),
    ("/home/user/.bashrc", BASHRC),
    ("/home/user/.profile", "[ -n \"$BASH_VERSION\" ] && [ -r ~/.bashrc ] && . ~/.bashrc\n"),
];

const COPY_LIMIT: u64 = 8 << 20;
const DEPTH_LIMIT: usize = 8;
const ENTRY_LIMIT: usize = 4096;

/// Fills `tree`. The targets of `mounts` are made too, except those inside another mount.
pub(super) fn build(
    source: &Source,
    tree: &Tree,
    shell: &Path,
    settings: &Settings,
    found: &Found,
    mounts: &[Mount],
) -> Result<(), TemplateError> {
    for directory in DIRECTORIES {
        tree.directory(Path::new(directory))?;
    }
    tree.directory_with_mode(Path::new("/tmp"), 0o1777)?;
    tree.directory_with_mode(Path::new("/var/tmp"), 0o1777)?;
    tree.link(Path::new("/var/run"), Path::new("/run"))?;
    tree.link(Path::new("/var/lock"), Path::new("/run/lock"))?;
    tree.link(Path::new("/etc/mtab"), Path::new("/proc/self/mounts"))?;
    write_generated(source, tree, shell, settings)?;
    write_certificates(source, tree, settings)?;
    copy_etc(source, tree)?;

    let inside =
        |path: &Path| mounts.iter().any(|mount| path != mount.target && path.starts_with(&mount.target));
    for mount in mounts.iter().filter(|mount| !inside(&mount.target)) {
        tree.directory(&mount.target)?;
    }
    for (alias, prefix) in &found.aliases {
        if !tree.contains(alias) && !inside(alias) {
            tree.link(alias, prefix)?;
        }
    }
    if rustix::process::geteuid().is_root() {
        tree.give(Path::new("/home/user"), USER_ID)?;
    }
    Ok(())
}

fn write_generated(
    source: &Source,
    tree: &Tree,
    shell: &Path,
    settings: &Settings,
) -> Result<(), TemplateError> {
    let accounts = accounts::generate(source, shell);
    tree.file(Path::new("/etc/passwd"), accounts.passwd.as_bytes(), 0o644)?;
    tree.file(Path::new("/etc/group"), accounts.group.as_bytes(), 0o644)?;
    tree.file(Path::new("/etc/shadow"), accounts.shadow.as_bytes(), 0o600)?;
    for (path, content) in GENERATED {
        tree.file(Path::new(path), content.as_bytes(), 0o644)?;
    }
    for (path, content) in &settings.files {
        tree.file(path, content.as_bytes(), 0o644)?;
    }
    Ok(())
}

fn write_certificates(source: &Source, tree: &Tree, settings: &Settings) -> Result<(), TemplateError> {
    let Some(bundle) = certificates::bundle(source, &settings.bundles) else { return Ok(()) };
    tree.file(Path::new(certificates::BUNDLE), bundle.as_bytes(), 0o644)?;
    tree.link(Path::new("/etc/ssl/cert.pem"), Path::new("certs/ca-certificates.crt"))?;
    let place = Path::new("/etc/ssl/certs");
    let single = certificates::directory(source, place);
    for (name, content) in &single.files {
        tree.file(&place.join(name), content.as_bytes(), 0o644)?;
    }
    for (name, target) in &single.links {
        tree.link(&place.join(name), Path::new(target))?;
    }
    // Programs of other distributions look here.
    if source.is_dir(Path::new("/etc/pki/tls")) {
        for name in ["tls/certs/ca-bundle.crt", "tls/cert.pem", "ca-trust/extracted/pem/tls-ca-bundle.pem"] {
            tree.link(&Path::new("/etc/pki").join(name), Path::new(certificates::BUNDLE))?;
        }
    }
    Ok(())
}

fn copy_etc(source: &Source, tree: &Tree) -> Result<(), TemplateError> {
    let etc = Path::new("/etc");
    for name in FILES {
        let path = etc.join(name);
        source.watch(&path);
        copy_file(source, tree, &path)?;
    }
    let versioned = source.names(etc).into_iter().filter(|name| {
        TREE_PREFIXES.iter().any(|prefix| name.starts_with(prefix)) && source.at(&etc.join(name)).is_dir()
    });
    for name in TREES.iter().map(|name| (*name).to_owned()).chain(versioned) {
        copy_tree(source, tree, &etc.join(name))?;
    }
    Ok(())
}

fn copy_file(source: &Source, tree: &Tree, path: &Path) -> Result<(), TemplateError> {
    if tree.contains(path) {
        return Ok(());
    }
    let Some((content, executable)) = source.read_public(path, COPY_LIMIT) else { return Ok(()) };
    if holds_private_key(&content) {
        return Ok(());
    }
    tree.file(path, &content, if executable { 0o755 } else { 0o644 })
}

fn copy_tree(source: &Source, tree: &Tree, top: &Path) -> Result<(), TemplateError> {
    if !source.at(top).symlink_metadata().is_ok_and(|data| data.is_dir()) {
        source.watch(top);
        return Ok(());
    }
    let mut left = ENTRY_LIMIT;
    let mut directories = vec![(top.to_owned(), 0)];
    while let Some((directory, depth)) = directories.pop() {
        tree.directory(&directory)?;
        for name in source.names(&directory) {
            if left == 0 {
                return Ok(());
            }
            left -= 1;
            let lower = name.to_ascii_lowercase();
            let private = PRIVATE_NAMES.iter().any(|part| lower.contains(part));
            let path = directory.join(&name);
            let Ok(data) = source.at(&path).symlink_metadata() else { continue };
            if data.is_symlink() {
                copy_link(source, tree, top, &path)?;
            } else if private {
                continue;
            } else if data.is_dir() && depth < DEPTH_LIMIT {
                directories.push((path, depth + 1));
            } else if data.is_file() {
                copy_file(source, tree, &path)?;
            }
        }
    }
    Ok(())
}

/// Copies a link that stays within `top` or leads to the system; any other is left out.
fn copy_link(source: &Source, tree: &Tree, top: &Path, path: &Path) -> Result<(), TemplateError> {
    let (Ok(target), Some(directory)) = (fs::read_link(source.at(path)), path.parent()) else {
        return Ok(());
    };
    let end = normalize(&directory.join(&target));
    if tree.contains(path)
        || !(end.starts_with(top) || LINK_PLACES.iter().any(|place| end.starts_with(place)))
    {
        return Ok(());
    }
    tree.link(path, &target)
}

/// Resolves `..` by the text alone, as nothing inside may depend on the host's links.
fn normalize(path: &Path) -> PathBuf {
    let mut result = PathBuf::from("/");
    for part in path.components() {
        match part {
            Component::ParentDir => {
                result.pop();
            }
            Component::Normal(name) => result.push(name),
            _ => {}
        }
    }
    result
}

/// PEM and armoured OpenPGP keys say so; a binary OpenPGP secret key starts with its packet's tag.
fn holds_private_key(content: &[u8]) -> bool {
    let marked = content.windows(11).any(|window| window == b"PRIVATE KEY");
    marked || matches!(content.first(), Some(0x94..=0x97 | 0xc5))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_are_followed_by_text() {
        assert_eq!(normalize(Path::new("/etc/a/../../usr/./lib/x")), Path::new("/usr/lib/x"));
        assert_eq!(normalize(Path::new("/../../x")), Path::new("/x"));
    }

    #[test]
    fn private_keys_are_noticed() {
        assert!(holds_private_key(b"x\n-----BEGIN RSA PRIVATE KEY-----\n"));
        assert!(holds_private_key(b"-----BEGIN PGP PRIVATE KEY BLOCK-----\n"));
        assert!(holds_private_key(&[0x95, 0x01]));
        assert!(!holds_private_key(b"-----BEGIN PGP PUBLIC KEY BLOCK-----\n"));
        assert!(!holds_private_key(b""));
    }
}
