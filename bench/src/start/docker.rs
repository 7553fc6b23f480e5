//! A docker daemon of our own: in a network and a mount namespace of its own, so that it neither touches the host's
//! firewall nor leaves mounts behind, with its data in a scratch directory, and ended with us.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use super::image::Image;
use super::process::{Launch, output};
use super::rivals::CGROUP;
use crate::error::{BenchError, Result, at};

const IMAGE: &str = "belljar-bench";
const PATIENCE: Duration = Duration::from_secs(40);
/// gVisor as docker starts it: hybrid cgroups are beyond it, and the daemon's network namespace counts as the host's.
const RUNSC: &str = "#!/bin/sh\nexec runsc --ignore-cgroups --network=none \"$@\"\n";

/// A running daemon with the image in it, and one container to execute in.
pub(super) struct Docker {
    scratch: PathBuf,
    daemon: Child,
    container: String,
}

impl Docker {
    /// Starts a daemon and imports the image.
    pub(super) fn prepare(scratch: &Path, image: &Image) -> Result<Self> {
        let scratch = scratch.join("docker");
        fs::create_dir_all(&scratch).map_err(at(&scratch))?;
        let runsc = scratch.join("runsc");
        fs::write(&runsc, RUNSC).map_err(at(&runsc))?;
        fs::set_permissions(&runsc, fs::Permissions::from_mode(0o755)).map_err(at(&runsc))?;
        let log_path = scratch.join("log");
        let log = fs::File::create(&log_path).map_err(at(&log_path))?;
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "TERM", "unshare", "--net", "--mount", "dockerd", "--bridge", "none"]);
        command.args(["--iptables=false", "--ip6tables=false", "--cgroup-parent", CGROUP]);
        command.arg("--data-root").arg(scratch.join("data")).arg("--exec-root").arg(scratch.join("exec"));
        command.arg("--pidfile").arg(scratch.join("pid")).arg("--host").arg(host(&scratch));
        command.arg("--add-runtime").arg(format!("runsc={}", runsc.display()));
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        let daemon =
            command.spawn().map_err(|source| BenchError::Start { program: "dockerd".into(), source })?;
        let mut docker = Self { scratch, daemon, container: String::new() };
        docker.await_daemon(&log_path)?;
        let mut import = docker.command();
        import.arg("import").arg(&image.tar).arg(IMAGE);
        output(import)?;
        let mut create = docker.command();
        create.args(["run", "--detach", "--network", "none", IMAGE, "/bin/sleep", "3600"]);
        docker.container = output(create)?;
        Ok(docker)
    }

    fn await_daemon(&mut self, log: &Path) -> Result<()> {
        let start = Instant::now();
        loop {
            let mut ask = self.command();
            ask.arg("version");
            if output(ask).is_ok() {
                return Ok(());
            }
            let ended = self.daemon.try_wait().map_err(at(log))?;
            if ended.is_some() || start.elapsed() > PATIENCE {
                let words = fs::read_to_string(log).unwrap_or_default();
                let last = words.lines().last().unwrap_or("it said nothing").to_owned();
                return Err(BenchError::Failed { program: "dockerd".into(), why: last });
            }
            sleep(Duration::from_millis(50));
        }
    }

    fn command(&self) -> Command {
        base(&self.scratch)
    }

    /// `docker run --rm`, perhaps with another runtime.
    pub(super) fn run(&self, runtime: Option<&'static str>) -> Launch {
        let scratch = self.scratch.clone();
        Launch::new(move |program, _| {
            let mut command = base(&scratch);
            command.args(["run", "--rm", "--network", "none"]);
            if let Some(runtime) = runtime {
                command.args(["--runtime", runtime]);
            }
            command.arg(IMAGE).args(program.argv());
            command
        })
    }

    /// `docker exec` in a container that runs already.
    pub(super) fn exec(&self) -> Launch {
        let (scratch, container) = (self.scratch.clone(), self.container.clone());
        Launch::new(move |program, _| {
            let mut command = base(&scratch);
            command.arg("exec").arg(&container).args(program.argv());
            command
        })
    }
}

fn host(scratch: &Path) -> String {
    format!("unix://{}", scratch.join("socket").display())
}

fn base(scratch: &Path) -> Command {
    let mut command = Command::new("docker");
    command.env("DOCKER_CONFIG", scratch.join("config")).arg("--host").arg(host(scratch));
    command
}

impl Drop for Docker {
    fn drop(&mut self) {
        if !self.container.is_empty() {
            let mut remove = self.command();
            remove.args(["rm", "--force", &self.container]);
            let _ = output(remove);
        }
        if let Some(pid) = i32::try_from(self.daemon.id()).ok().and_then(Pid::from_raw) {
            let _ = kill_process(pid, Signal::TERM);
        }
        let start = Instant::now();
        while start.elapsed() < PATIENCE && matches!(self.daemon.try_wait(), Ok(None)) {
            sleep(Duration::from_millis(50));
        }
        let _ = self.daemon.kill();
        let _ = self.daemon.wait();
        end_strays(&self.scratch);
    }
}

/// Kills what a failed container left running; all of it was started with our scratch directory in its arguments.
fn end_strays(scratch: &Path) {
    let mark = scratch.as_os_str().as_encoded_bytes();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        let arguments = fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let ours = arguments.windows(mark.len()).any(|window| window == mark);
        if let Some(pid) = Pid::from_raw(pid).filter(|pid| ours && *pid != rustix::process::getpid()) {
            let _ = kill_process(pid, Signal::KILL);
        }
    }
}
