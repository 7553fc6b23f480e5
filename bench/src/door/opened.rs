//! What it costs that TLS is opened, beside mitmproxy, which opens it too.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;

use belljar_core::{ExecRequest, Limits, NetworkPolicy, Rules, Sandbox};
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};

use super::world::{PROXY, Program, SERVER, World, free, rule, wait_for};
use crate::args::Args;
use crate::bell::{self, beside};
use crate::error::{BenchError, Result, at};
use crate::print;
use crate::report::{Report, Table};
use crate::statistics::Samples;

const PORT: u16 = 443;
/// Requests that one client makes. The first is not counted: it has the greeting.
const REQUESTS: usize = 301;
const CONNECTIONS: &str = "16";

/// The ways to the server.
const WAYS: [(&str, &str); 3] =
    [("direct", "direct"), ("mitmproxy", "mitmproxy"), ("opened", "sandbox, TLS opened by the door")];

/// The certificates of the bench.
pub(super) struct Certificates {
    pub(super) authority: PathBuf,
    key: PathBuf,
    leaf: PathBuf,
}

impl Certificates {
    /// Makes an authority, and a certificate for the server.
    pub(super) fn make(scratch: &Path) -> Result<Self> {
        let wrong = |error: rcgen::Error| BenchError::Invalid(format!("cannot make certificates: {error}"));
        let own_key = KeyPair::generate().map_err(wrong)?;
        let mut parameters = CertificateParams::default();
        parameters.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        // Else it would have the name of the other, and be taken for one that vouches for itself.
        parameters.distinguished_name.push(DnType::CommonName, "the bench's authority");
        let own = parameters.self_signed(&own_key).map_err(wrong)?;
        let key = KeyPair::generate().map_err(wrong)?;
        let names = vec![SERVER.1.to_owned(), PROXY.1.to_owned()];
        let issuer = Issuer::new(parameters, own_key);
        let leaf =
            CertificateParams::new(names).and_then(|leaf| leaf.signed_by(&key, &issuer)).map_err(wrong)?;
        let put = |name: &str, text: String| {
            let path = scratch.join(name);
            fs::write(&path, text).map_err(at(&path)).map(|()| path)
        };
        Ok(Self {
            authority: put("authority.pem", own.pem())?,
            key: put("key.pem", key.serialize_pem())?,
            leaf: put("leaf.pem", leaf.pem())?,
        })
    }

    /// A server that has it.
    pub(super) fn serve(&self) -> Result<Program> {
        self.start("serve-tls")
    }

    /// A server that has it, of as many bytes as are asked for.
    pub(super) fn serve_bytes(&self) -> Result<Program> {
        self.start("serve")
    }

    /// A server that has it, of the files in a directory, behind a line of so many bytes a second.
    pub(super) fn serve_files(&self, directory: &Path, pace: u64) -> Result<Program> {
        let [key, leaf] = self.paths();
        let (address, directory) = (format!("{}:{PORT}", SERVER.0), directory.to_string_lossy());
        Program::start(&["serve-files", &address, &directory, &pace.to_string(), &key, &leaf], Stdio::null())
    }

    fn paths(&self) -> [String; 2] {
        [&self.key, &self.leaf].map(|path| path.to_string_lossy().into_owned())
    }

    fn start(&self, kind: &str) -> Result<Program> {
        let words = self.paths();
        Program::start(&[kind, &format!("{}:{PORT}", SERVER.0), &words[0], &words[1]], Stdio::null())
    }
}

/// mitmproxy before the server, if it is there, and whom its clients must believe.
fn mitmproxy(certificates: &Certificates, scratch: &Path) -> Result<(Program, PathBuf)> {
    let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let cache =
        cache.or_else(|| Some(Path::new(&std::env::var_os("HOME")?).join(".cache"))).unwrap_or_default();
    let program = cache.join("belljar/mitmproxy/bin/mitmdump");
    let place = scratch.join("mitmproxy");
    let mut command = Command::new(&program);
    let trusted = format!("ssl_verify_upstream_trusted_ca={}", certificates.authority.display());
    let (mode, own) =
        (format!("reverse:https://{}:{PORT}", SERVER.1), format!("confdir={}", place.display()));
    command.args(["-q", "--mode", &mode, "--listen-host", PROXY.0, "--listen-port", "443"]);
    command.args(["--set", &trusted, "--set", &own, "--set", "http2=false", "--set", "block_global=false"]);
    let child = command.stdin(Stdio::null()).stdout(Stdio::null()).spawn();
    let program =
        Program::of(child.map_err(|source| BenchError::Start { program: "mitmdump".into(), source })?);
    wait_for(&format!("{}:{PORT}", PROXY.0))?;
    Ok((program, place.join("mitmproxy-ca-cert.pem")))
}

pub(super) async fn measure(args: &Args, world: &World, scratch: &Path, report: &mut Report) -> Result<()> {
    let certificates = world.certificates();
    let _server = certificates.serve()?;
    let proxy = match mitmproxy(certificates, scratch) {
        Ok(proxy) => Some(proxy),
        Err(error) => {
            report.lacks("door.opened.mitmproxy", error.to_string());
            None
        }
    };
    let rules = [format!("GET https://{}/*", SERVER.1), format!("{}:{PORT}", SERVER.0)];
    let allow = rules.into_iter().map(rule).collect::<Result<_>>()?;
    let policy = NetworkPolicy::Allowlist(Rules { allow, limits: free(), ..Rules::default() });
    let sandbox = world.bell.create_granted(Limits::default(), policy).await?;
    let inside = world.bell.bring_work(&*sandbox).await?;
    let (rounds, seconds) = (args.rounds_or(10, 3), if args.quick { "2" } else { "5" });
    let mut times = WAYS.map(|_| Samples::default());
    let mut rates = WAYS.map(|_| Samples::default());
    for round in 0..rounds {
        eprint!("\rdoor, opened TLS: round {} of {rounds}", round + 1);
        for (number, (way, _)) in WAYS.into_iter().enumerate() {
            let client = match (way, &proxy) {
                ("direct", _) => Client::Outside(SERVER.1, &certificates.authority),
                ("mitmproxy", Some((_, believed))) => Client::Outside(PROXY.1, believed),
                ("mitmproxy", None) => continue,
                _ => Client::Inside(&sandbox, inside),
            };
            let asked = client.run(&["ask-tls", &REQUESTS.to_string()]).await?;
            asked.into_iter().skip(1).for_each(|time| times[number].push(time / 1e6));
            for rate in client.run(&["load-tls", CONNECTIONS, seconds]).await? {
                rates[number].push(rate);
            }
        }
    }
    eprintln!();
    sandbox.cleanup().await?;
    let columns = ["way", "p50 ms", "p99 ms", "more p50 ms", "requests/s", "over mitmproxy"];
    let mut table =
        Table::new("A small request over TLS to this machine, on a connection that is kept", &columns);
    let (direct, slow) = (times[0].median(), rates[1].median());
    for ((way, title), (times, rates)) in WAYS.into_iter().zip(times.iter().zip(&rates)) {
        let place = format!("door.opened.{way}");
        let more = times.median().zip(direct).map(|(time, direct)| time - direct);
        let over = rates.median().zip(slow).map(|(rate, slow)| rate / slow);
        report.set_times(&place, times);
        for (name, value) in
            [("added_ms", more), ("requests_per_second", rates.median()), ("over_mitmproxy", over)]
        {
            if let Some(value) = value {
                report.set(format!("{place}.{name}"), value);
            }
        }
        print::row(&mut table, title, &[times.median(), times.p99(), more, rates.median(), over]);
    }
    table
        .notes
        .push(format!("Requests a second: {CONNECTIONS} connections for {seconds} s, medians of {rounds}."));
    report.tables.push(table);
    Ok(())
}

/// Where the client is, and of what server.
enum Client<'a> {
    Outside(&'a str, &'a Path),
    Inside(&'a Arc<dyn Sandbox>, &'static str),
}

impl Client<'_> {
    async fn run(&self, words: &[&str]) -> Result<Vec<f64>> {
        let said = match self {
            Self::Outside(host, believed) => {
                let mut command = Command::new(beside("belljar-work")?);
                let output = command.args(words).arg(format!("{host}:{PORT}")).arg(believed).output();
                let output =
                    output.map_err(|source| BenchError::Start { program: "belljar-work".into(), source })?;
                if !output.status.success() {
                    let why = String::from_utf8_lossy(&output.stderr).trim().to_owned();
                    return Err(BenchError::Failed {
                        program: format!("belljar-work {words:?} {host}"),
                        why,
                    });
                }
                output.stdout
            }
            Self::Inside(sandbox, program) => {
                let host = format!("{}:{PORT}", SERVER.1);
                let rest = [&*host, "/etc/ssl/certs/ca-certificates.crt"];
                let words = [*program].into_iter().chain(words.iter().copied()).chain(rest);
                bell::run(&***sandbox, ExecRequest::argv(words)).await?.stdout.to_bytes()
            }
        };
        Ok(String::from_utf8_lossy(&said).lines().filter_map(|line| line.parse().ok()).collect())
    }
}
