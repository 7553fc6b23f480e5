//! What this host can do for Belljar: the helper program's proofs of the kernel, then the data directory, the host
//! template, and in the end a real sandbox.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use belljar_core::{
    ByteSize, CpuCount, Error, ErrorCode, ExecRequest, Limits, Provider, Result, SandboxSpec,
};
pub use belljar_jail::doctor::{Area, Check, Status};
use rustix::fs::{StatVfsMountFlags, statvfs};
use tokio::io::AsyncReadExt;
use tokio::process::Command;

use crate::home::Home;
use crate::jail::Jail;
use crate::jail::programs::Programs;
use crate::template::{self, Language, Template, TemplateError};

/// The helper's probes have limits of their own; more than this is a fault.
const PROOFS_PATIENCE: Duration = Duration::from_secs(60);
/// The longest answer of the helper.
const MAX_PROOFS: u64 = 1 << 20;
/// Less free space than this is worth a word.
const WANTED_SPACE: ByteSize = ByteSize::gib(1);
/// A sandbox that nobody removes is gone after this.
const TRIAL_LIFE: Duration = Duration::from_secs(60);

/// Tries everything that sandboxes in this data directory need. Fails never: what cannot be tried is a finding. If
/// the caller drops this future, the helper is killed and a sandbox made for the trial goes with it.
pub async fn examine(home: &Home) -> Vec<Check> {
    let mut checks = match proofs(home).await {
        Ok(checks) => checks,
        Err(error) => vec![failed(Area::Walls, "helper program", error)],
    };
    checks.extend(data_directory(home.path()));
    let cache = home.templates();
    checks.extend(match tokio::task::spawn_blocking(move || template::host(&cache)).await {
        Ok(Ok(template)) => host_template(&template),
        Ok(Err(error)) => vec![no_template(&error)],
        Err(error) => vec![Check::missing(Area::Template, "host template", error.to_string(), None)],
    });
    checks.push(trial(home).await.unwrap_or_else(|error| failed(Area::Sandbox, "a real sandbox", error)));
    checks
}

fn failed(area: Area, name: &str, error: Error) -> Check {
    Check::missing(area, name, error.message, error.hint)
}

/// What the helper program proves, in its own single-threaded process.
async fn proofs(home: &Home) -> Result<Vec<Check>> {
    let programs = Programs::install(home)?;
    let problem = |why: String| {
        Error::new(
            ErrorCode::Internal,
            format!("{} could not examine this host: {why}", programs.jail.display()),
        )
        .hint("the data directory must allow programs to run; choose another with BELLJAR_HOME or --home")
    };
    let mut child = Command::new(&programs.jail)
        .arg("doctor")
        .env_clear()
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .map_err(|error| problem(error.to_string()))?;
    let Some(stdout) = child.stdout.take() else { return Err(problem("it has no output".into())) };
    let mut answer = Vec::new();
    let exchange = async {
        stdout.take(MAX_PROOFS).read_to_end(&mut answer).await?;
        child.wait().await
    };
    match tokio::time::timeout(PROOFS_PATIENCE, exchange).await {
        Ok(Ok(_)) => {}
        Ok(Err(error)) => return Err(problem(error.to_string())),
        Err(_) => return Err(problem("it took longer than a minute".into())),
    }
    serde_json::from_slice(&answer).map_err(|error| problem(format!("it gave no answer ({error})")))
}

/// Writable, programs may run there, and there is room.
fn data_directory(path: &Path) -> Vec<Check> {
    let shown = path.display();
    let elsewhere = "choose another data directory with BELLJAR_HOME or --home".to_owned();
    let name = "data directory";
    if let Err(error) = write_test(path) {
        return vec![Check::missing(
            Area::Data,
            name,
            format!("cannot write to {shown}: {error}"),
            elsewhere,
        )];
    }
    let system = match statvfs(path) {
        Ok(system) => system,
        Err(error) => {
            return vec![Check::missing(
                Area::Data,
                name,
                format!("cannot examine {shown}: {error}"),
                elsewhere,
            )];
        }
    };
    let usable = if system.f_flag.contains(StatVfsMountFlags::NOEXEC) {
        let finding = format!("{shown} is mounted noexec, and Belljar keeps programs there");
        Check::missing(Area::Data, name, finding, format!("remount it with exec, or {elsewhere}"))
    } else {
        Check::ok(Area::Data, name, format!("{shown} can be written to, and programs may run there"))
    };
    vec![usable, free_space(ByteSize(system.f_bavail.saturating_mul(system.f_frsize)), path)]
}

fn write_test(directory: &Path) -> std::io::Result<()> {
    let path = directory.join(format!(".doctor.{}", std::process::id()));
    let written = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&path)
        .and_then(|mut file| std::io::Write::write_all(&mut file, &[1; 4096]));
    let _ = fs::remove_file(&path);
    written
}

fn free_space(free: ByteSize, path: &Path) -> Check {
    let finding = format!("{free} free in {}", path.display());
    if free >= WANTED_SPACE {
        return Check::ok(Area::Data, "free space", finding);
    }
    let advice = format!("less than {WANTED_SPACE}: templates and large disks may not fit; free some space");
    Check::degraded(Area::Data, "free space", finding, advice)
}

fn no_template(error: &TemplateError) -> Check {
    let mut finding = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(error) = cause {
        finding = format!("{finding}: {error}");
        cause = error.source();
    }
    let advice =
        "every sandbox needs it: see that /usr and a shell are there and the data directory is writable";
    Check::missing(Area::Template, "host template", finding, advice.to_owned())
}

/// The languages that sandboxes have, and what the template has to say.
fn host_template(template: &Template) -> Vec<Check> {
    let mounts = template.mounts.len();
    let finding =
        format!("made of {mounts} mounts of this host, with {} as its shell", template.shell.display());
    let mut checks = vec![Check::ok(Area::Template, "host template", finding)];
    for (language, command) in
        [(Language::Python, "python3"), (Language::Node, "node"), (Language::Rust, "cargo")]
    {
        let found = template.interpreters.iter().find(|found| found.language == language);
        checks.push(match found {
            Some(found) => {
                let finding = format!("{} in {}", found.version, found.program.display());
                Check::ok(Area::Template, command, finding)
            }
            None => Check::degraded(
                Area::Template,
                command,
                format!("sandboxes have no {command}"),
                format!("install {command}, or add its directory to PATH"),
            ),
        });
    }
    for (number, note) in template.notes.iter().enumerate() {
        let (finding, advice) = note_and_step(note);
        checks.push(Check::degraded(
            Area::Template,
            &format!("template note {}", number + 1),
            finding,
            advice,
        ));
    }
    checks
}

/// A note is what was found, a semicolon, and the next step.
fn note_and_step(note: &str) -> (String, Option<String>) {
    let note = note.trim_end_matches('.');
    match note.rsplit_once("; ") {
        Some((finding, step)) => (finding.to_owned(), Some(step.to_owned())),
        None => (note.to_owned(), None),
    }
}

/// Makes a small sandbox, runs `true` in it and removes it.
async fn trial(home: &Home) -> Result<Check> {
    let memory = ByteSize::mib(64);
    let limits = Limits {
        memory,
        cpus: CpuCount(1000),
        pids: 32,
        disk: ByteSize::mib(8),
        inodes: 1024,
        ..Limits::default()
    };
    let spec = SandboxSpec { limits, ttl: TRIAL_LIFE, tied_to_creator: true, ..SandboxSpec::default() };
    let begun = Instant::now();
    let sandbox = Jail::new(home.clone())?.create(spec).await?;
    let created = begun.elapsed();
    let ran = sandbox.execute(ExecRequest::argv(["true"])).await;
    let total = begun.elapsed();
    let losses = match sandbox.control() {
        Ok(control) => control.info().await.map(|info| info.losses).unwrap_or_default(),
        Err(_) => Vec::new(),
    };
    let removed = sandbox.cleanup().await;
    let termination = ran?.termination;
    removed?;
    let name = "a real sandbox";
    let hint = "report this with the output of `belljar doctor --json`".to_owned();
    if !termination.is_success() {
        let finding = format!("`true` did not succeed in one: {termination:?}");
        return Ok(Check::missing(Area::Sandbox, name, finding, hint));
    }
    let millis = |span: Duration| span.as_secs_f64() * 1000.0;
    let finding = format!(
        "ready after {:.0} ms, had run `true` after {:.0} ms, removed",
        millis(created),
        millis(total)
    );
    if losses.is_empty() {
        return Ok(Check::ok(Area::Sandbox, name, finding));
    }
    Ok(Check::degraded(Area::Sandbox, name, format!("{finding}; {}", losses.join("; ")), None))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn little_space_is_worth_a_word() {
        let path = Path::new("/data");
        assert_eq!(free_space(ByteSize::gib(1), path).status, Status::Ok);
        let little = free_space(ByteSize::mib(1023), path);
        assert_eq!(little.status, Status::Degraded);
        assert_eq!(little.finding, "1023 MiB free in /data");
    }

    #[test]
    fn a_directory_that_is_not_there_is_missing() {
        let checks = data_directory(Path::new("/nonexistent/home"));
        assert_eq!(checks.len(), 1);
        assert_eq!(checks[0].status, Status::Missing);
        assert!(checks[0].finding.contains("/nonexistent/home"), "{}", checks[0].finding);
    }

    #[test]
    fn notes_are_told_apart_from_next_steps() {
        let (finding, advice) = note_and_step("no node was found; it is missing; install node.");
        assert_eq!(finding, "no node was found; it is missing");
        assert_eq!(advice.as_deref(), Some("install node"));
        assert_eq!(note_and_step("odd.").1, None);
    }

    #[tokio::test]
    async fn this_machine_is_examined_and_nothing_is_left() {
        let directory = tempfile::tempdir().unwrap();
        let home = Home::open(Some(directory.path().to_owned())).unwrap();
        let checks = examine(&home).await;
        let names: BTreeSet<&str> = checks.iter().map(|check| check.name.as_str()).collect();
        assert_eq!(names.len(), checks.len(), "names are unique");
        let missing: Vec<&Check> = checks.iter().filter(|check| check.status == Status::Missing).collect();
        assert!(missing.is_empty(), "{missing:#?}");
        for name in ["user namespaces", "data directory", "python3", "a real sandbox"] {
            assert!(names.contains(name), "{name}");
        }
        assert_eq!(fs::read_dir(home.sandboxes()).unwrap().count(), 0);
        for check in &checks {
            println!(
                "{} | {:?} | {} | {} | {:?}",
                check.area, check.status, check.name, check.finding, check.advice
            );
        }
    }
}
