//! How this sandbox is made, as the launcher said it in the first message.

use std::cell::OnceCell;
use std::collections::BTreeMap;
use std::os::fd::{AsRawFd, OwnedFd};

use belljar_core::wire::{Account, Init, LeafDir, PROTOCOL};
use belljar_core::{Error, ErrorCode, UserName};
use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::end::End;
use crate::leaf::{self, Leaf};
use crate::locks::Locks;
use crate::questions::Questions;

/// What every execution and file operation starts from.
pub(crate) struct Setup {
    user: Account,
    root: Option<Account>,
    _landlock: Vec<OwnedFd>,
    pub(crate) environment: BTreeMap<String, String>,
    pub(crate) shell: String,
    pub(crate) leaves: Vec<(OwnedFd, LeafDir)>,
    /// The doors that every execution goes through.
    pub(crate) joins: Vec<OwnedFd>,
    /// Those of them that file operations go through, too.
    pub(crate) file_joins: Vec<OwnedFd>,
    files: OnceCell<Leaf>,
    pub(crate) limits: Vec<(u32, u64, u64)>,
    pub(crate) questions: Option<Questions>,
    pub(crate) locks: Option<Locks>,
}

impl Setup {
    /// Takes over everything that the message names. Fails closed: a cgroup that cannot be opened ends the guest.
    pub(crate) fn new(init: Init) -> Result<Self, End> {
        if init.protocol != PROTOCOL {
            let message = format!("the guest speaks protocol {PROTOCOL}, not {}", init.protocol);
            return Err(End::Refused(Error::new(ErrorCode::Version, message)));
        }
        let adopt = |what: &'static str| move |errno: Errno| End::Failed { step: what, errno };
        let mut leaves = Vec::new();
        for directory in init.leaf_dirs {
            leaves
                .push((leaf::adopt(directory.fd).map_err(adopt("take over a cgroup directory"))?, directory));
        }
        let (mut joins, mut file_joins) = (Vec::new(), Vec::new());
        for fd in init.join_dirs {
            let directory = leaf::adopt(fd).map_err(adopt("take over a cgroup directory"))?;
            let door = || leaf::door(&directory).map_err(adopt("open a cgroup's tasks"));
            joins.push(door()?);
            if !leaf::only_freezes(&directory) {
                file_joins.push(door()?);
            }
        }
        let (mut user, mut root, mut landlock) = (init.user, init.root, Vec::new());
        for account in std::iter::once(&mut user).chain(&mut root) {
            if let Some(fd) = account.landlock_fd {
                let own = leaf::adopt(fd).map_err(adopt("take over a Landlock ruleset"))?;
                account.landlock_fd = Some(own.as_raw_fd());
                landlock.push(own);
            }
        }
        let limits = with_own_files(init.rlimits);
        let questions = init.questions.map(Questions::adopt).transpose();
        let questions = questions.map_err(adopt("take over the filter's questions"))?;
        let locks = init.locks_fd.map(Locks::adopt).transpose();
        let locks = locks.map_err(adopt("take over the table of locks"))?;
        let (environment, shell) = (init.env, init.shell);
        Ok(Self {
            user,
            root,
            _landlock: landlock,
            environment,
            shell,
            leaves,
            joins,
            file_joins,
            files: OnceCell::new(),
            limits,
            questions,
            locks,
        })
    }

    /// The account of this name.
    pub(crate) fn account(&self, name: UserName) -> Result<&Account, Error> {
        match name {
            UserName::User => Ok(&self.user),
            UserName::Root => self.root.as_ref().ok_or_else(|| {
                Error::new(ErrorCode::Unsupported, "this sandbox has no root user")
                    .hint("the host gives it one user id only; run as `user`")
            }),
        }
    }

    /// Where the processes of file operations live, from the first one on.
    pub(crate) fn files(&self) -> Result<&Leaf, Errno> {
        match self.files.get() {
            Some(files) => Ok(files),
            None => {
                let made = Leaf::for_files(&self.leaves)?;
                Ok(self.files.get_or_init(|| made))
            }
        }
    }

    /// Whether the guest is root of a namespace with more than one id.
    pub(crate) fn changes_ids(&self) -> bool {
        self.root.is_some()
    }

    /// A path as this account means it: relative ones start where it does.
    pub(crate) fn path_of(&self, account: &Account, path: &str) -> String {
        match path {
            "." => account.directory().to_owned(),
            path if path.starts_with('/') => path.to_owned(),
            path => format!("{}/{path}", account.directory()),
        }
    }
}

/// Raises the guest's own limit of open files, since it holds several for each conversation, and leaves children the
/// one it had unless they are given another.
fn with_own_files(mut limits: Vec<(u32, u64, u64)>) -> Vec<(u32, u64, u64)> {
    let own = getrlimit(Resource::Nofile);
    if !limits.iter().any(|(resource, ..)| *resource == libc::RLIMIT_NOFILE) {
        let (soft, hard) = (own.current.unwrap_or(u64::MAX), own.maximum.unwrap_or(u64::MAX));
        limits.push((libc::RLIMIT_NOFILE, soft, hard));
    }
    let _ = setrlimit(Resource::Nofile, Rlimit { current: own.maximum, maximum: own.maximum });
    limits
}
