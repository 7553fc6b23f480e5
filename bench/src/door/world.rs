//! A network that leads nowhere, in which addresses of the internet are this machine, with a server, a proxy before it, and a
//! door.

use std::fs::{self, OpenOptions};
use std::io::{self, BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};

use belljar_core::{ByteSize, ExecRequest, Limits, NetLimits, NetworkPolicy, Rules, Sandbox, SandboxId};
use belljar_network::door::{Client, LOG_FILE};

use crate::bell::{self, Bell, beside};
use crate::error::{BenchError, Result, at};

/// Where the server is, and by which name.
const SERVER: (&str, &str) = ("93.184.215.14", "server.test");
/// Where the proxy is.
const PROXY: (&str, &str) = ("93.184.215.15", "proxy.test");
const PORT: u16 = 80;

/// The ways to the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    Direct,
    Proxy,
    Door,
}

impl Way {
    pub(super) const ALL: [Self; 3] = [Self::Direct, Self::Proxy, Self::Door];

    /// Its name in keys.
    pub(super) fn key(self) -> &'static str {
        match self {
            Self::Direct => "direct",
            Self::Proxy => "proxy",
            Self::Door => "door",
        }
    }

    /// Its name for people.
    pub(super) fn title(self) -> &'static str {
        match self {
            Self::Direct => "direct",
            Self::Proxy => "minimal copy proxy",
            Self::Door => "sandbox and door",
        }
    }
}

/// This network, and what was started in it.
pub(super) struct World {
    pub(super) bell: Bell,
    doors: Doors,
    _server: Program,
    _proxy: Program,
}

impl World {
    /// Furnishes the network in which this process is.
    pub(super) fn new(scratch: &Path) -> Result<Self> {
        let hosts = scratch.join("hosts");
        let names = format!("127.0.0.1 localhost\n{} {}\n{} {}\n", SERVER.0, SERVER.1, PROXY.0, PROXY.1);
        fs::write(&hosts, names).map_err(at(&hosts))?;
        let hosts = hosts.to_string_lossy();
        do_it("mount", &["--bind", &hosts, "/etc/hosts"])?;
        do_it("ip", &["link", "set", "lo", "up"])?;
        for address in [SERVER.0, PROXY.0] {
            do_it("ip", &["address", "add", &format!("{address}/32"), "dev", "lo"])?;
        }
        let (server, proxy) = (format!("{}:{PORT}", SERVER.0), format!("{}:{PORT}", PROXY.0));
        let server_program = Program::start(&["serve", &server])?;
        let proxy_program = Program::start(&["proxy", &proxy, &server])?;
        let doors = Doors::default();
        let bell = Bell::open_with(scratch, |home| {
            let (program, at, doors) = (beside("belljar")?, home.to_owned(), doors.clone());
            Ok(Arc::new(Client::new(home, Box::new(move || doors.open(&program, &at)))))
        })?;
        Ok(Self { bell, doors, _server: server_program, _proxy: proxy_program })
    }

    /// A sandbox that may reach the server, without a bound that could be felt.
    pub(super) async fn create(&self) -> Result<Arc<dyn Sandbox>> {
        self.bell.create_granted(Limits::default(), policy()?).await
    }

    /// Runs the client, inside for the door and outside for all else; answers with the numbers that it says.
    pub(super) async fn run_client(&self, way: Way, inside: &Inside, words: &[&str]) -> Result<Vec<f64>> {
        let host = format!("{}:{PORT}", if way == Way::Proxy { PROXY.1 } else { SERVER.1 });
        let words = words.iter().copied().chain([&*host]);
        let said = if way == Way::Door {
            let request = ExecRequest::argv([inside.program].into_iter().chain(words));
            bell::run(&*inside.sandbox, request).await?.stdout.to_bytes()
        } else {
            let output = Command::new(beside("belljar-work")?).args(words).output();
            let output =
                output.map_err(|source| BenchError::Start { program: "belljar-work".into(), source })?;
            if !output.status.success() {
                let why = String::from_utf8_lossy(&output.stderr).trim().to_owned();
                return Err(BenchError::Failed { program: "belljar-work".into(), why });
            }
            output.stdout
        };
        let said = String::from_utf8_lossy(&said).into_owned();
        let numbers: Option<Vec<f64>> = said.lines().map(|line| line.parse().ok()).collect();
        numbers.filter(|numbers| !numbers.is_empty()).ok_or_else(|| BenchError::Failed {
            program: "belljar-work".into(),
            why: format!("it said `{}` instead of times", said.escape_debug()),
        })
    }

    /// A sandbox with the client in it.
    pub(super) async fn inside(&self) -> Result<Inside> {
        let sandbox = self.create().await?;
        let program = self.bell.bring_work(&*sandbox).await?;
        Ok(Inside { sandbox, program })
    }

    /// The process that keeps the door.
    pub(super) fn supervisor(&self) -> Result<u32> {
        let doors = self.doors.0.lock().unwrap_or_else(PoisonError::into_inner);
        let last = doors.last().map(|Program(child)| child.id());
        last.ok_or_else(|| BenchError::Invalid("the door was not opened".into()))
    }

    /// Sees that nothing is left.
    pub(super) fn leave(self) -> Result<()> {
        let sandboxes = self.bell.home().join("sandboxes");
        let left: Vec<SandboxId> = fs::read_dir(&sandboxes)
            .map_err(at(&sandboxes))?
            .flatten()
            .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
            .collect();
        if left.is_empty() {
            Ok(())
        } else {
            Err(BenchError::Invalid(format!("sandboxes are left: {left:?}")))
        }
    }
}

/// A sandbox and the path of the client in it.
pub(super) struct Inside {
    pub(super) sandbox: Arc<dyn Sandbox>,
    program: &'static str,
}

/// What the sandboxes of the bench may reach: the server, as much and as often as they can.
pub(super) fn policy() -> Result<NetworkPolicy> {
    let rule = SERVER.1.parse().map_err(|error| BenchError::Invalid(format!("{}: {error}", SERVER.1)))?;
    let limits = NetLimits {
        connections: 1024,
        requests_per_second: 1_000_000,
        bytes_per_second: ByteSize(1 << 40),
        total_bytes: ByteSize(1 << 60),
    };
    Ok(NetworkPolicy::Allowlist(Rules { allow: vec![rule], limits, ..Rules::default() }))
}

/// A line of shell that holds a connection to the server, and says so.
pub(super) fn hold() -> String {
    format!("exec 3<>/dev/tcp/{}/{PORT} && echo held && read -r -u 3", SERVER.1)
}

/// The doors that were opened. The last one is open.
#[derive(Clone, Default)]
struct Doors(Arc<Mutex<Vec<Program>>>);

impl Doors {
    fn open(&self, program: &Path, home: &Path) -> io::Result<()> {
        let log = OpenOptions::new().create(true).append(true).open(home.join(LOG_FILE))?;
        let mut command = Command::new(program);
        command.arg("door-supervisor").arg(home);
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).spawn()?;
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(Program(child));
        Ok(())
    }
}

/// A program that is gone with this value.
struct Program(Child);

impl Program {
    /// Starts the server or the proxy, and waits until it is ready.
    fn start(words: &[&str]) -> Result<Self> {
        let wrong = |source| BenchError::Start { program: "belljar-peer".into(), source };
        let mut command = Command::new(beside("belljar-peer")?);
        let child = command.args(words).stdin(Stdio::null()).stdout(Stdio::piped()).spawn();
        let mut program = Self(child.map_err(wrong)?);
        let mut said = String::new();
        if let Some(output) = program.0.stdout.take() {
            BufReader::new(output).read_line(&mut said).map_err(wrong)?;
        }
        if said == "ready\n" { Ok(program) } else { Err(wrong(io::Error::other("it does not become ready"))) }
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn do_it(program: &str, words: &[&str]) -> Result<()> {
    let output = Command::new(program).args(words).output();
    let output = output.map_err(|source| BenchError::Start { program: program.into(), source })?;
    if output.status.success() {
        return Ok(());
    }
    let why = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    Err(BenchError::Failed { program: format!("{program} {}", words.join(" ")), why })
}
