//! What is remembered, and where.
//!
//! The log is the truth. Whatever happens to a session is appended to its log, and in the same transaction the tables
//! that are asked quickly (sessions, executions, what each tenant used) are brought up to date from it; a crash leaves
//! both or neither.

#[cfg(test)]
mod conformance;
mod fold;
mod sqlite;

use std::path::Path;

use async_trait::async_trait;
use belljar_core::{ExecId, ExecRequest, SandboxId, Termination};
use serde::{Deserialize, Serialize};

pub use self::sqlite::Sqlite;
use crate::event::{Event, Happening};
use crate::meter::Meter;
use crate::session::{Impossible, Session, SessionRequest, SessionState, Tenant};

/// Why something could not be remembered or recalled.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// A newer engine has taken over.
    #[error("engine {ours} was replaced by engine {theirs}")]
    Fenced {
        /// Our number.
        ours: u64,
        /// The number of the one that writes now.
        theirs: u64,
    },
    /// There is no such session.
    #[error("no session `{0}`")]
    NoSession(SandboxId),
    /// There is one of that name.
    #[error("there is a sandbox `{0}` already")]
    Taken(SandboxId),
    /// What was to be written makes no sense where the session is.
    #[error(transparent)]
    Impossible(#[from] Impossible),
    /// What was to be written makes no sense for an execution or a transfer.
    #[error("{0}")]
    Inconsistent(String),
    /// There is no room for it.
    #[error("no room on the disk")]
    Full,
    /// Someone else holds the database.
    #[error("the database is locked by somebody else")]
    Busy,
    /// It was written by a newer Belljar.
    #[error("the database has schema {found}, and this Belljar knows up to {known}")]
    Newer {
        /// What it has.
        found: i64,
        /// What we know.
        known: i64,
    },
    /// It is none of ours.
    #[error("{0}")]
    Foreign(String),
    /// The database failed otherwise.
    #[error("the database failed: {0}")]
    Database(#[source] Box<dyn std::error::Error + Send + Sync>),
}

/// The result of asking a store.
pub type Result<T, E = StoreError> = std::result::Result<T, E>;

/// What became of a request for a session.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Accepted {
    /// It is remembered from now on.
    New(Session),
    /// The same request was accepted before.
    Known(Session),
}

impl Accepted {
    /// The session, whoever it was made for.
    pub fn session(&self) -> &Session {
        let (Self::New(session) | Self::Known(session)) = self;
        session
    }
}

/// Where an execution is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ExecState {
    /// Remembered, not started.
    Accepted,
    /// It runs.
    Running,
    /// It ended, or how it ended will never be known.
    Finished,
    /// It could not be started.
    Refused,
    /// The engine was killed before it could start it.
    Interrupted,
}

impl ExecState {
    /// Whether nothing more will happen to it.
    pub fn is_over(self) -> bool {
        matches!(self, Self::Finished | Self::Refused | Self::Interrupted)
    }
}

/// What is remembered of an execution.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Execution {
    /// Its number in the session; counts from 1.
    pub exec: u64,
    /// Where it is.
    pub state: ExecState,
    /// What was asked for.
    pub request: ExecRequest,
    /// Its number in the sandbox, once it runs.
    pub inside: Option<ExecId>,
    /// How it ended.
    pub termination: Option<Termination>,
    /// How long it ran, in microseconds.
    pub duration_us: Option<u64>,
    /// What it used.
    pub meter: Option<Meter>,
    /// Why it could not be started.
    pub error: Option<belljar_core::Error>,
}

/// Which sessions to list.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Query {
    /// Of this tenant.
    pub tenant: Option<Tenant>,
    /// In one of these states; empty means all.
    #[serde(default)]
    pub states: Vec<String>,
    /// With all of these labels.
    #[serde(default)]
    pub labels: std::collections::BTreeMap<String, String>,
    /// Where the last page ended.
    pub cursor: Option<u64>,
    /// How many at most; there are fewer where they are large.
    pub limit: u32,
}

/// Some of the sessions that were asked for, the newest first.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Page {
    /// They.
    pub sessions: Vec<Session>,
    /// Where the next page begins; `None` if this was the last.
    pub cursor: Option<u64>,
}

/// What is kept of what is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retention {
    /// What ended before this time, in milliseconds since 1970, need not be kept.
    pub ended_before_ms: u64,
    /// No more than this many ended sessions are kept, the newest.
    pub most: u32,
}

/// Remembers sessions. Calls may be made from several tasks at once; each is atomic.
#[async_trait]
pub trait Store: Send + Sync {
    /// Makes us the one engine that writes: the answer is higher than every number before and than `above`, and whoever
    /// has a lower one is refused from now on.
    async fn take_over(&self, above: u64) -> Result<u64>;

    /// Accepts a session, or finds the one that was accepted for the same key of the same tenant. One that ended before
    /// any caller was told that it runs makes room for a new one.
    async fn accept(&self, epoch: u64, session: &Session) -> Result<Accepted>;

    /// Appends what happened just now to a session's log: all of it or nothing. The answer has the numbers that it got.
    async fn append(
        &self,
        epoch: u64,
        session: &SandboxId,
        what: &[Happening],
        now_ms: u64,
    ) -> Result<Vec<Event>>;

    /// A session.
    async fn session(&self, id: &SandboxId) -> Result<Option<Session>>;

    /// Some sessions.
    async fn sessions(&self, query: &Query) -> Result<Page>;

    /// All sessions that have not ended, the oldest first.
    async fn alive(&self) -> Result<Vec<Session>>;

    /// The executions of a session, the oldest first.
    async fn executions(&self, session: &SandboxId) -> Result<Vec<Execution>>;

    /// Transfers that began and are not over.
    async fn open_transfers(&self, session: &SandboxId) -> Result<Vec<u64>>;

    /// A session's log after this number.
    async fn events(&self, session: &SandboxId, after: u64, limit: u32) -> Result<Vec<Event>>;

    /// The number of the last entry in a session's log.
    async fn last_event(&self, session: &SandboxId) -> Result<Option<u64>>;

    /// What a tenant's ended sessions used, all in all, those that are forgotten included.
    async fn used(&self, tenant: &Tenant) -> Result<Meter>;

    /// Ended sessions that need not be kept any longer, the oldest first; a few at a time.
    async fn forgettable(&self, retention: Retention) -> Result<Vec<SandboxId>>;

    /// Forgets ended sessions. What they used stays on their tenant's account.
    async fn forget(&self, epoch: u64, sessions: &[SandboxId]) -> Result<()>;

    /// Writes a copy that can be restored from, while everything goes on.
    async fn backup(&self, to: &Path) -> Result<()>;

    /// How many bytes it takes on disk.
    async fn size(&self) -> Result<u64>;
}

/// A session as it is first remembered.
pub fn accepted(
    id: SandboxId,
    provider: belljar_core::ProviderName,
    request: SessionRequest,
    now_ms: u64,
) -> Session {
    Session {
        id,
        provider,
        state: SessionState::Queued,
        request,
        created_ms: now_ms,
        ended_ms: None,
        error: None,
        meter: None,
    }
}
