//! The parts that the program plays for itself: the door's supervisor and its worker. Nobody types these.

use std::ffi::OsString;
use std::fs::OpenOptions;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};

use belljar_network::door::close_others;
use belljar_network::door::{Client, LOG_FILE, supervisor, worker};
use belljar_network::gateway;
use rustix::process::{Signal, set_parent_process_death_signal};

const SUPERVISOR: &str = "door-supervisor";
const WORKER: &str = "door-worker";
const GATEWAY: &str = "door-gateway";
const PARTS: [&str; 3] = [SUPERVISOR, WORKER, GATEWAY];
/// What the door writes to its log, unless `BELLJAR_LOG` says otherwise.
const LEVEL: &str = "warn";

/// Plays such a part if the command line asks for one.
pub(crate) fn part() -> Option<ExitCode> {
    let words: Vec<OsString> = std::env::args_os().skip(1).collect();
    if matches!(&words[..], [part, ..] if PARTS.iter().any(|own| part == own))
        && let Err(error) = close_others()
    {
        eprintln!("belljar: cannot close what was handed down: {error}");
        return Some(ExitCode::FAILURE);
    }
    let played = match &words[..] {
        [part, home] if part == SUPERVISOR => supervise(Path::new(home)),
        [part] if part == WORKER => work(),
        [part, home] if part == GATEWAY => keep_keys(Path::new(home)),
        _ => return None,
    };
    Some(match played {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!(%error, "the door closes");
            ExitCode::FAILURE
        }
    })
}

/// The door of a data directory, which this program opens when it is needed.
pub(crate) fn client(home: &Path) -> io::Result<Client> {
    let program = std::env::current_exe()?;
    let at = home.to_owned();
    Ok(Client::new(home, Box::new(move || open(&program, &at))))
}

/// Starts the supervisor, apart from whatever started us.
fn open(program: &Path, home: &Path) -> io::Result<()> {
    let log = OpenOptions::new().create(true).append(true).mode(0o600).open(home.join(LOG_FILE))?;
    let mut command = Command::new(program);
    command.arg(SUPERVISOR).arg(home).current_dir("/");
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
    let mut child = command.spawn()?;
    // Nobody waits for it but to have it reaped.
    std::thread::spawn(move || drop(child.wait()));
    Ok(())
}

fn supervise(home: &Path) -> io::Result<()> {
    start_log();
    let _ = rustix::process::setsid();
    let program = std::env::current_exe()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let (other, place) = (program.clone(), home.to_owned());
    let worker = Box::new(move |channel| employ(&program, channel));
    let gateway = Box::new(move |channel| entrust(&other, &place, channel));
    runtime.block_on(supervisor::run(home, worker, gateway))
}

/// Starts the gateway, which finds its keys where its configuration says, in this environment among others.
fn entrust(program: &Path, home: &Path, channel: OwnedFd) -> io::Result<tokio::process::Child> {
    let mut command = tokio::process::Command::new(program);
    command.arg(GATEWAY).arg(home).stdin(Stdio::from(channel)).stdout(Stdio::null()).kill_on_drop(true);
    command.spawn()
}

fn keep_keys(home: &Path) -> io::Result<()> {
    start_log();
    // Should the supervisor be killed, nobody brings callers.
    set_parent_process_death_signal(Some(Signal::KILL))?;
    let channel = io::stdin().as_fd().try_clone_to_owned()?;
    gateway::process::run(home, channel)
}

fn employ(program: &Path, channel: OwnedFd) -> io::Result<tokio::process::Child> {
    let mut command = tokio::process::Command::new(program);
    command.arg(WORKER).env_clear().stdin(Stdio::from(channel)).stdout(Stdio::null()).kill_on_drop(true);
    // Names are what they are: nothing is put behind them that the policy has not seen.
    command.env("LOCALDOMAIN", "");
    // Where the system's certificates are, if not where they usually are.
    let certificates = ["SSL_CERT_FILE", "SSL_CERT_DIR"];
    command.envs(certificates.iter().filter_map(|name| Some((name, std::env::var_os(name)?))));
    #[cfg(feature = "ablation")]
    command.envs([belljar_core::wall::ablation::passed_on()]);
    match std::env::var_os("BELLJAR_LOG") {
        Some(level) => command.env("BELLJAR_LOG", level),
        // Whoever took it over could fill the disk.
        None => command.stderr(Stdio::null()),
    };
    command.spawn()
}

fn work() -> io::Result<()> {
    start_log();
    // Should the supervisor be killed, there is no door.
    set_parent_process_death_signal(Some(Signal::KILL))?;
    let channel = io::stdin().as_fd().try_clone_to_owned()?;
    worker::run(channel)
}

fn start_log() {
    let level = std::env::var("BELLJAR_LOG").unwrap_or_else(|_| LEVEL.into());
    let _ = crate::log::start(Some(&level));
}
