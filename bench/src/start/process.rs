//! Contestants that are commands, timed from their start to their end.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use super::{Program, Times};
use crate::error::{BenchError, Result};

/// Makes the command that starts a program for the nth time.
type Compose = Box<dyn Fn(Program, u64) -> Command + Send>;

/// One way to start programs by a command.
pub(super) struct Launch {
    compose: Compose,
    count: u64,
}

impl Launch {
    /// The commands that `compose` makes.
    pub(super) fn new(compose: impl Fn(Program, u64) -> Command + Send + 'static) -> Self {
        Self { compose: Box::new(compose), count: 0 }
    }

    /// `belljar run`, as one types it.
    pub(super) fn belljar_run(belljar: &Path, home: &Path) -> Self {
        let (belljar, home) = (belljar.to_owned(), home.to_owned());
        Self::new(move |program, _| {
            let mut command = Command::new(&belljar);
            command.env("BELLJAR_HOME", &home).args(["run", "--"]).args(program.argv());
            command
        })
    }

    /// Starts it and waits for its end, which must be a success.
    pub(super) fn once(&mut self, program: Program) -> Result<Times> {
        self.count += 1;
        let mut command = (self.compose)(program, self.count);
        command.stdin(Stdio::null()).stdout(Stdio::null());
        if self.count == 1 {
            // The first is a trial: its words say what is wrong.
            return trial(command).map(Times::of_command);
        }
        command.stderr(Stdio::null());
        let name = command.get_program().to_string_lossy().into_owned();
        let start = Instant::now();
        let status = command
            .spawn()
            .and_then(|mut child| child.wait())
            .map_err(|source| BenchError::Start { program: name.clone(), source })?;
        let time = start.elapsed();
        if status.success() {
            Ok(Times::of_command(time))
        } else {
            Err(BenchError::Failed { program: name, why: status.to_string() })
        }
    }
}

fn trial(command: Command) -> Result<Duration> {
    let start = Instant::now();
    output(command)?;
    Ok(start.elapsed())
}

/// Runs a command that must succeed; answers with what it printed, or with its last words.
pub(super) fn output(mut command: Command) -> Result<String> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output = command
        .stdin(Stdio::null())
        .output()
        .map_err(|source| BenchError::Start { program: program.clone(), source })?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned());
    }
    let words = String::from_utf8_lossy(&output.stderr);
    let last = words.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("it said nothing");
    Err(BenchError::Failed { program, why: format!("{}: {}", output.status, last.trim()) })
}
