//! A network that leads nowhere, in which addresses of the internet are this machine, with a server, a proxy before it, and a
//! door.

use std::fs::{self, OpenOptions};
use std::io::{self, BufRead, BufReader};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use belljar_core::{
    ByteSize, Denial, Door, Error, ErrorCode, ExecId, ExecRequest, Limits, NetLimits, NetworkPolicy,
    Recording, Rule, Rules, Sandbox, SandboxId,
};
use belljar_jail::doorway;
use belljar_network::door::{Client, LOG_FILE};

use super::opened::Certificates;
use crate::bell::{self, Bell, beside};
use crate::error::{BenchError, Result, at};

/// Where the server is, and by which name.
pub(super) const SERVER: (&str, &str) = ("93.184.215.14", "server.test");
/// Where the proxy is.
pub(super) const PROXY: (&str, &str) = ("93.184.215.15", "proxy.test");
const PORT: u16 = 80;

/// The ways to the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    Direct,
    Proxy,
    /// The client is in a sandbox, and the proxy is where the door would be.
    StandIn,
    Door,
}

impl Way {
    pub(super) const ALL: [Self; 4] = [Self::Direct, Self::Proxy, Self::StandIn, Self::Door];

    /// Its name in keys.
    pub(super) fn key(self) -> &'static str {
        match self {
            Self::Direct => "direct",
            Self::Proxy => "proxy",
            Self::StandIn => "stand_in",
            Self::Door => "door",
        }
    }

    /// Its name for people.
    pub(super) fn title(self) -> &'static str {
        match self {
            Self::Direct => "direct",
            Self::Proxy => "minimal copy proxy",
            Self::StandIn => "sandbox, proxy for door",
            Self::Door => "sandbox and door",
        }
    }
}

/// This network, and what was started in it.
pub(super) struct World {
    pub(super) bell: Bell,
    stand_in: Bell,
    doors: Doors,
    certificates: Certificates,
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
        let server_program = Program::start(&["serve", &server], Stdio::null())?;
        let proxy_program = Program::start(&["proxy", &proxy, &server], Stdio::null())?;
        let certificates = Certificates::make(scratch)?;
        let doors = Doors { believed: certificates.authority.clone(), ..Doors::default() };
        let bell = Bell::open_with(scratch, |home| {
            let (program, at, doors) = (beside("belljar")?, home.to_owned(), doors.clone());
            Ok(Arc::new(Client::new(home, Box::new(move || doors.open(&program, &at)))))
        })?;
        let place = scratch.join("stand-in");
        fs::create_dir(&place).map_err(at(&place))?;
        let stand_in = Bell::open_with(&place, |home| {
            Ok(Arc::new(StandIn { sandboxes: home.join("sandboxes"), server, proxies: Mutex::default() }))
        })?;
        Ok(Self { bell, stand_in, doors, certificates, _server: server_program, _proxy: proxy_program })
    }

    /// Of the servers that speak TLS.
    pub(super) fn certificates(&self) -> &Certificates {
        &self.certificates
    }

    /// A sandbox that may reach the server, without a bound that could be felt.
    pub(super) async fn create(&self) -> Result<Arc<dyn Sandbox>> {
        self.bell.create_granted(Limits::default(), policy()?).await
    }

    /// Runs the client where it belongs; answers with the numbers that it says.
    pub(super) async fn run_client(
        &self,
        way: Way,
        inside: &[Inside; 2],
        words: &[&str],
    ) -> Result<Vec<f64>> {
        let (host, inside) = match way {
            Way::Direct => (SERVER.1, None),
            Way::Proxy => (PROXY.1, None),
            // There is nobody who answers questions about names.
            Way::StandIn => (SERVER.0, Some(&inside[0])),
            Way::Door => (SERVER.1, Some(&inside[1])),
        };
        let host = format!("{host}:{PORT}");
        let words: Vec<&str> = words.iter().copied().chain([&*host]).collect();
        if let Some(inside) = inside {
            return inside.run(&words).await;
        }
        let output = Command::new(beside("belljar-work")?).args(words).output();
        let output = output.map_err(|source| BenchError::Start { program: "belljar-work".into(), source })?;
        if !output.status.success() {
            let why = String::from_utf8_lossy(&output.stderr).trim().to_owned();
            return Err(BenchError::Failed { program: "belljar-work".into(), why });
        }
        numbers(&output.stdout)
    }

    /// Sandboxes with the client in them: one with a proxy in the door's place, and one with the door.
    pub(super) async fn inside(&self) -> Result<[Inside; 2]> {
        Ok([Inside::new(&self.stand_in).await?, Inside::new(&self.bell).await?])
    }

    /// The process that keeps the door.
    pub(super) fn supervisor(&self) -> Result<u32> {
        let doors = self.doors.open.lock().unwrap_or_else(PoisonError::into_inner);
        let last = doors.last().map(|Program(child)| child.id());
        last.ok_or_else(|| BenchError::Invalid("the door was not opened".into()))
    }

    /// Sees that nothing is left.
    pub(super) fn leave(self) -> Result<()> {
        let mut left: Vec<SandboxId> = Vec::new();
        for bell in [&self.bell, &self.stand_in] {
            let sandboxes = bell.home().join("sandboxes");
            let entries = fs::read_dir(&sandboxes).map_err(at(&sandboxes))?.flatten();
            left.extend(entries.filter_map(|entry| entry.file_name().to_str()?.parse::<SandboxId>().ok()));
        }
        if left.is_empty() {
            Ok(())
        } else {
            Err(BenchError::Invalid(format!("sandboxes are left: {left:?}")))
        }
    }
}

/// A sandbox and the path of the client in it.
pub(super) struct Inside {
    sandbox: Arc<dyn Sandbox>,
    program: &'static str,
}

impl Inside {
    async fn new(bell: &Bell) -> Result<Self> {
        Self::like(bell, policy()?, None).await
    }

    /// One with this network, with which a recording has this to do.
    pub(super) async fn like(
        bell: &Bell,
        network: NetworkPolicy,
        recording: Option<Recording>,
    ) -> Result<Self> {
        let sandbox = bell.create_recorded(network, recording).await?;
        let program = bell.bring_work(&*sandbox).await?;
        Ok(Self { sandbox, program })
    }

    /// Runs a line of shell.
    pub(super) async fn shell(&self, line: &str) -> Result<()> {
        bell::run(&*self.sandbox, ExecRequest::argv(["sh", "-c", line])).await.map(drop)
    }

    /// Runs the client; answers with the numbers that it says.
    pub(super) async fn run(&self, words: &[&str]) -> Result<Vec<f64>> {
        let request = ExecRequest::argv([self.program].into_iter().chain(words.iter().copied()));
        numbers(&bell::run(&*self.sandbox, request).await?.stdout.to_bytes())
    }

    pub(super) async fn remove_all(all: [Self; 2]) -> Result<()> {
        for inside in all {
            inside.sandbox.cleanup().await?;
        }
        Ok(())
    }
}

/// What the client says.
fn numbers(said: &[u8]) -> Result<Vec<f64>> {
    let said = String::from_utf8_lossy(said);
    let numbers: Option<Vec<f64>> = said.lines().map(|line| line.parse().ok()).collect();
    numbers.filter(|numbers| !numbers.is_empty()).ok_or_else(|| BenchError::Failed {
        program: "belljar-work".into(),
        why: format!("it said `{}` instead of times", said.escape_debug()),
    })
}

/// The minimal proxy in the door's place: it lets everything through, to the server.
#[derive(Debug)]
struct StandIn {
    sandboxes: PathBuf,
    server: String,
    proxies: Mutex<Vec<Program>>,
}

#[async_trait]
impl Door for StandIn {
    async fn see_to(&self, sandbox: &SandboxId) -> belljar_core::Result<()> {
        let wrong = |error: &dyn std::fmt::Display| Error::new(ErrorCode::Internal, error.to_string());
        let doorway =
            doorway::fetch(&self.sandboxes.join(sandbox.as_str())).map_err(|error| wrong(&error))?;
        let proxy = Program::start(&["proxy", "-", &self.server], doorway.v4.tcp.into());
        let proxy = proxy.map_err(|error| wrong(&error))?;
        self.proxies.lock().unwrap_or_else(PoisonError::into_inner).push(proxy);
        Ok(())
    }

    async fn denials(&self, _: &SandboxId, _: ExecId) -> belljar_core::Result<Vec<Denial>> {
        Ok(Vec::new())
    }
}

/// What the sandboxes of the bench may reach: the server, as much and as often as they can. Its address is the machine's own,
/// which takes a rule about it.
pub(super) fn policy() -> Result<NetworkPolicy> {
    let allow = vec![rule(SERVER.1.into())?, rule(format!("{}:{PORT}", SERVER.0))?];
    Ok(NetworkPolicy::Allowlist(Rules { allow, limits: free(), ..Rules::default() }))
}

pub(super) fn rule(text: String) -> Result<Rule> {
    text.parse().map_err(|error| BenchError::Invalid(format!("{text}: {error}")))
}

/// Limits that nobody reaches here.
pub(super) fn free() -> NetLimits {
    NetLimits {
        connections: 1024,
        requests_per_second: 1_000_000,
        bytes_per_second: ByteSize(1 << 40),
        total_bytes: ByteSize(1 << 60),
    }
}

/// Waits until somebody can be reached there.
pub(super) fn wait_for(address: &str) -> Result<()> {
    let end = Instant::now() + Duration::from_secs(30);
    loop {
        match TcpStream::connect(address) {
            Ok(_) => return Ok(()),
            Err(source) if Instant::now() > end => {
                return Err(BenchError::Start { program: format!("what is to be at {address}"), source });
            }
            Err(_) => std::thread::sleep(Duration::from_millis(50)),
        }
    }
}

/// A line of shell that holds a connection to the server, and says so once something has come through it.
pub(super) fn hold() -> String {
    let ask = "echo down 5 >&3 && read -r -N 5 -u 3";
    format!("exec 3<>/dev/tcp/{}/{PORT} && {ask} && echo held && read -r -u 3", SERVER.1)
}

/// The doors that were opened. The last one is open.
#[derive(Clone, Default)]
struct Doors {
    /// Whom they believe.
    believed: PathBuf,
    open: Arc<Mutex<Vec<Program>>>,
}

impl Doors {
    fn open(&self, program: &Path, home: &Path) -> io::Result<()> {
        let log = OpenOptions::new().create(true).append(true).open(home.join(LOG_FILE))?;
        let mut command = Command::new(program);
        command.arg("door-supervisor").arg(home).env("SSL_CERT_FILE", &self.believed);
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).spawn()?;
        self.open.lock().unwrap_or_else(PoisonError::into_inner).push(Program(child));
        Ok(())
    }
}

/// A program that is gone with this value.
#[derive(Debug)]
pub(super) struct Program(Child);

impl Program {
    /// One that was started.
    pub(super) fn of(child: Child) -> Self {
        Self(child)
    }

    /// Starts the server or the proxy, and waits until it is ready.
    pub(super) fn start(words: &[&str], input: Stdio) -> Result<Self> {
        let wrong = |source| BenchError::Start { program: "belljar-peer".into(), source };
        let mut command = Command::new(beside("belljar-peer")?);
        let child = command.args(words).stdin(input).stdout(Stdio::piped()).spawn();
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
