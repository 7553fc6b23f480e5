//! What people would use instead: which of them can be started here, and how.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

use super::Program;
use super::docker::Docker;
use super::image::Image;
use super::podman::Podman;
use super::process::{Launch, output};
use crate::error::{BenchError, Result, at};

/// The cgroup below which rivals put theirs; it is removed afterwards.
pub(super) const CGROUP: &str = "/belljar-bench";

/// The rivals that could be prepared, and why the others could not.
pub(super) struct Rivals {
    bundles: Result<Bundles>,
    podman: Result<Podman>,
    docker: Result<Docker>,
}

/// Prepares all of them below `scratch`.
pub(super) fn prepare(scratch: &Path, wanted: impl Fn(&str) -> bool) -> Rivals {
    let scratch = scratch.join("rivals");
    let asked = |keys: &[&str]| match keys.iter().any(|key| wanted(key)) {
        true => Ok(()),
        false => Err(BenchError::Invalid("nobody asked for it".into())),
    };
    let docker = &["docker_run", "docker_exec", "docker_runsc"];
    let image = asked(&["runc", "podman"])
        .or_else(|_| asked(docker))
        .and_then(|()| fs::create_dir_all(&scratch).map_err(at(&scratch)))
        .and_then(|()| Image::make(&scratch));
    let image = image.as_ref().map_err(ToString::to_string);
    let with_image = || image.clone().map_err(BenchError::Invalid);
    Rivals {
        bundles: asked(&["runc"])
            .and_then(|()| installed("runc"))
            .and_then(|()| Bundles::prepare(&scratch, with_image()?)),
        podman: asked(&["podman"])
            .and_then(|()| installed("podman"))
            .and_then(|()| Podman::prepare(&scratch, with_image()?)),
        docker: asked(docker)
            .and_then(|()| installed("dockerd"))
            .and_then(|()| installed("docker"))
            .and_then(|()| Docker::prepare(&scratch, with_image()?)),
    }
}

impl Rivals {
    /// How to start a program with this rival, or why not.
    pub(super) fn launch(&self, rival: &str, program: Program) -> std::result::Result<Launch, String> {
        if !Path::new(program.argv()[0]).exists() {
            return Err(format!("{} is not on this host", program.argv()[0]));
        }
        let docker = || self.docker.as_ref().map_err(ToString::to_string);
        match rival {
            "bwrap" => installed("bwrap").map(|()| bwrap()).map_err(|error| error.to_string()),
            "runc" => self.bundles.as_ref().map(Bundles::run).map_err(ToString::to_string),
            "podman" => self.podman.as_ref().map(Podman::run).map_err(ToString::to_string),
            "docker_run" => Ok(docker()?.run(None)),
            "docker_exec" => Ok(docker()?.exec()),
            "docker_runsc" => {
                installed("runsc").map_err(|error| error.to_string())?;
                Ok(docker()?.run(Some("runsc")))
            }
            other => Err(format!("nobody knows how to start {other}")),
        }
    }
}

impl Drop for Rivals {
    fn drop(&mut self) {
        // Those who live in the cgroup first.
        self.docker = Err(BenchError::Invalid("ended".into()));
        self.podman = Err(BenchError::Invalid("ended".into()));
        let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
        for line in mounts.lines() {
            if let [_, mount, "cgroup" | "cgroup2", ..] = line.split(' ').collect::<Vec<_>>()[..] {
                remove_groups(&PathBuf::from(format!("{mount}{CGROUP}")));
            }
        }
    }
}

/// Removes empty groups from the bottom up; one that still holds a process stays, and the kernel says so to nobody.
fn remove_groups(path: &Path) {
    for entry in fs::read_dir(path).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            remove_groups(&entry.path());
        }
    }
    let _ = fs::remove_dir(path);
}

fn installed(program: &str) -> Result<()> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path).any(|folder| folder.join(program).exists());
    let hint = "`scripts/install-tools bench` installs what apt has";
    if found { Ok(()) } else { Err(BenchError::Invalid(format!("{program} is not installed ({hint})"))) }
}

/// bubblewrap with the host's programs, and everything unshared that it can unshare.
fn bwrap() -> Launch {
    Launch::new(|program, _| {
        let mut command = Command::new("bwrap");
        command.args(["--unshare-all", "--die-with-parent", "--ro-bind", "/usr", "/usr"]);
        for link in ["bin", "lib", "lib64"] {
            match fs::read_link(Path::new("/").join(link)) {
                Ok(target) => command.arg("--symlink").arg(target).arg(format!("/{link}")),
                Err(_) => command.args(["--ro-bind-try", &format!("/{link}"), &format!("/{link}")]),
            };
        }
        command.args(["--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp"]).args(program.argv());
        command
    })
}

/// A bundle for runc per program.
struct Bundles {
    folder: PathBuf,
}

impl Bundles {
    fn prepare(scratch: &Path, image: &Image) -> Result<Self> {
        let folder = scratch.join("runc");
        for program in Program::ALL {
            let bundle = folder.join(program.key());
            fs::create_dir_all(&bundle).map_err(at(&bundle))?;
            let mut specify = Command::new("runc");
            specify.arg("spec").arg("--bundle").arg(&bundle);
            output(specify)?;
            let path = bundle.join("config.json");
            let text = fs::read(&path).map_err(at(&path))?;
            let mut config: Value = serde_json::from_slice(&text).map_err(|error| at(&path)(error.into()))?;
            configure(&mut config, program, &image.root);
            fs::write(&path, config.to_string()).map_err(at(&path))?;
        }
        Ok(Self { folder })
    }

    fn run(&self) -> Launch {
        let folder = self.folder.clone();
        Launch::new(move |program, number| {
            let mut command = Command::new("runc");
            command
                .arg("--root")
                .arg(folder.join("state"))
                .arg("run")
                .arg("--bundle")
                .arg(folder.join(program.key()));
            command.arg(format!("belljar-bench-{}-{}-{number}", std::process::id(), program.key()));
            command
        })
    }
}

/// Changes what `runc spec` wrote: our program, our root, and no rlimit, which needs a capability not all hosts give.
fn configure(config: &mut Value, program: Program, root: &Path) {
    config["process"]["terminal"] = json!(false);
    config["process"]["args"] = json!(program.argv());
    config["process"]["rlimits"] = json!([]);
    config["root"] = json!({ "path": root, "readonly": true });
    config["linux"]["cgroupsPath"] = json!(format!("{CGROUP}/runc-{}", program.key()));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bundle_runs_our_program_in_our_root() {
        let mut config =
            json!({ "process": { "terminal": true, "rlimits": [{ "type": "x" }] }, "linux": {} });
        configure(&mut config, Program::Python, Path::new("/some/root"));
        assert_eq!(config["process"]["args"][2], "print(1)");
        assert_eq!(config["process"]["terminal"], false);
        assert_eq!(config["process"]["rlimits"], json!([]));
        assert_eq!(config["root"]["path"], "/some/root");
    }

    #[test]
    fn what_is_missing_is_said() {
        let error = installed("no-such-program-as-this").unwrap_err().to_string();
        assert!(error.contains("no-such-program-as-this is not installed"), "{error}");
        assert!(installed("sh").is_ok());
    }
}
