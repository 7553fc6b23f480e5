//! The executions of a sandbox that has ended: what its monitor left on disk.

use std::path::Path;
use std::time::Duration;

use async_trait::async_trait;
use belljar_core::{Ending, Error, ErrorCode, ExecEvent, ExecHandle, ExecId, ExecInfo, Position, Result};
use belljar_jail::control::{Remembered, SPOOL_DIR};
use belljar_jail::spool::{Piece, Reader, Spool};
use bytes::Bytes;
use rustix::fs::{Mode, OFlags, open};
use tokio::sync::{Mutex, mpsc};

use super::connection;
use super::network::JailNetwork;
use super::record;
use super::sandbox::blocking;

/// How many pieces are read ahead of a reader.
const AHEAD: usize = 4;

/// All that are known.
pub(super) async fn list(state_dir: &Path) -> Result<Vec<ExecInfo>> {
    Ok(executions(state_dir).await?.into_iter().map(|one| one.info).collect())
}

/// How one ended.
pub(super) async fn wait(state_dir: &Path, exec: ExecId) -> Result<Ending> {
    Ok(find(state_dir, exec).await?.ending)
}

/// Its output as far as it was kept, and its end.
pub(super) async fn attach(
    state_dir: &Path,
    network: Option<JailNetwork>,
    exec: ExecId,
    from: Position,
) -> Result<Box<dyn ExecHandle>> {
    let execution = find(state_dir, exec).await?;
    let end = execution.end;
    let directory = state_dir.join(SPOOL_DIR);
    let found = blocking(move || {
        let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let parent = open(&directory, flags, Mode::empty()).map_err(|error| unreadable(&error.into()))?;
        let spool = Spool::of_ended(parent, &exec.to_string(), end).map_err(|error| unreadable(&error))?;
        Ok(spool.reader_from(from).map(|reader| (spool, reader)))
    });
    let (spool, reader) = found.await?.ok_or_else(|| from.beyond(end))?;
    let (sender, receiver) = mpsc::channel(AHEAD);
    tokio::spawn(read(execution, network, spool, reader, sender));
    Ok(Box::new(Afterwards(Mutex::new(receiver))))
}

async fn executions(state_dir: &Path) -> Result<Vec<Remembered>> {
    let state_dir = state_dir.to_owned();
    blocking(move || record::executions(&state_dir).ok_or_else(connection::gone)).await
}

async fn find(state_dir: &Path, exec: ExecId) -> Result<Remembered> {
    let mut known = executions(state_dir).await?.into_iter();
    known.find(|one| one.info.exec == exec).ok_or_else(|| belljar_jail::control::no_such_execution(exec))
}

type News = Result<ExecEvent>;

/// Tells everything there is to tell of an execution, until nobody listens.
async fn read(
    execution: Remembered,
    network: Option<JailNetwork>,
    mut spool: Spool,
    mut reader: Reader,
    listener: mpsc::Sender<News>,
) {
    let start = Duration::from_micros(execution.start_us);
    let mut event = Ok(ExecEvent::Started { exec: execution.info.exec, start });
    loop {
        let over = !matches!(
            event,
            Ok(ExecEvent::Started { .. } | ExecEvent::Output { .. } | ExecEvent::Gap { .. })
        );
        if listener.send(event).await.is_err() || over {
            return;
        }
        let next = blocking(move || {
            let piece = reader.next(&spool).map_err(|error| unreadable(&error));
            Ok((spool, reader, piece))
        });
        let Ok((same_spool, same_reader, piece)) = next.await else { return };
        (spool, reader) = (same_spool, same_reader);
        if let (Ok(None), Some(network)) = (&piece, &network) {
            let denied = network.denials(execution.info.exec).await;
            if !denied.is_empty() && listener.send(Ok(ExecEvent::Denied(denied))).await.is_err() {
                return;
            }
        }
        let Ending { termination, usage, duration, oom_kills } = execution.ending;
        event = piece.map(|piece| match piece {
            Some(Piece::Bytes(stream, bytes)) => ExecEvent::Output { stream, bytes: bytes.into() },
            Some(Piece::Gap(stream, bytes)) => ExecEvent::Gap { stream, bytes },
            None => ExecEvent::Finished { termination, usage, duration, oom_kills },
        });
    }
}

struct Afterwards(Mutex<mpsc::Receiver<News>>);

#[async_trait]
impl ExecHandle for Afterwards {
    async fn next(&self) -> Result<Option<ExecEvent>> {
        self.0.lock().await.recv().await.transpose()
    }

    async fn write(&self, _: Bytes) -> Result<()> {
        Err(connection::gone())
    }
}

fn unreadable(error: &std::io::Error) -> Error {
    Error::new(ErrorCode::Internal, format!("cannot read kept output: {error}"))
}
