//! What an engine relies on in jails: that it can take them over from one that was there before, for good, and that what they
//! have used adds up.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;

use belljar_core::wire::{Decoder, Frame, MAX_CONTROL};
use belljar_core::{
    ErrorCode, ExecEvent, ExecRequest, FilePath, Provider, Result, Sandbox, SandboxSpec, UserName,
};
use belljar_jail::control::{Answer, CONVERSATION, LOCK_FILE, Open, PROTOCOL, Request, SOCKET_FILE};
use belljar_providers::home::Home;
use belljar_providers::jail::Jail;
use rustix::process::{Pid, Signal, kill_process};

/// A data directory, and the sandboxes made in it.
struct House {
    directory: tempfile::TempDir,
}

impl House {
    fn new() -> Self {
        Self { directory: tempfile::tempdir().unwrap() }
    }

    fn jail(&self) -> Jail {
        Jail::new(Home::open(Some(self.directory.path().join("home"))).unwrap()).unwrap()
    }

    fn place(&self, sandbox: &dyn Sandbox) -> PathBuf {
        self.directory.path().join("home/sandboxes").join(sandbox.id().as_str())
    }

    fn monitor(&self, sandbox: &dyn Sandbox) -> Pid {
        let built = std::fs::read(self.place(sandbox).join(LOCK_FILE)).unwrap();
        let built: serde_json::Value = serde_json::from_slice(&built).unwrap();
        Pid::from_raw(i32::try_from(built["monitor"]["pid"].as_i64().unwrap()).unwrap()).unwrap()
    }

    /// A connection to the monitor, with nothing said.
    fn connect(&self, sandbox: &dyn Sandbox) -> UnixStream {
        let place = std::fs::File::open(self.place(sandbox)).unwrap();
        UnixStream::connect(format!("/proc/self/fd/{}/{SOCKET_FILE}", place.as_raw_fd())).unwrap()
    }
}

fn say(mut stream: &UnixStream, epoch: u64, request: Request) {
    let mut bytes = Vec::new();
    let open = Open { protocol: PROTOCOL, epoch: Some(epoch), request };
    Frame::control(CONVERSATION, &open).encode(&mut bytes);
    stream.write_all(&bytes).unwrap();
}

fn answer(mut stream: &UnixStream) -> Answer {
    let (mut decoder, mut bytes) = (Decoder::new(MAX_CONTROL), [0; 4096]);
    loop {
        if let Some(frame) = decoder.next_frame().unwrap() {
            return frame.message().unwrap();
        }
        let count = stream.read(&mut bytes).unwrap();
        assert_ne!(count, 0, "closed without an answer");
        decoder.feed(&bytes[..count]);
    }
}

fn fenced<T>(result: Result<T>) {
    match result {
        Ok(_) => panic!("it was done"),
        Err(error) => assert_eq!(error.code, ErrorCode::Fenced, "{error}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_that_was_taken_over_can_do_nothing_any_more() {
    let house = House::new();
    let (old, new, none) = (house.jail().with_epoch(1), house.jail().with_epoch(2), house.jail());
    let before: Arc<dyn Sandbox> = old.create(SandboxSpec::default()).await.unwrap();
    assert!(before.execute(ExecRequest::argv(["true"])).await.unwrap().termination.is_success());
    let after = new.open(before.id()).await.unwrap();
    after.control().unwrap().fence().await.unwrap();

    fenced(before.execute(ExecRequest::shell("echo ran > proof")).await);
    fenced(before.execs().unwrap().start(ExecRequest::shell("echo ran > proof")).await);
    fenced(before.execs().unwrap().list().await);
    let path = "proof".parse().unwrap();
    fenced(before.download(&path, UserName::User).await);
    fenced(before.files().unwrap().make_dir(&path, UserName::User).await);
    fenced(before.control().unwrap().extend(std::time::Duration::from_secs(1)).await);
    fenced(before.control().unwrap().info().await);
    fenced(before.control().unwrap().fence().await);
    fenced(before.control().unwrap().kill().await);
    fenced(old.list().await);
    fenced(before.cleanup().await);

    let plain = none.open(before.id()).await.unwrap();
    for sandbox in [&after, &plain] {
        let looked = sandbox.execute(ExecRequest::shell("[ ! -e proof ]")).await.unwrap();
        assert!(looked.termination.is_success(), "it is alive, and nothing was done: {looked:?}");
    }
    assert_eq!(plain.control().unwrap().fence().await.unwrap_err().code, ErrorCode::InvalidArgument);
    after.cleanup().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_waits_unread_when_the_fence_is_served_starts_nothing() {
    let house = House::new();
    let sandbox = house.jail().create(SandboxSpec::default()).await.unwrap();
    let monitor = house.monitor(&*sandbox);
    for (epoch, runs) in [(1, false), (2, true)] {
        // Whoever comes first is heard first; but what the second says is there before.
        let (fence, old) = (house.connect(&*sandbox), house.connect(&*sandbox));
        kill_process(monitor, Signal::STOP).unwrap();
        let request = Box::new(ExecRequest::shell("echo ran > proof"));
        say(&old, epoch, Request::Exec { request, kill_on_close: false });
        say(&fence, 2, Request::Fence);
        kill_process(monitor, Signal::CONT).unwrap();
        assert!(matches!(answer(&fence), Answer::Done));
        match answer(&old) {
            Answer::Failed(error) if !runs => assert_eq!(error.code, ErrorCode::Fenced),
            Answer::Started { .. } if runs => {}
            other => panic!("{other:?}"),
        }
        let known = sandbox.execs().unwrap().list().await.unwrap();
        assert_eq!(known.len(), usize::from(runs), "{known:?}");
    }
    sandbox.cleanup().await.unwrap();
}

/// The number of a sandbox's cgroups, and one of their files wherever this host has it.
fn counter(house: &House, sandbox: &dyn Sandbox, file: &str) -> Option<String> {
    let built = std::fs::read(house.place(sandbox).join(LOCK_FILE)).unwrap();
    let slot = serde_json::from_slice::<serde_json::Value>(&built).unwrap()["slot"].as_u64()?;
    let read = |mount: &str| std::fs::read_to_string(format!("{mount}/belljar/{slot}/box/{file}")).ok();
    ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"].into_iter().find_map(read)
}

fn usage_usec(text: &str) -> u64 {
    text.lines().find_map(|line| line.strip_prefix("usage_usec ")).unwrap().parse().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn what_executions_and_files_used_is_what_the_sandbox_used() {
    let house = House::new();
    let sandbox = house.jail().create(SandboxSpec::default()).await.unwrap();
    let (execs, control) = (sandbox.execs().unwrap(), sandbox.control().unwrap());
    let path = |name: &str| name.parse::<FilePath>().unwrap();
    let mut parts = 0;
    for round in 0..4 {
        let content: Vec<Result<bytes::Bytes>> =
            (0..16).map(|_| Ok(bytes::Bytes::from(vec![round; 65536]))).collect();
        let content = Box::pin(futures_util::stream::iter(content));
        sandbox.upload(&path(&format!("file-{round}")), UserName::User, content).await.unwrap();
        // Several at a time, one that leaves something behind, one that fails.
        let lines = [
            "i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done",
            "cat file-* | sha256sum; (true) &",
            "exit 3",
        ];
        let runs = lines.map(|line| sandbox.execute(ExecRequest::shell(line)));
        for result in futures_util::future::join_all(runs).await {
            let result = result.unwrap();
            let ending = execs.wait(result.exec).await.unwrap();
            assert_eq!(ending.usage, result.usage, "there is one truth about it");
            parts += ending.usage.cpu_us.unwrap();
        }
        let stats = control.stats().await.unwrap();
        assert_eq!(parts + stats.besides_cpu_us.unwrap(), stats.cpu_us.unwrap(), "round {round}: {stats:?}");
    }
    assert_eq!(execs.list().await.unwrap().len(), 12);
    assert!(execs.start(ExecRequest::argv(["no-such-command"])).await.is_err());

    // With nothing left inside the counters stand still, and what we are told is what they say.
    let until = std::time::Instant::now() + std::time::Duration::from_secs(60);
    let stats = loop {
        assert!(std::time::Instant::now() < until, "something is left inside");
        let (before, stats) = (counter(&house, &*sandbox, "cpu.stat"), control.stats().await.unwrap());
        if stats.processes == Some(0) && counter(&house, &*sandbox, "cpu.stat") == before {
            if let Some(text) = &before {
                assert_eq!(stats.cpu_us, Some(usage_usec(text)));
            }
            break stats;
        }
    };
    if let Some(files) = counter(&house, &*sandbox, "files/cpu.stat") {
        assert!(usage_usec(&files) > 0 && stats.besides_cpu_us.unwrap() >= usage_usec(&files), "{stats:?}");
    }
    assert!(stats.memory_byte_seconds.is_some() && stats.disk_byte_seconds.is_some(), "{stats:?}");

    // What it had used can be had when it is over.
    let running = execs.start(ExecRequest::shell("echo ready; while :; do :; done")).await.unwrap();
    while !matches!(running.next().await.unwrap(), Some(ExecEvent::Output { .. })) {}
    control.kill().await.unwrap();
    let last = control.info().await.unwrap().stats.expect("the monitor left word");
    assert_eq!(parts + last.besides_cpu_us.unwrap(), last.cpu_us.unwrap());
    assert!(last.cpu_us > stats.cpu_us && last.memory_byte_seconds >= stats.memory_byte_seconds, "{last:?}");
    assert_eq!(last.executions, 0);
    sandbox.cleanup().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn memory_counts_for_as_long_as_it_is_held() {
    let house = House::new();
    let sandbox = house.jail().create(SandboxSpec::default()).await.unwrap();
    let control = sandbox.control().unwrap();
    let hold = "import time; held = bytearray(64 << 20); print('held', flush=True); time.sleep(600)";
    let request = ExecRequest::argv(["python3", "-c", hold]);
    let running = sandbox.execs().unwrap().start(request).await.unwrap();
    while !matches!(running.next().await.unwrap(), Some(ExecEvent::Output { .. })) {}
    let (begin, from) = (control.stats().await.unwrap(), std::time::Instant::now());
    tokio::time::sleep(std::time::Duration::from_millis(2500)).await;
    let least = from.elapsed();
    let end = control.stats().await.unwrap();
    let counted = end.memory_byte_seconds.unwrap() - begin.memory_byte_seconds.unwrap();
    // All that time at least that much was held; whatever else the sandbox holds comes on top.
    let held = (64u128 << 20) * least.as_micros() / 1_000_000;
    assert!(u128::from(counted) >= held, "{counted} of at least {held}");
    sandbox.cleanup().await.unwrap();
}
