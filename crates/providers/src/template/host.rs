//! The `host` template: this machine's `/usr` and toolchains over a generated root.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use belljar_jail::plan::User;
use sha2::{Digest, Sha256};

use super::cache::{self, hex};
use super::certificates;
use super::interpreter::{self, Found, Interpreter};
use super::sets;
use super::settings;
use super::skeleton;
use super::source::Source;
use super::tree::{self, Tree};
use super::{Mount, Template, TemplateError};

/// Linked into `/usr` on merged systems, directories of their own on others.
const SYSTEM_DIRECTORIES: &[&str] = &["/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32"];

/// What a change of the host's packages touches. They are not copied, so they enter the digest by their stamps.
const SYSTEM_STATE: &[&str] =
    &["/usr/bin", "/usr/lib", "/usr/local/bin", "/usr/local/lib", "/var/lib/dpkg/status"];

pub(super) const SYSTEM_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Variables through which programs learn where the trusted certificates are.
pub(super) const BUNDLE_VARIABLES: &[&str] = &[
    "SSL_CERT_FILE",
    "REQUESTS_CA_BUNDLE",
    "CURL_CA_BUNDLE",
    "NODE_EXTRA_CA_CERTS",
    "CARGO_HTTP_CAINFO",
    "GIT_SSL_CAINFO",
    "PIP_CERT",
    "npm_config_cafile",
];

/// Answers from the cache, or looks at the host and builds.
pub(super) fn resolve(source: &Source, cache_dir: &Path) -> Result<Template, TemplateError> {
    let failed = |source| TemplateError::PrepareCache { path: cache_dir.to_owned(), source };
    let cache_dir = &std::path::absolute(cache_dir).map_err(failed)?;
    if let Some(template) = cache::load(source, cache_dir) {
        return Ok(template);
    }
    fs::create_dir_all(cache_dir).map_err(failed)?;
    let template = assemble(source, cache_dir)?;
    cache::store(source, cache_dir, &template)?;
    Ok(template)
}

fn assemble(source: &Source, cache_dir: &Path) -> Result<Template, TemplateError> {
    if !source.is_dir(Path::new("/usr")) {
        return Err(TemplateError::MissingDirectory { path: PathBuf::from("/usr") });
    }
    for path in SYSTEM_STATE {
        source.watch(Path::new(path));
    }
    let mut found = interpreter::find(source);
    let mut notes = std::mem::take(&mut found.notes);
    let shell = find_shell(source, &mut notes)?;
    let prefixes = mounted_prefixes(&found.interpreters);
    let settings = settings::read(source, &prefixes);
    notes.extend(settings.notes.iter().cloned());
    let sets = sets::resolve(source, &settings, &found.interpreters, &mut notes);

    let links = system_links(source);
    let mut mounts = system_mounts(source, &links);
    mounts.extend(prefixes.iter().map(|prefix| layer(source, prefix)));
    let covered = settings::covered(source, &prefixes);

    let scratch = tempfile::Builder::new()
        .prefix(".build-")
        .tempdir_in(cache_dir)
        .map_err(|source| TemplateError::PrepareCache { path: cache_dir.to_owned(), source })?;
    let layer = scratch.path().join("layer");
    fs::create_dir(&layer)
        .map_err(|source| TemplateError::CreateDirectory { path: layer.clone(), source })?;
    fs::set_permissions(&layer, fs::Permissions::from_mode(0o755))
        .map_err(|source| TemplateError::SetAttributes { path: layer.clone(), source })?;
    let tree = Tree::create(layer.join("root"))?;
    for (path, target) in &links {
        tree.link(path, target)?;
    }
    skeleton::build(source, &tree, &shell, &settings, &found, &mounts)?;

    let trusted = tree.contains(Path::new(certificates::BUNDLE));
    if !trusted {
        notes.push(
            "no certificate bundle was found on this host, so https fails in sandboxes; install ca-certificates."
                .to_owned(),
        );
    }
    let mut template = Template {
        name: super::HOST.to_owned(),
        digest: String::new(),
        root: PathBuf::new(),
        above: Vec::new(),
        generated: PathBuf::new(),
        env: environment(&found, &shell, trusted),
        mounts,
        covered,
        shell,
        user: User::default(),
        directory: None,
        notes,
        interpreters: found.interpreters,
        package_sources: settings.sources,
        sets,
    };
    template.digest = digest(source, &template, &layer)?;
    let place = cache_dir.join(&template.digest);
    template.root = place.join("root");
    template.generated.clone_from(&template.root);
    publish(&layer, &place)?;
    Ok(template)
}

fn find_shell(source: &Source, notes: &mut Vec<String>) -> Result<PathBuf, TemplateError> {
    if source.is_file(Path::new("/bin/bash")) {
        return Ok(PathBuf::from("/bin/bash"));
    }
    if !source.is_file(Path::new("/bin/sh")) {
        return Err(TemplateError::MissingShell);
    }
    notes.push("bash was not found on this host, so sandboxes use /bin/sh; install bash.".to_owned());
    Ok(PathBuf::from("/bin/sh"))
}

/// The toolchains' directories outside `/usr`; one inside another comes with it.
fn mounted_prefixes(interpreters: &[Interpreter]) -> Vec<&Path> {
    let mut prefixes: Vec<&Path> =
        interpreters.iter().filter(|found| found.needs_mount()).map(|found| found.prefix.as_path()).collect();
    prefixes.sort();
    prefixes.dedup();
    let all = prefixes.clone();
    prefixes.retain(|prefix| !all.iter().any(|other| other != prefix && prefix.starts_with(other)));
    prefixes
}

/// The system directories that are links into `/usr`, with their targets.
fn system_links(source: &Source) -> Vec<(PathBuf, PathBuf)> {
    let merged = |path: &Path| {
        source.at(path).symlink_metadata().ok().filter(fs::Metadata::is_symlink)?;
        let target = source.canonical(path).filter(|target| target.starts_with("/usr"))?;
        Some(target.strip_prefix("/").ok()?.to_owned())
    };
    let paths = SYSTEM_DIRECTORIES.iter().map(PathBuf::from);
    paths.filter_map(|path| merged(&path).map(|target| (path, target))).collect()
}

fn system_mounts(source: &Source, links: &[(PathBuf, PathBuf)]) -> Vec<Mount> {
    let mut mounts = vec![layer(source, Path::new("/usr"))];
    for path in SYSTEM_DIRECTORIES.iter().map(Path::new) {
        if source.is_dir(path) && !links.iter().any(|(link, _)| link == path) {
            mounts.push(layer(source, path));
        }
    }
    let packages = Path::new("/var/lib/dpkg");
    // Watched by its status file: the directory itself changes with every lock.
    if source.at(packages).is_dir() {
        mounts.push(layer(source, packages));
    }
    mounts
}

/// A directory of the host, always under a layer of the sandbox's own: then no lock, lease or watch inside is on the
/// very files that the host uses.
fn layer(source: &Source, path: &Path) -> Mount {
    let real = source.canonical(path).unwrap_or_else(|| path.to_owned());
    Mount { source: source.at(&real), target: path.to_owned(), above: Vec::new(), copy_on_write: true }
}

fn environment(found: &Found, shell: &Path, trusted: bool) -> Vec<(String, String)> {
    let mut path = vec!["/home/user/.local/bin".to_owned(), "/home/user/.cargo/bin".to_owned()];
    for interpreter in found.interpreters.iter().filter(|interpreter| interpreter.needs_mount()) {
        let bin = interpreter.program.parent().map(|bin| bin.display().to_string());
        path.extend(bin.filter(|bin| !path.contains(bin)));
    }
    path.push(SYSTEM_PATH.to_owned());
    let path = path.join(":");
    let shell = shell.display().to_string();
    let mut env: Vec<(&str, &str)> = vec![
        ("PATH", &path),
        ("HOME", "/home/user"),
        ("USER", "user"),
        ("LOGNAME", "user"),
        ("SHELL", &shell),
        ("LANG", "C.UTF-8"),
        ("TERM", "xterm-256color"),
        ("TMPDIR", "/tmp"),
        ("PYTHONUNBUFFERED", "1"),
        ("PIP_DISABLE_PIP_VERSION_CHECK", "1"),
        ("GIT_TERMINAL_PROMPT", "0"),
        ("GIT_CONFIG_SYSTEM", "/etc/gitconfig"),
        ("CARGO_HOME", "/home/user/.cargo"),
        ("NPM_CONFIG_GLOBALCONFIG", "/etc/npmrc"),
        ("npm_config_prefix", "/home/user/.local"),
    ];
    if trusted {
        env.extend(BUNDLE_VARIABLES.iter().map(|name| (*name, certificates::BUNDLE)));
    }
    env.sort_unstable();
    env.into_iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}

fn digest(source: &Source, template: &Template, layer: &Path) -> Result<String, TemplateError> {
    let mut hash = Sha256::new();
    let described =
        (&template.mounts, &template.covered, &template.env, &template.shell, &template.interpreters);
    // Owners inside differ between a root that was built by root and one that was not.
    hash.update(format!("host 1 {} {described:?}", rustix::process::geteuid().is_root()));
    for path in SYSTEM_STATE {
        hash.update(source.stamp(Path::new(path)));
    }
    tree::digest(layer, &mut hash)?;
    Ok(hex(&hash.finalize()))
}

/// Moves the finished layer to its place. Whoever comes second finds the same content there and drops their own.
fn publish(layer: &Path, place: &Path) -> Result<(), TemplateError> {
    let failed = |source| TemplateError::Publish { path: place.to_owned(), source };
    for _ in 0..3 {
        match fs::rename(layer, place) {
            Ok(()) => return Ok(()),
            Err(error) if is_taken(&error) => {}
            Err(error) => return Err(failed(error)),
        }
        if same(layer, place) {
            return Ok(());
        }
        // Damaged, by a crash of the machine or by hand: out of the way with it. The scratch directory takes it along.
        let aside = layer.with_file_name("damaged");
        match fs::rename(place, &aside) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed(error)),
            _ => {}
        }
    }
    Err(failed(io::ErrorKind::AlreadyExists.into()))
}

fn is_taken(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::DirectoryNotEmpty | io::ErrorKind::AlreadyExists)
}

fn same(left: &Path, right: &Path) -> bool {
    let of = |path: &Path| {
        let mut hash = Sha256::new();
        tree::digest(path, &mut hash).ok().map(|()| hash.finalize())
    };
    of(left).is_some_and(|digest| of(right) == Some(digest))
}

#[cfg(test)]
#[path = "host_tests.rs"]
mod tests;
