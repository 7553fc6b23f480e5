//! The floor launcher, which stays small and single-threaded in a process of its own and times itself.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use super::Times;
use crate::error::{BenchError, Result, at};

/// A running floor launcher; it ends when its input does.
pub(super) struct Floor {
    program: PathBuf,
    child: Child,
    requests: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
}

impl Floor {
    /// Starts it, with these mounts.
    pub(super) fn start(program: &Path, mounts: &[String]) -> Result<Self> {
        let mut command = Command::new(program);
        command.arg("serve").args(mounts).stdin(Stdio::piped()).stdout(Stdio::piped());
        let started = command.spawn();
        let mut child =
            started.map_err(|source| BenchError::Start { program: program.display().to_string(), source })?;
        match (child.stdin.take(), child.stdout.take()) {
            (Some(requests), Some(answers)) => Ok(Self {
                program: program.to_owned(),
                child,
                requests: Some(requests),
                answers: BufReader::new(answers),
            }),
            _ => Err(BenchError::Invalid("the floor launcher has no pipes".into())),
        }
    }

    /// From fork to reaped, with nothing around the program.
    pub(super) fn bare(&mut self, argv: &[&str]) -> Result<Times> {
        self.ask("bare", argv)
    }

    /// From the first cgroup made to the program reaped, and to the last cgroup removed.
    pub(super) fn floor(&mut self, argv: &[&str]) -> Result<Times> {
        self.ask("floor", argv)
    }

    /// The same with one of each kind only.
    pub(super) fn least(&mut self, argv: &[&str]) -> Result<Times> {
        self.ask("least", argv)
    }

    fn ask(&mut self, kind: &str, argv: &[&str]) -> Result<Times> {
        let program = self.program.clone();
        if let Some(requests) = &mut self.requests {
            writeln!(requests, "{kind}\t{}", argv.join("\t")).map_err(at(&program))?;
        }
        let mut line = String::new();
        self.answers.read_line(&mut line).map_err(at(&program))?;
        let mut numbers = line.trim().split(' ').map(|number| number.parse().map(Duration::from_nanos));
        match (numbers.next(), numbers.next()) {
            (Some(Ok(reaped)), Some(Ok(gone))) => Ok(Times { reaped, gone }),
            _ => Err(BenchError::Failed {
                program: program.display().to_string(),
                why: "its last words are above".into(),
            }),
        }
    }
}

impl Drop for Floor {
    fn drop(&mut self) {
        self.requests = None;
        let _ = self.child.wait();
    }
}
