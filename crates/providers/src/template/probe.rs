//! Asks a program of the host about itself: bounded in time and output, with an environment of our choosing.

use std::io::{self, Read};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use super::source::{Source, TOOLCHAIN_VARIABLES};

const TIME_LIMIT: Duration = Duration::from_secs(10);
const OUTPUT_LIMIT: u64 = 16 << 10;

#[derive(Debug, thiserror::Error)]
pub(super) enum ProbeError {
    #[error("could not be started ({0})")]
    Start(io::Error),
    #[error("did not answer within {} seconds", TIME_LIMIT.as_secs())]
    TimedOut,
    #[error("could not be waited for ({0})")]
    Wait(io::Error),
    #[error("failed ({0})")]
    Failed(ExitStatus),
    #[error("gave an answer that could not be understood")]
    Answer,
}

/// Runs `program` (a path of the host) and returns the lines it printed.
pub(super) fn ask(source: &Source, program: &Path, arguments: &[&str]) -> Result<Vec<String>, ProbeError> {
    ask_within(source, program, arguments, &[], TIME_LIMIT)
}

/// Like [`ask`], with variables beside those of the toolchain, or in their place.
pub(super) fn ask_with(
    source: &Source,
    program: &Path,
    arguments: &[&str],
    variables: &[(&str, &str)],
) -> Result<Vec<String>, ProbeError> {
    ask_within(source, program, arguments, variables, TIME_LIMIT)
}

fn ask_within(
    source: &Source,
    program: &Path,
    arguments: &[&str],
    variables: &[(&str, &str)],
    limit: Duration,
) -> Result<Vec<String>, ProbeError> {
    let deadline = Instant::now() + limit;
    let mut command = Command::new(source.at(program));
    command
        .args(arguments)
        .env_clear()
        .envs(TOOLCHAIN_VARIABLES.iter().filter_map(|name| Some((name, source.var(name)?))))
        // A question must not turn into a download.
        .env("RUSTUP_AUTO_INSTALL", "0")
        .env("LANG", "C.UTF-8")
        .envs(variables.iter().copied())
        // Not the caller's directory: version files of the project there would decide for every sandbox.
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .process_group(0);
    let mut child = start(&mut command, deadline)?;
    let answer = read_answer(&mut child, deadline);
    if answer.is_none() {
        end(&mut child);
        return Err(ProbeError::TimedOut);
    }
    let status = loop {
        match child.try_wait().map_err(ProbeError::Wait)? {
            Some(status) => break status,
            None if Instant::now() >= deadline => {
                end(&mut child);
                return Err(ProbeError::TimedOut);
            }
            None => thread::sleep(Duration::from_millis(1)),
        }
    };
    if !status.success() {
        return Err(ProbeError::Failed(status));
    }
    let text = answer.and_then(|bytes| String::from_utf8(bytes).ok()).ok_or(ProbeError::Answer)?;
    Ok(text.lines().map(|line| line.trim().to_owned()).collect())
}

/// A shim that its version manager is rewriting right now is "busy" for a moment.
fn start(command: &mut Command, deadline: Instant) -> Result<Child, ProbeError> {
    loop {
        match command.spawn() {
            Err(error) if error.kind() == io::ErrorKind::ExecutableFileBusy && Instant::now() < deadline => {
                thread::sleep(Duration::from_millis(5));
            }
            outcome => return outcome.map_err(ProbeError::Start),
        }
    }
}

fn read_answer(child: &mut Child, deadline: Instant) -> Option<Vec<u8>> {
    let output = child.stdout.take()?;
    let (sender, receiver) = mpsc::sync_channel(1);
    thread::spawn(move || {
        let mut bytes = Vec::new();
        let _ = output.take(OUTPUT_LIMIT).read_to_end(&mut bytes);
        let _ = sender.send(bytes);
    });
    receiver.recv_timeout(deadline.saturating_duration_since(Instant::now())).ok()
}

/// Shims are shell scripts with children of their own, hence the group.
fn end(child: &mut Child) {
    if let Some(group) = i32::try_from(child.id()).ok().and_then(rustix::process::Pid::from_raw) {
        let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
    }
    let _ = child.wait();
}

#[cfg(test)]
mod tests {
    use super::super::source::testing::FakeHost;
    use super::*;

    #[test]
    fn environment_is_small_and_the_directory_is_the_root() {
        let host = FakeHost::new();
        host.write("/opt/shims/tell", "#!/bin/sh\npwd\nexport -p\n", 0o755);
        let source = host.source(&[("PYENV_VERSION", "3.11"), ("PIP_INDEX_URL", "https://u:hunter2@h/")]);
        let lines = ask(&source, Path::new("/opt/shims/tell"), &[]).unwrap();
        assert_eq!(lines[0], "/");
        let all = lines.join("\n");
        assert!(all.contains("PYENV_VERSION"));
        assert!(!all.contains("hunter2") && !all.contains("CARGO_MANIFEST_DIR"), "{all}");
    }

    #[test]
    fn a_program_that_hangs_is_ended_with_its_children() {
        let host = FakeHost::new();
        host.write("/opt/shims/hang", "#!/bin/sh\n/bin/sleep 600 &\nwait\n", 0o755);
        let answer =
            ask_within(&host.source(&[]), Path::new("/opt/shims/hang"), &[], &[], Duration::from_millis(50));
        assert!(matches!(answer, Err(ProbeError::TimedOut)), "{answer:?}");
    }

    #[test]
    fn failure_is_told_apart() {
        let host = FakeHost::new();
        host.write("/opt/shims/fail", "#!/bin/sh\nexit 3\n", 0o755);
        let source = host.source(&[]);
        assert!(matches!(ask(&source, Path::new("/opt/shims/fail"), &[]), Err(ProbeError::Failed(_))));
        assert!(matches!(ask(&source, Path::new("/opt/shims/none"), &[]), Err(ProbeError::Start(_))));
    }
}
