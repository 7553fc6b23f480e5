//! The door as the rest of Belljar sees it.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use async_trait::async_trait;
use belljar_core::{
    Authority, Denial, Door, Error, ErrorCode, ExecId, Grant, Issued, Recording, Result, SandboxId,
};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;
use tokio::sync::Mutex;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::message::{Answer, Ask};
use super::{SOCKET_FILE, place};
use crate::gateway;
use crate::recording::shelf;

/// How long the door may take to open, and to answer.
const PATIENCE: Duration = Duration::from_secs(15);
/// How often it is tried while it opens.
const PAUSE: Duration = Duration::from_millis(5);
/// How long it stays closed before it is opened again, when nobody asks.
const REOPENING: Duration = Duration::from_millis(100);
/// Connections that are kept for the next question.
const KEPT: usize = 4;

/// Opens the door: starts a process that keeps it.
pub type Opener = Box<dyn Fn() -> io::Result<()> + Send + Sync>;

/// Asks the door of a data directory, and opens it where there is none. From the first question on, and for as long as this
/// lives, it is opened again when it dies: it finds the sandboxes by itself.
pub struct Client {
    place: Arc<Place>,
    idle: Mutex<Vec<BufReader<UnixStream>>>,
    keeper: OnceLock<JoinHandle<()>>,
}

struct Place {
    home: PathBuf,
    open: Opener,
}

impl Drop for Client {
    fn drop(&mut self) {
        if let Some(keeper) = self.keeper.get() {
            keeper.abort();
        }
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Client").field("home", &self.place.home).finish_non_exhaustive()
    }
}

impl Client {
    /// A client of the door of this data directory.
    pub fn new(home: &Path, open: Opener) -> Self {
        let place = Arc::new(Place { home: home.to_owned(), open });
        Self { place, idle: Mutex::default(), keeper: OnceLock::new() }
    }

    async fn ask(&self, ask: &Ask) -> Result<Answer> {
        let asked = async {
            // A connection from before may be of a door that is gone.
            let kept = self.idle.lock().await.pop();
            if let Some(kept) = kept
                && let Ok(answer) = self.ask_on(kept, ask).await
            {
                return Ok(answer);
            }
            loop {
                let connection = self.place.connect().await?;
                match self.ask_on(connection, ask).await {
                    Ok(answer) => return Ok(answer),
                    // It may have closed just now, and another will be opened.
                    Err(_) => tokio::time::sleep(PAUSE).await,
                }
            }
        };
        let answer = tokio::time::timeout(PATIENCE, asked).await.unwrap_or_else(|_| Err(silent()))?;
        self.keeper.get_or_init(|| tokio::spawn(keep_open(self.place.clone())));
        match answer {
            Answer::Failed(error) => Err(error),
            answer => Ok(answer),
        }
    }

    async fn ask_on(&self, mut connection: BufReader<UnixStream>, ask: &Ask) -> io::Result<Answer> {
        let mut line = serde_json::to_vec(ask)?;
        line.push(b'\n');
        connection.write_all(&line).await?;
        let mut answer = Vec::new();
        if connection.read_until(b'\n', &mut answer).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let answer = serde_json::from_slice(&answer)?;
        let mut idle = self.idle.lock().await;
        if idle.len() < KEPT {
            idle.push(connection);
        }
        Ok(answer)
    }
}

/// Notices when the door is gone, and opens it again.
async fn keep_open(place: Arc<Place>) {
    loop {
        match place.connect().await {
            // It says nothing to those who ask nothing, until it is gone.
            Ok(mut connection) => drop(connection.read_until(b'\n', &mut Vec::new()).await),
            Err(error) => tracing::warn!(%error, "the door cannot be opened again"),
        }
        tokio::time::sleep(REOPENING).await;
    }
}

impl Place {
    async fn connect(&self) -> Result<BufReader<UnixStream>> {
        let mut opened: Option<Instant> = None;
        loop {
            match place::connect(&self.home, SOCKET_FILE).await {
                Ok(socket) => return Ok(BufReader::new(socket)),
                Err(error) if absent(&error) => {
                    // One that is opened twice notices, and leaves it to the other. It may have been on its way out.
                    if opened.is_none_or(|at| at.elapsed() > Duration::from_secs(2)) {
                        opened = Some(Instant::now());
                        (self.open)().map_err(|error| {
                            Error::new(ErrorCode::Internal, format!("cannot open the door: {error}"))
                        })?;
                    }
                    tokio::time::sleep(PAUSE).await;
                }
                Err(error) => {
                    return Err(Error::new(ErrorCode::Internal, format!("cannot reach the door: {error}")));
                }
            }
        }
    }
}

fn absent(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused)
}

fn silent() -> Error {
    Error::new(ErrorCode::Unavailable, "the door does not answer")
        .hint("see `door.log` in the data directory")
        .retry_after(Duration::from_secs(1))
}

fn surprise() -> Error {
    Error::new(ErrorCode::Version, "the door answered something else than was asked").hint(
        "a door of another version may serve this data directory; it closes when its last sandbox has ended",
    )
}

#[async_trait]
impl Door for Client {
    async fn see_to(&self, sandbox: &SandboxId) -> Result<()> {
        match self.ask(&Ask::SeeTo { sandbox: sandbox.clone() }).await? {
            Answer::Done => Ok(()),
            _ => Err(surprise()),
        }
    }

    async fn issue(&self, grant: &Grant) -> Result<Issued> {
        let home = self.place.home.clone();
        let grant = grant.clone();
        let issued = tokio::task::spawn_blocking(move || gateway::issue::issue(&home, &grant)).await;
        issued.unwrap_or_else(|error| Err(Error::new(ErrorCode::Internal, error.to_string())))
    }

    fn authority(&self, sandbox: &SandboxId) -> Result<Authority> {
        crate::authority::create(sandbox).map_err(|error| {
            Error::new(ErrorCode::Internal, format!("cannot make a certificate authority: {error}"))
        })
    }

    async fn recording(&self, recording: &Recording) -> Result<BTreeMap<String, String>> {
        let (home, recording) = (self.place.home.clone(), recording.clone());
        let found = tokio::task::spawn_blocking(move || shelf::prepare(&home, &recording)).await;
        found.unwrap_or_else(|error| Err(Error::new(ErrorCode::Internal, error.to_string())))
    }

    async fn denials(&self, sandbox: &SandboxId, exec: ExecId) -> Result<Vec<Denial>> {
        match self.ask(&Ask::Denials { sandbox: sandbox.clone(), exec }).await? {
            Answer::Denials(denials) => Ok(denials),
            _ => Err(surprise()),
        }
    }
}
