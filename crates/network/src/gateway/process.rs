//! The process that holds the keys. It hears a supervisor, and callers whom the door's worker brings.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use belljar_core::{Call, SandboxId};
use tokio::net::UnixStream;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;

use super::config::{self, Config};
use super::customer::locked;
use super::message::{Order, Visit, Word};
use super::service::{Gateway, Ledger};
use super::upstream::Client;
use crate::channel::Channel;

/// Reads the configuration of a data directory.
pub fn configuration(home: &Path) -> Result<Config, String> {
    let path = home.join(config::FILE);
    let mut text = String::new();
    let read = File::open(&path).and_then(|file| file.take(config::MAX_SIZE + 1).read_to_string(&mut text));
    read.map_err(|error| format!("{}: {error}", path.display()))?;
    if text.len() as u64 > config::MAX_SIZE {
        return Err(format!("{} has more than {} bytes", path.display(), config::MAX_SIZE));
    }
    Config::read(&text).map_err(|errors| format!("{}: {errors}", path.display()))
}

/// Gets the keys, gives up all rights, and works until the supervisor is gone, to which `channel` leads. The process must be of
/// one thread.
pub fn run(home: &Path, channel: OwnedFd) -> io::Result<()> {
    let config = configuration(home).map_err(io::Error::other)?;
    let client = Client::new();
    let (words, said) = mpsc::unbounded_channel();
    let ledger =
        Arc::new(Told { words: words.clone(), waiting: Mutex::default(), serial: AtomicU64::new(0) });
    let gateway = Arc::new(Gateway::new(config, client, ledger.clone()));
    for (name, wrong) in gateway.missing() {
        tracing::warn!(secret = name, wrong, "a key is missing");
    }
    belljar_jail::rights::confine_gateway()?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .max_blocking_threads(64)
        .build()?;
    let worked = runtime.block_on(work((gateway, ledger), channel, (words, said)));
    runtime.shutdown_background();
    worked
}

/// Tells the supervisor of calls.
struct Told {
    words: mpsc::UnboundedSender<Word>,
    /// Calls that have not begun before that is written down.
    waiting: Mutex<HashMap<u64, oneshot::Sender<bool>>>,
    serial: AtomicU64,
}

impl Told {
    fn noted(&self, serial: u64, is_written: bool) {
        if let Some(waiting) = locked(&self.waiting).remove(&serial) {
            // Whoever asked may be gone.
            let _ = waiting.send(is_written);
        }
    }
}

#[async_trait]
impl Ledger for Told {
    async fn began(&self, sandbox: &SandboxId, call: Call) -> bool {
        let serial = self.serial.fetch_add(1, Ordering::Relaxed);
        let (noted, written) = oneshot::channel();
        locked(&self.waiting).insert(serial, noted);
        let word = Word::Began { sandbox: sandbox.clone(), call: Box::new(call), serial };
        self.words.send(word).is_ok() && written.await.unwrap_or(false)
    }

    fn ended(&self, sandbox: &SandboxId, call: Call) {
        // Nobody hears it once the supervisor is gone.
        drop(self.words.send(Word::Called { sandbox: sandbox.clone(), call: Box::new(call) }));
    }
}

async fn work(
    (gateway, told): (Arc<Gateway>, Arc<Told>),
    channel: OwnedFd,
    (words, mut said): (mpsc::UnboundedSender<Word>, mpsc::UnboundedReceiver<Word>),
) -> io::Result<()> {
    let channel = Channel::new(channel)?;
    let mut reception: Option<JoinHandle<()>> = None;
    loop {
        tokio::select! {
            order = channel.receive::<Order>() => match order? {
                None => return Ok(()),
                Some((Order::Introduce { sandbox, introduction }, _)) => gateway.introduce(sandbox, *introduction),
                Some((Order::Forget { sandbox }, _)) => gateway.forget(&sandbox),
                Some((Order::Noted { serial, is_written }, _)) => told.noted(serial, is_written),
                Some((Order::Sync { serial }, _)) => drop(words.send(Word::Done { serial })),
                Some((Order::Worker, sockets)) => {
                    if let Some(before) = reception.take() {
                        before.abort();
                    }
                    let socket = sockets.into_iter().next().ok_or(io::ErrorKind::InvalidData)?;
                    let callers = Channel::new(socket)?;
                    reception = Some(tokio::spawn(receive(gateway.clone(), callers)));
                }
            },
            Some(word) = said.recv() => channel.send(&word, &[]).await?,
        }
    }
}

/// Takes in callers until the worker that brings them is gone.
async fn receive(gateway: Arc<Gateway>, callers: Channel) {
    loop {
        let (visit, sockets) = match callers.receive::<Visit>().await {
            Ok(Some(visit)) => visit,
            Ok(None) => return,
            Err(error) => {
                tracing::warn!(%error, "the worker says what cannot be understood");
                return;
            }
        };
        for socket in sockets.into_iter().take(1) {
            let socket = std::os::unix::net::UnixStream::from(socket);
            let stream = socket.set_nonblocking(true).and_then(|()| UnixStream::from_std(socket));
            match stream {
                Ok(stream) => drop(tokio::spawn(gateway.clone().serve(visit.clone(), stream))),
                Err(error) => tracing::warn!(%error, "cannot take in a caller"),
            }
        }
    }
}
