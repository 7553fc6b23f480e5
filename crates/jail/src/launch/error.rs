//! Why there is no sandbox, and what to do about it.

use std::io;
use std::path::PathBuf;

use belljar_core::{Error, ErrorCode};

use crate::cgroup::CgroupError;
use crate::inside::{Failure, Step};
use crate::mounts::MountError;
use crate::slot::SlotError;

/// Which step of a launch failed.
#[derive(Debug, thiserror::Error)]
pub enum LaunchError {
    /// The plan did not arrive whole.
    #[error("cannot read the plan: {0}")]
    Plan(String),
    /// A file or directory of the sandbox's own could not be made or opened.
    #[error("cannot prepare {path}: {source}")]
    State {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Another process holds this sandbox's lock.
    #[error("sandbox directory {0} is in use")]
    InUse(PathBuf),
    /// A socket or pipe could not be made.
    #[error("cannot make {what}: {source}")]
    Channel {
        /// What.
        what: &'static str,
        /// Why.
        source: io::Error,
    },
    /// No slot.
    #[error(transparent)]
    Slot(#[from] SlotError),
    /// No cgroups.
    #[error(transparent)]
    Cgroup(#[from] CgroupError),
    /// No file system.
    #[error(transparent)]
    Mount(#[from] MountError),
    /// No namespaces.
    #[error("cannot create namespaces: {0}")]
    Namespaces(io::Error),
    /// No id maps.
    #[error("cannot map user ids: {0}")]
    IdMap(io::Error),
    /// The child stopped on its way in.
    #[error("{}: {}", .0.step.what(), .0.error)]
    Inside(Failure),
    /// No monitor.
    #[error("cannot start the monitor: {0}")]
    Monitor(io::Error),
}

impl From<LaunchError> for Error {
    fn from(error: LaunchError) -> Self {
        let message = format!("cannot create the sandbox: {}", with_causes(&error));
        let full = |source: &io::Error| source.kind() == io::ErrorKind::StorageFull;
        let (code, hint) = match &error {
            LaunchError::Plan(_) | LaunchError::InUse(_) | LaunchError::Monitor(_) => {
                (ErrorCode::Internal, None)
            }
            LaunchError::State { source, .. } if full(source) => {
                (ErrorCode::ResourceExhausted, Some("the host's disk is full: free some space"))
            }
            LaunchError::State { .. } | LaunchError::Channel { .. } => (ErrorCode::Internal, None),
            LaunchError::Slot(SlotError::Exhausted) => (
                ErrorCode::ResourceExhausted,
                Some("remove sandboxes that are not needed: `belljar ls`, `belljar rm`"),
            ),
            LaunchError::Mount(MountError::Disk(_)) => (
                ErrorCode::ResourceExhausted,
                Some("ask for less with `--disk`, or free space where Belljar keeps its data"),
            ),
            LaunchError::Inside(Failure { step: Step::Exec | Step::Released, .. }) => {
                (ErrorCode::Internal, None)
            }
            _ => (
                ErrorCode::HostFeature,
                Some("`belljar doctor` shows what this host lacks and how to enable it"),
            ),
        };
        let error = Self::new(code, message);
        match hint {
            Some(hint) => error.hint(hint),
            None => error,
        }
    }
}

/// An error with what lies behind it, where its own words do not tell.
fn with_causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let words = error.to_string();
        if !text.contains(&words) {
            text = format!("{text}: {words}");
        }
        cause = error.source();
    }
    text
}
