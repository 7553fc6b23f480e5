//! podman with a storage of its own, which is removed afterwards.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::image::Image;
use super::process::{Launch, output};
use super::rivals::CGROUP;
use crate::error::Result;

const IMAGE: &str = "belljar-bench";

/// A storage with the image in it.
pub(super) struct Podman {
    scratch: PathBuf,
}

impl Podman {
    /// Imports the image.
    pub(super) fn prepare(scratch: &Path, image: &Image) -> Result<Self> {
        let podman = Self { scratch: scratch.join("podman") };
        let mut import = podman.command();
        import.arg("import").arg(&image.tar).arg(IMAGE);
        output(import)?;
        Ok(podman)
    }

    fn command(&self) -> Command {
        base(&self.scratch)
    }

    /// `podman run --rm`, with the options that hosts without CAP_SYS_RESOURCE need.
    pub(super) fn run(&self) -> Launch {
        let scratch = self.scratch.clone();
        Launch::new(move |program, _| {
            let mut command = base(&scratch);
            command.args(["run", "--rm", "--network", "none", "--cgroup-parent", CGROUP]);
            command.args(["--ulimit", "nofile=1024:1024", "--ulimit", "nproc=1024:1024", IMAGE]);
            command.args(program.argv());
            command
        })
    }
}

fn base(scratch: &Path) -> Command {
    let mut command = Command::new("podman");
    command.arg("--root").arg(scratch.join("storage")).arg("--runroot").arg(scratch.join("run"));
    command.args(["--runtime", "runc", "--cgroup-manager", "cgroupfs", "--events-backend", "none"]);
    command
}

impl Drop for Podman {
    fn drop(&mut self) {
        // It mounts its storage on itself, which would keep the scratch directory from being removed.
        let mut unmount = Command::new("umount");
        unmount.arg(self.scratch.join("storage/overlay"));
        let _ = output(unmount);
    }
}
