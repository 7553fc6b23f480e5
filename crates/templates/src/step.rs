//! One step: a program that runs in a sandbox, and what it wrote.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use belljar_core::{
    Command, Denial, Error, ErrorCode, ExecEvent, ExecRequest, FilePath, Provider, Result, Sandbox,
    SandboxSpec, Termination, UserName,
};
use belljar_layers::{Record, Times};

use crate::workshop::{EPOCH, Progress, Tell, Workshop, failed};

/// How much of what a program said last is in the error, if it fails: bytes, and lines.
const TAIL: usize = 2000;
const LINES: usize = 3;
/// What a sandbox lives longer than what runs in it.
const MARGIN: Duration = Duration::from_secs(600);

/// A program that a step runs.
#[derive(Clone, Debug)]
pub(crate) struct Run {
    pub(crate) command: Vec<String>,
    /// Variables besides those of the template.
    pub(crate) env: BTreeMap<String, String>,
    pub(crate) user: UserName,
    pub(crate) directory: Option<String>,
    /// Files that are put there before, by the default user.
    pub(crate) files: Vec<(String, Vec<u8>)>,
}

impl Workshop {
    /// A sandbox of this template in which nothing is run, which ends with us.
    pub(crate) async fn quiet_sandbox(&self, record: &Record) -> Result<Arc<dyn Sandbox>> {
        let digest = self.catalog.put(&self.held, record).map_err(failed)?;
        let spec =
            SandboxSpec { template: digest.to_string(), tied_to_creator: true, ..SandboxSpec::default() };
        self.jail.create(spec).await
    }

    /// A sandbox of this template for a step, which ends with us.
    async fn sandbox(&self, record: &Record) -> Result<Arc<dyn Sandbox>> {
        let digest = self.catalog.put(&self.held, record).map_err(failed)?;
        let spec = SandboxSpec {
            template: digest.to_string(),
            limits: self.how.limits,
            network: self.how.network.clone(),
            cache: self.how.cache.clone(),
            ttl: self.how.timeout + MARGIN,
            tied_to_creator: true,
            ..SandboxSpec::default()
        };
        self.jail.create(spec).await
    }

    /// Runs a program over a template; answers the template with what it wrote on top.
    pub(crate) async fn run(&self, below: &Record, run: Run, tell: Tell<'_>) -> Result<Record> {
        let sandbox = self.sandbox(below).await?;
        let made = self.run_in(&*sandbox, run, tell).await;
        let ended = sandbox.cleanup().await;
        let made = made?;
        ended?;
        // How programs are started stays as it was.
        Ok(Record { settings: below.settings.clone(), ..made })
    }

    async fn run_in(&self, sandbox: &dyn Sandbox, run: Run, tell: Tell<'_>) -> Result<Record> {
        for (path, content) in run.files {
            let content = futures_util::stream::once(async { Ok(content.into()) });
            sandbox.upload(&path.parse()?, UserName::User, Box::pin(content)).await?;
        }
        let mut request = ExecRequest::argv(run.command);
        request.timeout = self.how.timeout;
        request.user = run.user;
        request.env = reproducible();
        request.env.extend(run.env);
        request.cwd = run.directory.map(|directory| directory.parse::<FilePath>()).transpose()?;
        request.check()?;
        follow(sandbox, request, tell).await?;
        // Whatever it left running does not change what is copied.
        sandbox.control()?.pause().await?;
        let (record, _, _held) = self.jail.capture(sandbox.id(), Times::All(EPOCH)).await?;
        self.catalog.put(&self.held, &record).map_err(failed)?;
        Ok(record)
    }
}

/// Variables by which the same work makes the same files.
fn reproducible() -> BTreeMap<String, String> {
    let fixed = [
        ("SOURCE_DATE_EPOCH", EPOCH.to_string()),
        ("PYTHONHASHSEED", "0".to_owned()),
        ("PYTHONDONTWRITEBYTECODE", "1".to_owned()),
        ("DEBIAN_FRONTEND", "noninteractive".to_owned()),
    ];
    fixed.map(|(name, value)| (name.to_owned(), value)).into()
}

/// Runs a program to its good end, telling what it says.
async fn follow(sandbox: &dyn Sandbox, request: ExecRequest, tell: Tell<'_>) -> Result<()> {
    let shown = match &request.command {
        Command::Argv(words) => words.join(" "),
        Command::Shell(line) => line.clone(),
    };
    let execution = sandbox.execs()?.start(request).await?;
    let (mut tail, mut denied): (Vec<u8>, Vec<Denial>) = (Vec::new(), Vec::new());
    let ended = loop {
        match execution.next().await? {
            Some(ExecEvent::Output { stream, bytes }) => {
                tail.extend_from_slice(&bytes);
                if tail.len() > 2 * TAIL {
                    tail.drain(..tail.len() - TAIL);
                }
                tell(Progress::Output { stream, bytes: bytes.to_vec() });
            }
            Some(ExecEvent::Denied(list)) => denied = list,
            Some(ExecEvent::Finished { termination, .. }) => break termination,
            Some(_) => {}
            None => break Termination::Lost,
        }
    };
    let how = match ended {
        Termination::Exited { code: 0 } => return Ok(()),
        Termination::Exited { code } => format!("ended with status {code}"),
        Termination::Signaled { signal } => format!("was ended by signal {signal}"),
        Termination::TimedOut => "took too long".to_owned(),
        Termination::OutOfMemory => "had too little memory".to_owned(),
        other => format!("did not end well ({})", other.as_str()),
    };
    let start = tail.len().saturating_sub(TAIL);
    let said = String::from_utf8_lossy(&tail[start..]).into_owned();
    let mut said: Vec<&str> =
        said.lines().map(str::trim).filter(|line| !line.is_empty()).rev().take(LINES).collect();
    said.reverse();
    let mut words = format!("`{}` {how}", shown.chars().take(200).collect::<String>());
    if !said.is_empty() {
        words = format!("{words}; it said last: {}", said.join(" / "));
    }
    let error = Error::new(ErrorCode::StepFailed, words);
    Err(match (ended, denied.first()) {
        (Termination::TimedOut, _) => error.hint("give steps more time with `--timeout`"),
        (Termination::OutOfMemory, _) => error.hint("give it more with `--memory`"),
        (_, Some(denial)) => error.hint(format!("it was denied {denial}; allow that with `--allow`")),
        _ => error,
    })
}
