//! Files in a jail. Every operation is done by the guest, as a user of the sandbox and in its own view.

use std::pin::Pin;

use async_trait::async_trait;
use belljar_core::wire::{Event, FileOperation, FileRequest};
use belljar_core::{ByteStream, Entry, Error, ErrorCode, FilePath, Files, Result, UserName, WatchEvent};
use belljar_jail::control::{Answer, Request};
use bytes::Bytes;
use futures_core::Stream;
use futures_util::{StreamExt, stream};

use super::connection::{self, Incoming, Receiver, Sender, Way};
use super::execs::unexpected;

/// How many entries a listing may have before it is refused, so that what is inside cannot fill our memory.
const MAX_ENTRIES: usize = 100_000;

/// The same for the bytes of their names.
const MAX_LISTING: usize = 32 << 20;

fn entry_bytes(entry: &Entry) -> usize {
    entry.name.len() + entry.path.len() + entry.target.as_ref().map_or(0, String::len)
}

/// The files of one sandbox.
#[derive(Debug)]
pub(super) struct JailFiles {
    pub(super) way: Way,
}

/// Writes a file from a stream of bytes.
pub(super) async fn upload(way: &Way, path: &FilePath, user: UserName, content: ByteStream) -> Result<u64> {
    let operation = FileOperation::Write { path: path.clone(), mode: 0o644 };
    send(way, user, operation, content).await
}

/// Reads a file as a stream of bytes.
pub(super) async fn download(way: &Way, path: &FilePath, user: UserName) -> Result<ByteStream> {
    receive(way, user, FileOperation::Read { path: path.clone() }).await
}

async fn begin(way: &Way, user: UserName, operation: FileOperation) -> Result<(Sender, Receiver)> {
    way.open(Request::File(FileRequest { user, operation })).await
}

async fn next_event(receiver: &mut Receiver) -> Result<Event> {
    match receiver.next().await? {
        Some(Incoming::Answer(Answer::Guest(Event::Failed(error)) | Answer::Failed(error))) => Err(error),
        Some(Incoming::Answer(Answer::Guest(event))) => Ok(event),
        Some(Incoming::Answer(other)) => Err(unexpected(&other)),
        Some(Incoming::Data { .. }) => Err(Error::new(ErrorCode::Internal, "data where none was expected")),
        None => Err(connection::lost()),
    }
}

/// Why feeding an operation came to an end before the content did.
enum Stopped {
    BySource(Error),
    ByMonitor,
}

/// Feeds an operation and waits for its end, which may come before all was fed.
async fn send(way: &Way, user: UserName, operation: FileOperation, mut content: ByteStream) -> Result<u64> {
    let (mut sender, mut receiver) = begin(way, user, operation).await?;
    let mut sent = 0;
    let feed = async {
        while let Some(piece) = content.next().await {
            let piece = piece.map_err(Stopped::BySource)?;
            // An empty piece would mean the end.
            if !piece.is_empty() {
                sender.send_input(&piece).await.map_err(|_| Stopped::ByMonitor)?;
                sent += piece.len() as u64;
            }
        }
        sender.send_input(&[]).await.map_err(|_| Stopped::ByMonitor)
    };
    let outcome = tokio::select! {
        biased;
        event = next_event(&mut receiver) => event,
        fed = feed => match fed {
            Err(Stopped::BySource(error)) => Err(error),
            // A monitor that closed has said why.
            Ok(()) | Err(Stopped::ByMonitor) => next_event(&mut receiver).await,
        },
    };
    outcome.map(|_| sent)
}

/// The bytes an operation sends. An error that comes first is told at once, a later one ends the stream.
async fn receive(way: &Way, user: UserName, operation: FileOperation) -> Result<ByteStream> {
    let (sender, mut receiver) = begin(way, user, operation).await?;
    let first = next_piece(&mut receiver).await?;
    let rest = stream::unfold(Some((sender, receiver)), |state| async {
        let (sender, mut receiver) = state?;
        match next_piece(&mut receiver).await {
            Ok(Some(piece)) => Some((Ok(piece), Some((sender, receiver)))),
            Ok(None) => None,
            Err(error) => Some((Err(error), None)),
        }
    });
    match first {
        Some(piece) => Ok(Box::pin(stream::iter([Ok(piece)]).chain(rest))),
        None => Ok(Box::pin(stream::empty())),
    }
}

async fn next_piece(receiver: &mut Receiver) -> Result<Option<Bytes>> {
    loop {
        match receiver.next().await? {
            Some(Incoming::Data { bytes, .. }) if bytes.is_empty() => {}
            Some(Incoming::Data { bytes, .. }) => return Ok(Some(bytes.into())),
            Some(Incoming::Answer(Answer::Guest(Event::Done))) => return Ok(None),
            Some(Incoming::Answer(Answer::Guest(Event::Failed(error)) | Answer::Failed(error))) => {
                return Err(error);
            }
            Some(Incoming::Answer(other)) => return Err(unexpected(&other)),
            None => return Err(connection::lost()),
        }
    }
}

impl JailFiles {
    async fn simple(&self, user: UserName, operation: FileOperation) -> Result<Event> {
        let (_sender, mut receiver) = begin(&self.way, user, operation).await?;
        next_event(&mut receiver).await
    }
}

fn misplaced(event: &Event) -> Error {
    unexpected(&Answer::Guest(event.clone()))
}

#[async_trait]
impl Files for JailFiles {
    async fn stat(&self, path: &FilePath, user: UserName) -> Result<Entry> {
        match self.simple(user, FileOperation::Stat { path: path.clone() }).await? {
            Event::Entries(mut entries) if entries.len() == 1 => Ok(entries.remove(0)),
            other => Err(misplaced(&other)),
        }
    }

    async fn list(&self, path: &FilePath, user: UserName, depth: u32) -> Result<Vec<Entry>> {
        let operation = FileOperation::List { path: path.clone(), depth };
        let (_sender, mut receiver) = begin(&self.way, user, operation).await?;
        let (mut entries, mut bytes) = (Vec::new(), 0);
        loop {
            match next_event(&mut receiver).await? {
                Event::Entries(more) => {
                    bytes += more.iter().map(entry_bytes).sum::<usize>();
                    entries.extend(more);
                }
                Event::Done => return Ok(entries),
                other => return Err(misplaced(&other)),
            }
            if entries.len() > MAX_ENTRIES || bytes > MAX_LISTING {
                return Err(Error::new(
                    ErrorCode::ResourceExhausted,
                    format!(
                        "`{path}` has more than {MAX_ENTRIES} entries, or names longer than a listing holds"
                    ),
                )
                .hint("list a smaller directory, or less deep"));
            }
        }
    }

    async fn make_dir(&self, path: &FilePath, user: UserName) -> Result<bool> {
        match self.simple(user, FileOperation::MakeDir { path: path.clone() }).await? {
            Event::Made { new } => Ok(new),
            other => Err(misplaced(&other)),
        }
    }

    async fn rename(&self, from: &FilePath, to: &FilePath, user: UserName) -> Result<()> {
        let operation = FileOperation::Rename { from: from.clone(), to: to.clone() };
        self.simple(user, operation).await.map(drop)
    }

    async fn remove(&self, path: &FilePath, user: UserName) -> Result<()> {
        self.simple(user, FileOperation::Remove { path: path.clone() }).await.map(drop)
    }

    async fn unpack(&self, path: &FilePath, user: UserName, tar: ByteStream) -> Result<()> {
        send(&self.way, user, FileOperation::Unpack { path: path.clone() }, tar).await.map(drop)
    }

    async fn pack(&self, path: &FilePath, user: UserName) -> Result<ByteStream> {
        receive(&self.way, user, FileOperation::Pack { path: path.clone() }).await
    }

    async fn watch(
        &self,
        path: &FilePath,
        user: UserName,
    ) -> Result<Pin<Box<dyn Stream<Item = Result<WatchEvent>> + Send>>> {
        let operation = FileOperation::Watch { path: path.clone() };
        let (sender, mut receiver) = begin(&self.way, user, operation).await?;
        match next_event(&mut receiver).await? {
            Event::Done => {}
            other => return Err(misplaced(&other)),
        }
        let changes = stream::unfold(Some((sender, receiver)), |state| async {
            let (sender, mut receiver) = state?;
            match next_event(&mut receiver).await {
                Ok(Event::Changed(changes)) => {
                    let changes: Vec<_> = changes.into_iter().map(Ok).collect();
                    Some((changes, Some((sender, receiver))))
                }
                Ok(other) => Some((vec![Err(misplaced(&other))], None)),
                Err(error) => Some((vec![Err(error)], None)),
            }
        });
        Ok(Box::pin(changes.flat_map(stream::iter)))
    }
}
