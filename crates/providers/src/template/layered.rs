//! Templates that are layers: over the host's programs, or over nothing.
//!
//! What is in layers is somebody else's, and none of it is followed here. On top of them lies a layer of ours, whose directories
//! make sure that whatever is mounted goes where it should, and whose files say whom programs believe and who they are.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use belljar_jail::plan::{USER_ID, User};
use belljar_layers::{Catalog, Digest, Ground, Record, Stack};
use rustix::fs::{Mode, OFlags, ResolveFlags};

use super::certificates::BUNDLE;
use super::host::{BUNDLE_VARIABLES, SYSTEM_PATH};
use super::tree::Tree;
use super::{Template, TemplateError};

/// Raised whenever the same template would be dressed in another way.
const FORMAT: u32 = 1;
/// The longest list of accounts that is read.
const LONGEST: u64 = 1 << 20;
/// What is mounted on in every sandbox.
const MOUNTED: [&str; 3] = ["/dev", "/proc", "/run"];
/// Files of the host's own template that a sandbox needs whatever it is made from: how names are looked up, whom to believe, and
/// where packages come from.
const SHARED: [&str; 4] = ["/etc/resolv.conf", BUNDLE, "/etc/pip.conf", "/etc/npmrc"];

/// What a sandbox of this template is made from. `host` is the host's own, `cache_dir` the place for what is generated.
pub(crate) fn resolve(
    catalog: &Catalog,
    (name, record): (&str, &Record),
    host: Template,
    cache_dir: &Path,
) -> Result<Template, TemplateError> {
    let failed = |source| TemplateError::Layers { source };
    let trees: Vec<PathBuf> =
        record.layers.iter().rev().map(|layer| catalog.store().tree(&layer.digest)).collect();
    let open = |tree: &PathBuf| fs::File::open(tree).map(OwnedFd::from);
    let opened = trees.iter().map(open).collect::<io::Result<Vec<_>>>().map_err(failed)?;
    let digest = record.digest();
    let mut template = Template { name: name.to_owned(), digest: digest.hex(), ..host };
    for mount in &mut template.mounts {
        let inner = mount.target.strip_prefix("/").unwrap_or(&mount.target);
        for (tree, opened) in trees.iter().zip(&opened) {
            if has_directory(opened, inner).map_err(failed)? {
                mount.above.push(tree.join(inner));
            }
        }
    }
    let stack = Stack::new(opened);
    let mut trees = trees;
    if record.ground == Ground::Nothing {
        template.mounts.clear();
        template.covered.clear();
        template.interpreters.clear();
        template.notes.clear();
        template.shell = shell(&stack).map_err(failed)?;
        template.env = environment(&template);
    }
    let accounts = Accounts::of(&stack, record.ground).map_err(failed)?;
    template.user = accounts.user(record)?;
    template.directory.clone_from(&record.settings.working_directory);
    for (name, value) in &record.settings.env {
        template.env.retain(|(known, _)| known != name);
        template.env.push((name.clone(), value.clone()));
    }
    let user = record.settings.user.as_deref().and_then(|said| said.split(':').next());
    let user = user.unwrap_or(if template.user.uid == 0 { "root" } else { "user" });
    if user.parse::<u32>().is_err() && !user.is_empty() {
        template.env.retain(|(known, _)| known != "USER");
        template.env.push(("USER".to_owned(), user.to_owned()));
    }
    template.env.sort_unstable();
    if let Some((_, home)) = record.settings.env.get_key_value("HOME") {
        template.user.home.clone_from(home);
    }
    template.generated = dressed(&template, (&digest, record.ground), &accounts, &stack, cache_dir)?;
    trees.insert(0, template.generated.clone());
    if record.ground == Ground::Nothing
        && let Some(lowest) = trees.pop()
    {
        template.root = lowest;
    }
    template.above = trees;
    Ok(template)
}

/// The layers of a template, and what they lie on as far as that is files of ours, as a sandbox would see them.
pub(crate) fn stack(catalog: &Catalog, record: &Record, host: &Template) -> io::Result<Stack> {
    catalog.stack(record, (record.ground == Ground::Host).then_some(host.root.as_path()))
}

/// Whom a template means by `user` or `user:group`.
pub(crate) fn account(stack: &Stack, record: &Record, said: &str) -> Result<(u32, u32), TemplateError> {
    let accounts = Accounts::of(stack, record.ground).map_err(|source| TemplateError::Layers { source })?;
    let mut record = Record { layers: Vec::new(), ..record.clone() };
    record.settings.user = Some(said.to_owned());
    accounts.user(&record).map(|user| (user.uid, user.gid))
}

/// Whether a layer has a directory here, through no link.
fn has_directory(tree: &OwnedFd, inner: &Path) -> io::Result<bool> {
    use rustix::io::Errno;
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
    match rustix::fs::openat2(tree, inner, flags, Mode::empty(), resolve) {
        Ok(_) => Ok(true),
        Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

fn shell(stack: &Stack) -> io::Result<PathBuf> {
    let bash = Path::new("/bin/bash");
    Ok(if stack.open(bash)?.is_some() { bash } else { Path::new("/bin/sh") }.to_owned())
}

/// What every process starts from where there is nothing of the host.
fn environment(host: &Template) -> Vec<(String, String)> {
    let kept = [
        "LANG",
        "TERM",
        "TMPDIR",
        "PIP_DISABLE_PIP_VERSION_CHECK",
        "GIT_TERMINAL_PROMPT",
        "NPM_CONFIG_GLOBALCONFIG",
    ];
    let is_kept = |name: &str| kept.contains(&name) || BUNDLE_VARIABLES.contains(&name);
    let mut env: Vec<_> = host.env.iter().filter(|(name, _)| is_kept(name)).cloned().collect();
    env.push(("PATH".to_owned(), SYSTEM_PATH.to_owned()));
    env.push(("SHELL".to_owned(), host.shell.display().to_string()));
    env
}

/// Who is known inside.
struct Accounts {
    passwd: String,
    group: String,
}

impl Accounts {
    /// As the layers have them; where they have none, only root.
    fn of(stack: &Stack, ground: Ground) -> io::Result<Self> {
        let read = |path: &str| -> io::Result<String> {
            let text = stack.read(Path::new(path), LONGEST)?.unwrap_or_default();
            Ok(String::from_utf8_lossy(&text).into_owned())
        };
        let mut accounts = Self { passwd: read("/etc/passwd")?, group: read("/etc/group")? };
        if ground == Ground::Host {
            return Ok(accounts);
        }
        for (text, root) in
            [(&mut accounts.passwd, "root:x:0:0:root:/root:/bin/sh\n"), (&mut accounts.group, "root:x:0:\n")]
        {
            if !text.is_empty() && !text.ends_with('\n') {
                text.push('\n');
            }
            if entry(text, "root").is_none() {
                text.insert_str(0, root);
            }
        }
        let taken = accounts.passwd.lines().any(|line| line.split(':').nth(2) == Some(&USER_ID.to_string()));
        if !taken && entry(&accounts.passwd, "user").is_none() {
            accounts.passwd.push_str(&format!("user:x:{USER_ID}:{USER_ID}::/home/user:/bin/sh\n"));
            if entry(&accounts.group, "user").is_none() {
                accounts.group.push_str(&format!("user:x:{USER_ID}:\n"));
            }
        }
        Ok(accounts)
    }

    /// Whom a template says that it is used by: on the host's programs the default user, and else root inside, as images expect.
    fn user(&self, record: &Record) -> Result<User, TemplateError> {
        let said = record.settings.user.as_deref().filter(|said| !said.is_empty());
        let said = match (said, record.ground) {
            (None | Some("user"), Ground::Host) => return Ok(User::default()),
            (Some(said), _) => said,
            (None, Ground::Nothing) => "root",
        };
        let unknown = || TemplateError::UnknownUser(said.escape_debug().to_string());
        let (name, group) = said.split_once(':').map_or((said, None), |(name, group)| (name, Some(group)));
        let number = |text: &str| text.parse::<u32>().ok().filter(|id| *id < 65_536);
        let found = entry(&self.passwd, name).or_else(|| {
            self.passwd
                .lines()
                .map(fields)
                .find(|fields| number(name).is_some() && fields.get(2) == Some(&name))
        });
        let uid = found.as_ref().map_or(Some(name), |found| found.get(2).copied()).and_then(number);
        let uid = if name == "root" { 0 } else { uid.ok_or_else(unknown)? };
        let own = found.as_ref().and_then(|found| found.get(3).copied()).and_then(number).unwrap_or(0);
        let gid = match group {
            None => own,
            Some(group) => match entry(&self.group, group) {
                Some(found) => found.get(2).copied().and_then(number).ok_or_else(unknown)?,
                None => number(group).ok_or_else(unknown)?,
            },
        };
        let home =
            found.as_ref().and_then(|found| found.get(5).copied()).filter(|home| home.starts_with('/'));
        let home = home.unwrap_or(if uid == 0 { "/root" } else { "/" }).to_owned();
        Ok(User { uid, gid, home })
    }
}

fn fields(line: &str) -> Vec<&str> {
    line.split(':').collect()
}

/// The fields of the account or group of this name.
fn entry<'a>(text: &'a str, name: &str) -> Option<Vec<&'a str>> {
    text.lines().map(fields).find(|fields| fields.first() == Some(&name))
}

/// The layer of ours that lies over all others, made if it is not there yet.
fn dressed(
    template: &Template,
    (digest, ground): (&Digest, Ground),
    accounts: &Accounts,
    stack: &Stack,
    cache_dir: &Path,
) -> Result<PathBuf, TemplateError> {
    let host = template.root.parent().and_then(Path::file_name).unwrap_or_default();
    let depends = format!("{FORMAT} {digest} {} {}", host.display(), rustix::process::geteuid().as_raw());
    let place = cache_dir.join("dressed").join(format!(
        "{}-{}",
        digest.hex(),
        &Digest::of(depends.as_bytes()).hex()[..16]
    ));
    let root = place.join("root");
    if root.is_dir() {
        return Ok(root);
    }
    let failed = |source| TemplateError::PrepareCache { path: place.clone(), source };
    let above = place.parent().unwrap_or(cache_dir);
    fs::create_dir_all(above).map_err(failed)?;
    let scratch = tempfile::Builder::new().prefix(".build-").tempdir_in(above).map_err(failed)?;
    let layer = scratch.path().join("layer");
    fs::create_dir(&layer).map_err(failed)?;
    let tree = Tree::create(layer.join("root"))?;
    for path in MOUNTED {
        tree.directory(Path::new(path))?;
    }
    tree.directory_with_mode(Path::new("/tmp"), 0o1777)?;
    tree.directory(Path::new("/etc"))?;
    for mount in &template.mounts {
        tree.directory(&mount.target)?;
    }
    if ground == Ground::Nothing {
        for path in SHARED {
            if let Some(content) = shared(&template.root, path) {
                tree.file(Path::new(path), &content, 0o644)?;
            }
        }
        tree.file(Path::new("/etc/passwd"), accounts.passwd.as_bytes(), 0o644)?;
        tree.file(Path::new("/etc/group"), accounts.group.as_bytes(), 0o644)?;
        let home = Path::new("/home/user");
        if entry(&accounts.passwd, "user").is_some() && !stack.is_dir(home).map_err(failed)? {
            tree.directory(home)?;
            if rustix::process::geteuid().is_root() {
                tree.give(home, USER_ID)?;
            }
        }
    }
    match fs::rename(&layer, &place) {
        // Somebody else has made the same.
        Err(_) if root.is_dir() => Ok(root),
        made => made.map(|()| root).map_err(failed),
    }
}

/// A file that was generated for the host's own template.
fn shared(host: &Path, path: &str) -> Option<Vec<u8>> {
    let file = host.join(path.trim_start_matches('/'));
    file.symlink_metadata().ok().filter(|data| data.is_file() && data.size() < 8 << 20)?;
    fs::read(file).ok()
}
