//! What it costs that everything is written down, and how long it takes to open what was.

use std::fs::{self, File};
use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use belljar_core::{Matching, NetworkPolicy, Record, Recording, RecordingName, Replay, Rules};
use belljar_network::recording::{Content, Entry, Exchange, Finder, Question, Reader, Veil, Writer, shelf};
use rustix::fs::{Advice, fadvise};
use rustix::param::clock_ticks_per_second;

use super::memory::worker;
use super::world::{Inside, SERVER, World, free, rule};
use crate::args::Args;
use crate::bell::beside;
use crate::error::{BenchError, Result, at};
use crate::print;
use crate::report::{Report, Table, meminfo};
use crate::statistics::Samples;

/// How many bytes are moved in a second, at most.
const PACE: u64 = 200_000_000;
/// Less than this of it is not what was aimed at.
const NEARLY: f64 = 0.97;
/// Whom clients believe: the door, and the server itself.
const BELIEVED: &str = "/tmp/believed.pem";
/// How long what is still to be written may take, once all has been moved.
const SETTLED: Duration = Duration::from_millis(150);

/// What the door has to do without and with a recording.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Look {
    /// Every request is judged, so TLS is opened in any case.
    Requests,
    /// Whoever records opens TLS that would have been closed.
    Host,
    /// TLS stays closed in any case.
    Closed,
}

const LOOKS: [Look; 3] = [Look::Requests, Look::Host, Look::Closed];

/// What is moved.
struct Case {
    key: &'static str,
    title: &'static str,
    look: Look,
    is_secure: bool,
    /// Which way, and which bytes, as the client is told.
    words: [&'static str; 2],
}

const fn case(
    (key, title): (&'static str, &'static str),
    look: Look,
    is_secure: bool,
    words: [&'static str; 2],
) -> Case {
    Case { key, title, look, is_secure, words }
}

const CASES: [Case; 12] = [
    case(("http_down_noise", "HTTP, down, noise"), Look::Requests, false, ["down", "noise"]),
    case(("http_up_noise", "HTTP, up, noise"), Look::Requests, false, ["up", "noise"]),
    case(("http_down_text", "HTTP, down, text"), Look::Requests, false, ["down", "text"]),
    case(("http_up_text", "HTTP, up, text"), Look::Requests, false, ["up", "text"]),
    case(("opened_down_noise", "opened TLS, down, noise"), Look::Requests, true, ["down", "noise"]),
    case(("opened_up_noise", "opened TLS, up, noise"), Look::Requests, true, ["up", "noise"]),
    case(("opened_down_text", "opened TLS, down, text"), Look::Requests, true, ["down", "text"]),
    case(("opened_up_text", "opened TLS, up, text"), Look::Requests, true, ["up", "text"]),
    case(("host_down_noise", "closed TLS, opened to be recorded, down"), Look::Host, true, ["down", "noise"]),
    case(("host_up_noise", "closed TLS, opened to be recorded, up"), Look::Host, true, ["up", "noise"]),
    case(("closed_down_noise", "closed TLS, recorded closed, down"), Look::Closed, true, ["down", "noise"]),
    case(("closed_up_noise", "closed TLS, recorded closed, up"), Look::Closed, true, ["up", "noise"]),
];

/// What was found of one case, without and with a recording.
#[derive(Default)]
struct Found {
    /// Megabytes a second.
    speed: Samples,
    /// Seconds of processors, of the door's worker.
    processor: Samples,
    /// The most memory that it had, in MiB.
    memory: Samples,
}

pub(super) async fn measure(args: &Args, world: &World, report: &mut Report) -> Result<()> {
    cost(args, world, report).await?;
    opening(args, world.bell.home(), report)
}

async fn cost(args: &Args, world: &World, report: &mut Report) -> Result<()> {
    let (rounds, bytes) = (args.rounds_or(5, 3), if args.quick { PACE } else { 2 * PACE });
    let _server = world.certificates().serve_bytes()?;
    let authority = &world.certificates().authority;
    let authority = fs::read_to_string(authority).map_err(at(authority))?;
    let believe =
        format!("cat /etc/ssl/certs/ca-certificates.crt - > {BELIEVED} <<'END'\n{authority}\nEND\n");
    let mut found = CASES.map(|_| [Found::default(), Found::default()]);
    for round in 0..rounds {
        eprint!("\rdoor, recorded: round {} of {rounds}", round + 1);
        for look in LOOKS {
            // Another recording each time, so that none becomes too long.
            let name: RecordingName = "cost".parse()?;
            let record = Recording::Record(record(look, name.clone())?);
            let inside = [
                Inside::like(&world.bell, policy(look)?, None).await?,
                Inside::like(&world.bell, policy(look)?, Some(record)).await?,
            ];
            for inside in &inside {
                inside.shell(&believe).await?;
            }
            for (case, found) in CASES.iter().zip(&mut found).filter(|(case, _)| case.look == look) {
                for (inside, found) in inside.iter().zip(found) {
                    found.add(case, bytes, inside, worker(world.supervisor()?)?).await?;
                }
            }
            Inside::remove_all(inside).await?;
            shelf::remove(world.bell.home(), &name)?;
        }
    }
    eprintln!();
    tell(report, &found, rounds, bytes);
    Ok(())
}

/// What a sandbox may reach: the server, all of it or request by request.
fn policy(look: Look) -> Result<NetworkPolicy> {
    let name = match look {
        Look::Requests => format!("{}/*", SERVER.1),
        Look::Host | Look::Closed => SERVER.1.to_owned(),
    };
    let allow = vec![rule(name)?, rule(format!("{}:80,443", SERVER.0))?];
    Ok(NetworkPolicy::Allowlist(Rules { allow, limits: free(), ..Rules::default() }))
}

fn record(look: Look, name: RecordingName) -> Result<Record> {
    let closed = if look == Look::Closed { vec![rule(SERVER.1.into())?] } else { Vec::new() };
    Ok(Record { name, most: Record::most(), closed, secrets: Vec::new(), headers: Vec::new() })
}

impl Found {
    async fn add(&mut self, case: &Case, bytes: u64, inside: &Inside, worker: u32) -> Result<()> {
        let (pace, count) = (PACE.to_string(), bytes.to_string());
        let host = format!("{}:{}", SERVER.1, if case.is_secure { 443 } else { 80 });
        let [way, kind] = case.words;
        let mut words = vec!["pace", way, kind, &pace, &count, &host];
        words.extend(case.is_secure.then_some(BELIEVED));
        forget_most(worker)?;
        let before = processor(worker)?;
        for time in inside.run(&words).await? {
            self.speed.push(bytes as f64 / 1e6 / (time / 1e9));
        }
        tokio::time::sleep(SETTLED).await;
        self.processor.push(processor(worker)? - before);
        self.memory.push(most(worker)? / 1024.0);
        Ok(())
    }
}

/// Seconds of processors that a process had.
fn processor(pid: u32) -> Result<f64> {
    let path = format!("/proc/{pid}/stat");
    let text = fs::read_to_string(&path).map_err(at(Path::new(&path)))?;
    // Behind the name, which may be anything.
    let fields = text.rsplit_once(')').map(|(_, rest)| rest.split_whitespace()).into_iter().flatten();
    let ticks: u64 = fields.skip(11).take(2).filter_map(|field| field.parse::<u64>().ok()).sum();
    Ok(ticks as f64 / clock_ticks_per_second() as f64)
}

/// The most memory that a process had since that was forgotten, in KiB.
fn most(pid: u32) -> Result<f64> {
    let path = format!("/proc/{pid}/status");
    let text = fs::read_to_string(&path).map_err(at(Path::new(&path)))?;
    let most = meminfo(&text, "VmHWM").map(|kib| kib as f64);
    most.ok_or_else(|| BenchError::Invalid(format!("{path} cannot be understood")))
}

fn forget_most(pid: u32) -> Result<()> {
    let path = format!("/proc/{pid}/clear_refs");
    fs::write(&path, "5").map_err(at(Path::new(&path)))
}

fn tell(report: &mut Report, found: &[[Found; 2]], rounds: usize, bytes: u64) {
    let columns =
        ["what", "MB/s", "recorded", "recorded/not", "CPU s", "recorded", "peak RSS MiB", "recorded"];
    let mut table = Table::new("What is moved while all of it is written down", &columns);
    let mut worst = f64::MAX;
    let mut slow = Vec::new();
    for (case, found) in CASES.iter().zip(found) {
        let place = format!("door.recording.{}", case.key);
        let [plain, recorded] = found.each_ref().map(|found| {
            [&found.speed, &found.processor, &found.memory].map(|all| all.median().unwrap_or(f64::NAN))
        });
        let ratio = recorded[0] / plain[0];
        let names = ["mb_per_second", "cpu_seconds", "peak_mib"];
        for (name, (plain, recorded)) in names.into_iter().zip(plain.into_iter().zip(recorded)) {
            report.set(format!("{place}.{name}"), plain);
            report.set(format!("{place}.recorded_{name}"), recorded);
        }
        report.set(format!("{place}.over_unrecorded"), ratio);
        if case.look == Look::Requests {
            worst = worst.min(ratio);
        }
        if plain[0] < NEARLY * PACE as f64 / 1e6 {
            slow.push(case.title);
        }
        let numbers = [plain[0], recorded[0], ratio, plain[1], recorded[1], plain[2], recorded[2]];
        print::row(&mut table, case.title, &numbers.map(Some));
    }
    report.set("door.recording.worst_over_unrecorded", worst);
    table.notes.push(format!(
        "{} MB each, at {} MB/s at most, medians of {rounds}, in turn. CPU and memory are the worker's, who writes too.",
        bytes / 1_000_000,
        PACE / 1_000_000
    ));
    if !slow.is_empty() {
        table.notes.push(format!("Slower than that without a recording already: {}.", slow.join("; ")));
    }
    report.tables.push(table);
}

/// Of the recording that is opened: how many requests, and the bytes of each answer.
const REQUESTS: u64 = 32_768;
const ANSWER: usize = 32 << 10;

fn opening(args: &Args, home: &Path, report: &mut Report) -> Result<()> {
    let rounds = args.rounds_or(10, 5);
    let name: RecordingName = "long".parse()?;
    let path = shelf::path(home, &name);
    eprintln!("door, recording: writing 1 GiB");
    write_long(&path).map_err(at(&path))?;
    let file = File::options().read(true).write(true).open(&path).map_err(at(&path))?;
    let mut times = ["cold", "warm", "show"].map(|key| (key, Samples::default(), Samples::default()));
    for _ in 0..rounds {
        for (key, open, find) in &mut times {
            let start = Instant::now();
            match *key {
                "show" => {
                    let mut command = Command::new(beside("belljar")?);
                    command.args(["recording", "show", name.as_str()]).env("BELLJAR_HOME", home);
                    let status = command.stdout(Stdio::null()).status();
                    let status =
                        status.map_err(|source| BenchError::Start { program: "belljar".into(), source })?;
                    if !status.success() {
                        return Err(BenchError::Failed {
                            program: "belljar".into(),
                            why: status.to_string(),
                        });
                    }
                    open.push(start.elapsed().as_secs_f64() * 1e3);
                }
                key => {
                    if key == "cold" {
                        fadvise(&file, 0, None, Advice::DontNeed).map_err(|error| at(&path)(error.into()))?;
                    }
                    let [opened, found] = open_and_find(&path, &name)?;
                    open.push(opened);
                    find.push(found);
                }
            }
        }
    }
    // As it is left by one who was killed.
    let length =
        file.metadata().and_then(|metadata| file.set_len(metadata.len() - 1).map(|()| metadata.len()));
    let length = length.map_err(at(&path))?;
    let [scanned, found] = open_and_find(&path, &name)?;
    shelf::remove(home, &name)?;
    let title = format!("Opening a recording of {} MiB with {REQUESTS} requests", length >> 20);
    let mut table = Table::new(&title, &["how", "open ms", "p99 ms", "and find ms"]);
    let titles = ["not in memory yet", "in memory", "belljar recording show"];
    for ((key, open, find), title) in times.iter().zip(titles) {
        report.set_times(&format!("door.recording.open.{key}"), open);
        if let Some(find) = find.median() {
            report.set(format!("door.recording.open.{key}.find_ms"), find);
        }
        print::row(&mut table, title, &[open.median(), open.p99(), find.median()]);
    }
    report.set("door.recording.open.without_index_ms", scanned);
    print::row(&mut table, "without its index, once", &[Some(scanned), None, Some(found)]);
    table.notes.push(format!(
        "Medians of {rounds}. Find: until the first request is known again and answered, beyond opening."
    ));
    report.tables.push(table);
    Ok(())
}

/// Milliseconds until it is open, and until something in it has been found.
fn open_and_find(path: &Path, name: &RecordingName) -> Result<[f64; 2]> {
    let start = Instant::now();
    let reader = Reader::new(File::open(path).map_err(at(path))?).map_err(at(path))?;
    let opened = start.elapsed();
    let how = Replay { name: name.clone(), matching: Matching::default(), ignore: Vec::new(), timing: false };
    let finder = Finder::new(reader, how, Veil::new([], &[]));
    let target = target(REQUESTS / 2);
    let asked = Question {
        host: SERVER.1,
        port: 443,
        tls: true,
        method: "GET",
        target: &target,
        content_type: None,
        range: None,
        body: &[],
    };
    let exchange = finder.find(&asked).map_err(at(path))?;
    let exchange = exchange.map_err(|missing| BenchError::Invalid(missing.to_string()))?;
    let answer = finder.reader().content(&exchange.answer, ANSWER as u64).map_err(at(path))?;
    if answer.len() != ANSWER {
        return Err(BenchError::Invalid(format!("an answer has {} bytes", answer.len())));
    }
    Ok([opened, start.elapsed() - opened].map(|time| time.as_secs_f64() * 1e3))
}

fn target(number: u64) -> String {
    format!("/packages/{:02x}/{number}/file-{number}.tar.gz?version={}", number % 256, number % 7)
}

fn write_long(path: &Path) -> std::io::Result<()> {
    let file = File::options().read(true).write(true).create_new(true).open(path)?;
    let mut writer = Writer::new(file.try_clone()?, u64::MAX)?;
    let mut noise = File::open("/dev/urandom")?;
    let mut piece = vec![0; ANSWER];
    let header = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    for number in 0..REQUESTS {
        noise.read_exact(&mut piece)?;
        let pieces = vec![writer.piece(&piece)?];
        let exchange = Exchange {
            at_ms: number,
            host: SERVER.1.into(),
            port: 443,
            tls: true,
            version: "2".into(),
            method: "GET".into(),
            target: target(number),
            headers: vec![header("accept", "*/*"), header("user-agent", "the bench")],
            status: 200,
            answer_headers: vec![
                header("content-type", "application/octet-stream"),
                header("content-length", &ANSWER.to_string()),
            ],
            answer: Content { length: ANSWER as u64, pieces, ..Content::default() },
            ..Exchange::default()
        };
        writer.entry(&Entry::Exchange(Box::new(exchange)))?;
    }
    writer.finish()?;
    file.sync_all()
}
