//! The gateway's post: whoever keeps the door starts a gateway once somebody needs one, and another when that dies.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use belljar_core::{Call, Error, ErrorCode, Result, SandboxId};
use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;

use super::supervisor::Start;
use crate::channel::{self, Channel};
use crate::gateway::message::{Order, Word};

/// How long a gateway may take to be ready: it may have to ask programs for keys.
const PATIENCE: Duration = Duration::from_secs(30);
/// One that lives shorter than this is not replaced at once.
const SHORT_LIFE: Duration = Duration::from_secs(1);
/// The longest pause before another is started.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// Where a gateway is, or will be.
pub(super) struct Post {
    state: Mutex<State>,
    needed: Notify,
    /// There is another gateway, or another worker.
    fresh: Notify,
}

#[derive(Default)]
struct State {
    is_needed: bool,
    gateway: Option<Arc<Channel>>,
    worker: Option<Arc<Channel>>,
    waiting: HashMap<u64, oneshot::Sender<()>>,
    serial: u64,
}

/// What a gateway must know, when it comes: the orders about all sandboxes; and who hears of calls.
pub(super) trait Books: Send + Sync + 'static {
    fn introductions(&self) -> Vec<Order>;
    /// A call begins: whether that is written down.
    fn began(&self, sandbox: &SandboxId, call: Call) -> bool;
    fn called(&self, sandbox: &SandboxId, call: Call);
    /// The gateway is gone, and whatever it was doing with it.
    fn gone(&self);
}

impl Post {
    pub(super) fn new() -> Self {
        Self { state: Mutex::default(), needed: Notify::new(), fresh: Notify::new() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has a gateway be there from now on.
    pub(super) fn need(&self) {
        self.state().is_needed = true;
        self.needed.notify_one();
    }

    /// There is another worker: it is brought together with the gateway.
    pub(super) async fn worker(&self, worker: Arc<Channel>) {
        self.state().worker = Some(worker);
        self.bring_together().await;
    }

    async fn bring_together(&self) {
        let (gateway, worker) = {
            let state = self.state();
            match (&state.gateway, &state.worker) {
                (Some(gateway), Some(worker)) => (gateway.clone(), worker.clone()),
                _ => return,
            }
        };
        let told = async {
            let (one, other) = channel::pair()?;
            gateway.send(&Order::Worker, &[one.as_fd()]).await?;
            worker.send(&super::message::Order::Gateway, &[other.as_fd()]).await
        };
        if let Err(error) = told.await {
            // Whichever is gone will be replaced, and they are brought together then.
            tracing::debug!(%error, "the gateway and the worker did not meet");
        }
    }

    /// Has a gateway be there and know what it is told, from now on.
    pub(super) async fn tell(&self, order: Order) -> Result<()> {
        self.need();
        let told = async {
            loop {
                let fresh = self.fresh.notified();
                let (gateway, serial, done) = {
                    let mut state = self.state();
                    state.serial += 1;
                    let serial = state.serial;
                    let (said, done) = oneshot::channel();
                    state.waiting.insert(serial, said);
                    (state.gateway.clone(), serial, done)
                };
                if let Some(gateway) = gateway
                    && gateway.send(&order, &[]).await.is_ok()
                    && gateway.send(&Order::Sync { serial }, &[]).await.is_ok()
                    && done.await.is_ok()
                {
                    return;
                }
                // The next one is told everything anyhow.
                fresh.await;
            }
        };
        tokio::time::timeout(PATIENCE, told).await.map_err(|_| {
            Error::new(ErrorCode::Unavailable, "the gateway does not come to work")
                .hint("`belljar gateway check` tries its configuration; see `door.log` in the data directory")
        })
    }

    /// The same where it does not matter whether there is one.
    pub(super) async fn mention(&self, order: Order) {
        let gateway = self.state().gateway.clone();
        if let Some(gateway) = gateway {
            let _ = gateway.send(&order, &[]).await;
        }
    }

    /// Keeps a gateway at work from the moment that somebody needs one, for ever.
    pub(super) async fn keep(self: Arc<Self>, start: Start, books: Arc<dyn Books>) {
        let mut pause = Duration::ZERO;
        loop {
            while !self.state().is_needed {
                self.needed.notified().await;
            }
            let began = Instant::now();
            if let Err(error) = self.employ(&start, &books).await {
                tracing::warn!(%error, "the gateway is gone");
            }
            {
                let mut state = self.state();
                state.gateway = None;
                state.waiting.clear();
            }
            self.fresh.notify_waiters();
            pause = if began.elapsed() > SHORT_LIFE {
                Duration::ZERO
            } else {
                (pause * 2).clamp(Duration::from_millis(20), LONGEST_PAUSE)
            };
            tokio::time::sleep(pause).await;
        }
    }

    /// One gateway, from its start to its end.
    async fn employ(&self, start: &Start, books: &Arc<dyn Books>) -> io::Result<()> {
        let (ours, theirs): (OwnedFd, OwnedFd) = channel::pair()?;
        let mut child = start(theirs)?;
        let channel = Arc::new(Channel::new(ours)?);
        let tell = async {
            for order in books.introductions() {
                channel.send(&order, &[]).await?;
            }
            self.state().gateway = Some(channel.clone());
            self.bring_together().await;
            self.fresh.notify_waiters();
            io::Result::Ok(())
        };
        let hear = async {
            while let Some(word) = channel.receive_word::<Word>().await? {
                match word {
                    Word::Began { sandbox, call, serial } => {
                        let is_written = books.began(&sandbox, *call);
                        channel.send(&Order::Noted { serial, is_written }, &[]).await?;
                    }
                    Word::Called { sandbox, call } => books.called(&sandbox, *call),
                    Word::Done { serial } => {
                        if let Some(waiting) = self.state().waiting.remove(&serial) {
                            let _ = waiting.send(());
                        }
                    }
                }
            }
            Err(io::Error::from(io::ErrorKind::UnexpectedEof))
        };
        let heard = tokio::try_join!(tell, hear).map(|((), never): ((), ())| never);
        let _ = child.kill().await;
        books.gone();
        heard
    }
}
