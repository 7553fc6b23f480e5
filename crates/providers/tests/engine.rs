//! What an engine relies on in jails: that it can take them over from one that was there before, for good.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;

use belljar_core::wire::{Decoder, Frame, MAX_CONTROL};
use belljar_core::{ErrorCode, ExecRequest, Provider, Result, Sandbox, SandboxSpec, UserName};
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
