//! A sandbox's groups in one hierarchy: where they are, and walking them.

use std::ffi::{CStr, CString};
use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use belljar_core::Wall;
use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal};

use super::detect::{Controller, Hierarchy, Version};

/// Pids signalled with their descriptors open at the same time.
const KILL_BATCH: usize = 64;

/// One value to write into one file.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Setting {
    pub(super) path: PathBuf,
    pub(super) value: String,
    /// Whether the kernel may lack the file.
    pub(super) optional: bool,
}

impl Setting {
    pub(super) fn required(path: PathBuf, value: impl ToString) -> Setting {
        Setting { path, value: value.to_string(), optional: false }
    }

    pub(super) fn optional(path: PathBuf, value: impl ToString) -> Setting {
        Setting { path, value: value.to_string(), optional: true }
    }

    /// Whether the limit that it is part of is to be set.
    pub(super) fn stands(&self) -> bool {
        let file = self.path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        match file.split_once('.') {
            Some(("memory", rest)) if rest.starts_with("kmem.tcp.") => Wall::SocketMemoryLimit.stands(),
            Some(("memory", _)) => Wall::MemoryLimit.stands(),
            Some(("pids", _)) => Wall::PidsLimit.stands(),
            Some(("cpu", _)) => Wall::CpuLimit.stands(),
            _ => true,
        }
    }
}

/// The groups `belljar/<slot>`, `belljar/<slot>/box` and perhaps `belljar/<slot>/guest` of one hierarchy.
#[derive(Debug)]
pub(super) struct Tree {
    hierarchy: Hierarchy,
    slot: String,
}

impl Tree {
    pub(super) fn new(hierarchy: &Hierarchy, slot: u32) -> Tree {
        Tree { hierarchy: hierarchy.clone(), slot: slot.to_string() }
    }

    pub(super) fn hierarchy(&self) -> &Hierarchy {
        &self.hierarchy
    }

    pub(super) fn has(&self, controller: Controller) -> bool {
        self.hierarchy.has(controller)
    }

    pub(super) fn is_v2(&self) -> bool {
        self.hierarchy.version == Version::Two
    }

    /// The parent of all sandboxes.
    pub(super) fn shared(&self) -> PathBuf {
        self.hierarchy.mount.join("belljar")
    }

    pub(super) fn top(&self) -> PathBuf {
        self.shared().join(&self.slot)
    }

    /// Where the guest is. Version one does not mind processes beside groups, and groups are dear: the kernel keeps
    /// books in each memory group about every file system of the machine.
    pub(super) fn guest(&self) -> PathBuf {
        if self.is_v2() { self.top().join("guest") } else { self.top() }
    }

    pub(super) fn executions(&self) -> PathBuf {
        self.top().join("box")
    }

    /// Whether any process is left in the groups.
    pub(super) fn is_populated(&self) -> io::Result<bool> {
        if self.is_v2() {
            // A leaf turned threaded does not list its processes; this file counts them all the same.
            return match fs::read_to_string(self.top().join("cgroup.events")) {
                Ok(events) => Ok(events.lines().any(|line| line == "populated 1")),
                Err(error) if is_gone(&error) => Ok(false),
                Err(error) => Err(error),
            };
        }
        let mut populated = false;
        self.walk(|parent, group| {
            populated = populated || !processes(parent, group)?.is_empty();
            Ok(())
        })?;
        Ok(populated)
    }

    /// Sends SIGKILL to every process in the groups.
    pub(super) fn kill_each(&self) -> io::Result<()> {
        self.walk(|parent, group| {
            for batch in processes(parent, group)?.chunks(KILL_BATCH) {
                let opened: Vec<(Pid, OwnedFd)> = batch
                    .iter()
                    .filter_map(|&pid| {
                        Some((pid, rustix::process::pidfd_open(pid, PidfdFlags::empty()).ok()?))
                    })
                    .collect();
                // A pid may have gone to a stranger before we held its descriptor. One that is still listed had not.
                let still = processes(parent, group)?;
                for (_, process) in opened.iter().filter(|(pid, _)| still.contains(pid)) {
                    match rustix::process::pidfd_send_signal(process, Signal::KILL) {
                        Ok(()) | Err(Errno::SRCH) => {}
                        Err(errno) => return Err(errno.into()),
                    }
                }
            }
            Ok(())
        })
    }

    /// Removes the groups, innermost first, as far as they are empty.
    pub(super) fn remove(&self) -> io::Result<()> {
        self.walk(|parent, group| match rustix::fs::unlinkat(parent, group, AtFlags::REMOVEDIR) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(errno) => Err(errno.into()),
        })
    }

    /// Calls `leave` with each group, given as a name in its parent, after those inside it.
    ///
    /// Leaves are the guest's to make, and may be nested deeper than a path or the descriptor table can be: the walk
    /// holds one descriptor and finds its way back by `..`. Groups that vanish meanwhile are passed over.
    fn walk(&self, mut leave: impl FnMut(BorrowedFd<'_>, &CStr) -> io::Result<()>) -> io::Result<()> {
        let mut here = match open_directory(CWD, self.shared().as_path()) {
            Ok(directory) => directory,
            Err(Errno::NOENT) => return Ok(()),
            Err(errno) => return Err(errno.into()),
        };
        let mut pending = vec![CString::new(self.slot.as_str())?];
        let mut entered: Vec<(CString, Vec<CString>)> = Vec::new();
        loop {
            if let Some(group) = pending.pop() {
                match open_directory(here.as_fd(), group.as_c_str()) {
                    Ok(directory) => {
                        let inside = children(&directory)?;
                        entered.push((group, std::mem::replace(&mut pending, inside)));
                        here = directory;
                    }
                    Err(Errno::NOENT) => {}
                    Err(errno) => return Err(errno.into()),
                }
            } else if let Some((group, siblings)) = entered.pop() {
                here = open_directory(here.as_fd(), c"..")?;
                leave(here.as_fd(), &group)?;
                pending = siblings;
            } else {
                return Ok(());
            }
        }
    }
}

pub(super) fn open_directory(
    at: BorrowedFd<'_>,
    path: impl rustix::path::Arg,
) -> rustix::io::Result<OwnedFd> {
    rustix::fs::openat(
        at,
        path,
        OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC,
        Mode::empty(),
    )
}

/// Whether an error says that the group does not exist, or ceased to while its file was open.
pub(super) fn is_gone(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ENODEV))
}

/// Writes a control file that must exist already.
pub(super) fn write(path: &Path, value: &str) -> io::Result<()> {
    let file = rustix::fs::open(path, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?;
    rustix::io::write(file, value.as_bytes())?;
    Ok(())
}

fn children(directory: &OwnedFd) -> io::Result<Vec<CString>> {
    let mut names = Vec::new();
    for entry in Dir::read_from(directory)? {
        let entry = entry?;
        if entry.file_type() == FileType::Directory && entry.file_name() != c"." && entry.file_name() != c".."
        {
            names.push(entry.file_name().to_owned());
        }
    }
    Ok(names)
}

/// The processes in one group, without those this process cannot name.
fn processes(parent: BorrowedFd<'_>, group: &CStr) -> io::Result<Vec<Pid>> {
    let text = open_directory(parent, group)
        .and_then(|group| {
            rustix::fs::openat(group, c"cgroup.procs", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
        })
        .map_err(io::Error::from)
        .and_then(|file| io::read_to_string(fs::File::from(file)));
    match text {
        // Processes of an outer pid namespace are listed as 0, which `from_raw` refuses.
        Ok(text) => Ok(text.lines().filter_map(|line| Pid::from_raw(line.parse().ok()?)).collect()),
        // A threaded group does not list processes; its parent does it for it.
        Err(error) if is_gone(&error) || error.raw_os_error() == Some(libc::EOPNOTSUPP) => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}
