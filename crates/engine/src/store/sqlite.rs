//! The embedded store: one SQLite file with a write-ahead log. There is one writer; readers see the last committed
//! state and neither wait for it nor hold it up.

use std::path::{Path, PathBuf};
use std::time::Duration;

use async_trait::async_trait;
use belljar_core::SandboxId;
use rustix::fs::OFlags;
use serde::Serialize;
use serde::de::DeserializeOwned;
use sqlx::sqlite::{
    SqliteAutoVacuum, SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions, SqliteSynchronous,
};
use sqlx::{AssertSqlSafe, Connection, Row, SqliteConnection, SqlitePool, SqliteTransaction};
use tokio::sync::{MappedMutexGuard, Mutex, MutexGuard};

use super::fold::{self, Effect};
use super::{Accepted, Execution, Page, Query, Result, Retention, Store, StoreError};
use crate::event::{Event, Happening, SCHEMA};
use crate::meter::Meter;
use crate::session::{EndReason, Session, Tenant};

/// What brings a database from each schema to the next. Never change one that was released: add another.
const MIGRATIONS: &[&str] = &[include_str!("sqlite.sql")];

/// How long a call waits for somebody else who holds the database.
const PATIENCE: Duration = Duration::from_secs(5);
/// How many sessions are forgotten at a time.
const BATCH: u32 = 256;
/// How many rows are looked at in one go.
const SCANNED: u32 = 1000;
/// A page that is larger than this ends early, so that it can be sent as one answer.
const PAGE_BYTES: usize = 2 * 1024 * 1024;
/// Bytes of the log that are kept for reuse.
const LOG_KEPT: &str = "8388608";
const DAY_MS: u64 = 86_400_000;

/// A store in one file.
#[derive(Debug)]
pub struct Sqlite {
    path: PathBuf,
    writer: Mutex<Writer>,
    readers: SqlitePool,
}

impl Sqlite {
    /// Opens the database, making it where it is missing and bringing an older one up to date.
    pub async fn open(path: &Path) -> Result<Self> {
        // For its owner only, as are the files that the database puts beside it.
        let mode = std::os::unix::fs::OpenOptionsExt::mode;
        mode(std::fs::OpenOptions::new().create(true).append(true), 0o600)
            .open(path)
            .map_err(|error| StoreError::Database(Box::new(error)))?;
        let plain = SqliteConnectOptions::new().filename(path).busy_timeout(PATIENCE);
        let options = plain
            .clone()
            .create_if_missing(true)
            .auto_vacuum(SqliteAutoVacuum::Incremental)
            .journal_mode(SqliteJournalMode::Wal)
            .synchronous(SqliteSynchronous::Normal)
            .foreign_keys(true)
            .pragma("journal_size_limit", LOG_KEPT);
        let mut connection = SqliteConnection::connect_with(&options).await?;
        migrate(&mut connection).await?;
        let readers = SqlitePoolOptions::new().max_connections(4).connect_lazy_with(plain.read_only(true));
        Ok(Self { path: path.to_owned(), writer: Mutex::new(Writer { options, connection }), readers })
    }

    /// Puts a copy that [`Store::backup`] made in the place of a database that nobody has open. The copy is looked at first,
    /// and what was there stays until the copy is complete.
    pub async fn restore(from: &Path, to: &Path) -> Result<()> {
        let draft = to.with_extension("restored");
        if let Err(error) = Self::copy(from, &draft).await {
            let _ = std::fs::remove_file(&draft);
            return Err(error);
        }
        for extension in ["db-wal", "db-shm"] {
            match std::fs::remove_file(to.with_extension(extension)) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(trouble(error)),
                _ => {}
            }
        }
        std::fs::File::open(&draft).and_then(|file| file.sync_all()).map_err(trouble)?;
        std::fs::rename(&draft, to).map_err(trouble)
    }

    /// Copies a database and sees that it is one of ours.
    async fn copy(from: &Path, draft: &Path) -> Result<()> {
        use std::os::unix::fs::OpenOptionsExt;
        // Not to wait for somebody to write into a pipe.
        let mut options = std::fs::OpenOptions::new();
        let mut original =
            options.read(true).custom_flags(OFlags::NONBLOCK.bits() as i32).open(from).map_err(trouble)?;
        let foreign =
            || StoreError::Foreign(format!("{} is no backup of an engine's database", from.display()));
        if !original.metadata().map_err(trouble)?.is_file() {
            return Err(foreign());
        }
        let _ = std::fs::remove_file(draft);
        std::io::copy(&mut original, &mut new_file(draft).map_err(trouble)?).map_err(trouble)?;
        let plain = SqliteConnectOptions::new().filename(draft);
        let looked = async {
            let mut connection = SqliteConnection::connect_with(&plain).await?;
            let version: i64 =
                sqlx::query("PRAGMA user_version").fetch_one(&mut connection).await?.try_get(0)?;
            let engines = sqlx::query("SELECT epoch FROM engine").fetch_all(&mut connection).await?.len();
            sqlx::query("SELECT number, id, session FROM sessions LIMIT 1")
                .fetch_all(&mut connection)
                .await?;
            connection.close().await?;
            Ok::<bool, sqlx::Error>(version >= 1 && engines == 1)
        };
        if !looked.await.unwrap_or(false) {
            return Err(foreign());
        }
        Self::open(draft).await?.close().await
    }

    /// Writes everything into the one file and lets go of it.
    pub async fn close(self) -> Result<()> {
        self.readers.close().await;
        self.writer.into_inner().connection.close().await?;
        Ok(())
    }

    /// The connection that writes, when nobody else does.
    async fn writer(&self) -> Result<MappedMutexGuard<'_, SqliteConnection>> {
        let mut writer = self.writer.lock().await;
        if writer.connection.is_in_transaction() {
            // Whatever was begun and not finished is being undone.
            let _ = writer.connection.ping().await;
        }
        if writer.connection.is_in_transaction() {
            // A database without room undoes it by itself, which its connection never learns.
            writer.connection = SqliteConnection::connect_with(&writer.options).await?;
        }
        Ok(MutexGuard::map(writer, |writer| &mut writer.connection))
    }

    async fn row(&self, id: &SandboxId) -> Result<Option<SessionRow>> {
        let row = sqlx::query("SELECT number, seq, session FROM sessions WHERE id = $1")
            .bind(id.as_str())
            .fetch_optional(&self.readers)
            .await?;
        row.map(SessionRow::from).transpose()
    }

    async fn column<T: DeserializeOwned>(
        &self,
        sql: &'static str,
        id: &SandboxId,
        after: u64,
        limit: u32,
    ) -> Result<Vec<T>> {
        let rows = sqlx::query(sql)
            .bind(id.as_str())
            .bind(number(after))
            .bind(limit)
            .fetch_all(&self.readers)
            .await?;
        rows.iter().map(|row| from_json(row.try_get(0)?)).collect()
    }
}

#[derive(Debug)]
struct Writer {
    options: SqliteConnectOptions,
    connection: SqliteConnection,
}

/// A file that was not there, for its owner only.
fn new_file(path: &Path) -> std::io::Result<std::fs::File> {
    let mode = std::os::unix::fs::OpenOptionsExt::mode;
    mode(std::fs::OpenOptions::new().write(true).create_new(true), 0o600).open(path)
}

fn trouble(error: std::io::Error) -> StoreError {
    match error.kind() {
        std::io::ErrorKind::StorageFull => StoreError::Full,
        _ => StoreError::Database(Box::new(error)),
    }
}

/// A session with what only the database knows about it.
struct SessionRow {
    number: i64,
    seq: u64,
    session: Session,
}

impl SessionRow {
    fn from(row: sqlx::sqlite::SqliteRow) -> Result<Self> {
        let seq: i64 = row.try_get(1)?;
        Ok(Self { number: row.try_get(0)?, seq: seq.unsigned_abs(), session: from_json(row.try_get(2)?)? })
    }
}

async fn migrate(writer: &mut SqliteConnection) -> Result<()> {
    let found: i64 = sqlx::query("PRAGMA user_version").fetch_one(&mut *writer).await?.try_get(0)?;
    let known = MIGRATIONS.len() as i64;
    if found > known {
        return Err(StoreError::Newer { found, known });
    }
    for (version, migration) in (1..).zip(MIGRATIONS).skip(usize::try_from(found).unwrap_or(0)) {
        let mut transaction = writer.begin_with("BEGIN IMMEDIATE").await?;
        sqlx::raw_sql(*migration).execute(&mut *transaction).await?;
        let done = format!("PRAGMA user_version = {version}");
        sqlx::raw_sql(AssertSqlSafe(done)).execute(&mut *transaction).await?;
        transaction.commit().await?;
    }
    Ok(())
}

/// Begins to write, unless a newer engine does.
async fn begin(writer: &mut SqliteConnection, ours: u64) -> Result<SqliteTransaction<'_>> {
    let mut transaction = writer.begin_with("BEGIN IMMEDIATE").await?;
    let row = sqlx::query("SELECT epoch FROM engine").fetch_one(&mut *transaction).await?;
    let theirs = row.try_get::<i64, _>(0)?.unsigned_abs();
    if theirs != ours {
        return Err(StoreError::Fenced { ours, theirs });
    }
    Ok(transaction)
}

async fn insert_event(
    transaction: &mut SqliteTransaction<'_>,
    row: &SessionRow,
    what: &Happening,
    time_ms: u64,
) -> Result<Event> {
    let event =
        Event { session: row.session.id.clone(), seq: row.seq, time_ms, schema: SCHEMA, what: what.clone() };
    sqlx::query("INSERT INTO events (session, seq, event) VALUES ($1, $2, $3)")
        .bind(row.number)
        .bind(number(row.seq))
        .bind(to_json(&event)?)
        .execute(&mut **transaction)
        .await?;
    Ok(event)
}

async fn carry_out(
    transaction: &mut SqliteTransaction<'_>,
    row: &SessionRow,
    effect: Effect<'_>,
    now_ms: u64,
) -> Result<()> {
    match effect {
        Effect::None => {}
        Effect::NewExecution(execution) => {
            sqlx::query("INSERT INTO executions (session, exec, execution) VALUES ($1, $2, $3)")
                .bind(row.number)
                .bind(number(execution.exec))
                .bind(to_json(&execution)?)
                .execute(&mut **transaction)
                .await?;
        }
        Effect::Execution(exec, what) => {
            let found = sqlx::query("SELECT execution FROM executions WHERE session = $1 AND exec = $2")
                .bind(row.number)
                .bind(number(exec))
                .fetch_optional(&mut **transaction)
                .await?
                .ok_or_else(|| StoreError::Inconsistent(format!("there is no execution {exec}")))?;
            let mut execution: Execution = from_json(found.try_get(0)?)?;
            fold::advance(&mut execution, what)?;
            sqlx::query("UPDATE executions SET execution = $3 WHERE session = $1 AND exec = $2")
                .bind(row.number)
                .bind(number(exec))
                .bind(to_json(&execution)?)
                .execute(&mut **transaction)
                .await?;
        }
        Effect::OpenTransfer(transfer) => {
            sqlx::query("INSERT INTO transfers (session, transfer) VALUES ($1, $2)")
                .bind(row.number)
                .bind(number(transfer))
                .execute(&mut **transaction)
                .await?;
        }
        Effect::CloseTransfer(transfer) => {
            sqlx::query("DELETE FROM transfers WHERE session = $1 AND transfer = $2")
                .bind(row.number)
                .bind(number(transfer))
                .execute(&mut **transaction)
                .await?;
        }
        Effect::Bill => bill(transaction, &row.session, now_ms).await?,
    }
    Ok(())
}

/// Adds what a session used to its tenant's account.
async fn bill(transaction: &mut SqliteTransaction<'_>, session: &Session, now_ms: u64) -> Result<()> {
    let (tenant, day) = (&session.request.tenant.0, number(now_ms / DAY_MS));
    let found = sqlx::query("SELECT meter FROM ledger WHERE tenant = $1 AND day = $2")
        .bind(tenant)
        .bind(day)
        .fetch_optional(&mut **transaction)
        .await?;
    let mut meter = match found {
        Some(row) => from_json(row.try_get(0)?)?,
        None => Meter::default(),
    };
    meter += session.meter.unwrap_or_default();
    sqlx::query(
        "INSERT INTO ledger (tenant, day, meter) VALUES ($1, $2, $3)
         ON CONFLICT (tenant, day) DO UPDATE SET meter = excluded.meter",
    )
    .bind(tenant)
    .bind(day)
    .bind(to_json(&meter)?)
    .execute(&mut **transaction)
    .await?;
    Ok(())
}

/// Whether whoever asked for a session that ended like this was never told that it runs.
fn was_never_there(session: &Session) -> bool {
    use EndReason::{Failed, Interrupted, QueueTimeout};
    session.state.is_ended() && matches!(session.state.reason(), Some(Failed | Interrupted | QueueTimeout))
}

#[async_trait]
impl Store for Sqlite {
    async fn take_over(&self, above: u64) -> Result<u64> {
        let mut writer = self.writer().await?;
        let mut transaction = writer.begin_with("BEGIN IMMEDIATE").await?;
        let row = sqlx::query("UPDATE engine SET epoch = max(epoch, $1) + 1 RETURNING epoch")
            .bind(number(above))
            .fetch_one(&mut *transaction)
            .await?;
        let epoch: i64 = row.try_get(0)?;
        transaction.commit().await?;
        Ok(epoch.unsigned_abs())
    }

    async fn accept(&self, epoch: u64, session: &Session) -> Result<Accepted> {
        let mut writer = self.writer().await?;
        let mut transaction = begin(&mut writer, epoch).await?;
        let (tenant, key) = (&session.request.tenant.0, &session.request.key);
        let same = sqlx::query("SELECT number, seq, session FROM sessions WHERE tenant = $1 AND key = $2")
            .bind(tenant)
            .bind(key)
            .fetch_optional(&mut *transaction)
            .await?;
        if let Some(known) = same.map(SessionRow::from).transpose()? {
            if !was_never_there(&known.session) {
                return Ok(Accepted::Known(known.session));
            }
            sqlx::query("UPDATE sessions SET key = NULL WHERE number = $1")
                .bind(known.number)
                .execute(&mut *transaction)
                .await?;
        }
        let same = sqlx::query("SELECT number FROM sessions WHERE id = $1")
            .bind(session.id.as_str())
            .fetch_optional(&mut *transaction)
            .await?;
        if same.is_some() {
            return Err(StoreError::Taken(session.id.clone()));
        }
        let row = sqlx::query(
            "INSERT INTO sessions (id, tenant, key, state, session, seq) VALUES ($1, $2, $3, $4, $5, 1)
             RETURNING number",
        )
        .bind(session.id.as_str())
        .bind(tenant)
        .bind(key)
        .bind(session.state.as_str())
        .bind(to_json(session)?)
        .fetch_one(&mut *transaction)
        .await?;
        let row = SessionRow { number: row.try_get(0)?, seq: 1, session: session.clone() };
        let request = Box::new(session.request.clone());
        insert_event(&mut transaction, &row, &Happening::Accepted { request }, session.created_ms).await?;
        transaction.commit().await?;
        Ok(Accepted::New(row.session))
    }

    async fn append(
        &self,
        epoch: u64,
        id: &SandboxId,
        what: &[Happening],
        now_ms: u64,
    ) -> Result<Vec<Event>> {
        let mut writer = self.writer().await?;
        let mut transaction = begin(&mut writer, epoch).await?;
        let row = sqlx::query("SELECT number, seq, session FROM sessions WHERE id = $1")
            .bind(id.as_str())
            .fetch_optional(&mut *transaction)
            .await?;
        let mut row = SessionRow::from(row.ok_or_else(|| StoreError::NoSession(id.clone()))?)?;
        let mut events = Vec::with_capacity(what.len());
        for what in what {
            let effect = fold::apply(&mut row.session, what, now_ms)?;
            row.seq += 1;
            events.push(insert_event(&mut transaction, &row, what, now_ms).await?);
            carry_out(&mut transaction, &row, effect, now_ms).await?;
        }
        sqlx::query(
            "UPDATE sessions SET state = $2, session = $3, seq = $4, ended_ms = $5 WHERE number = $1",
        )
        .bind(row.number)
        .bind(row.session.state.as_str())
        .bind(to_json(&row.session)?)
        .bind(number(row.seq))
        .bind(row.session.ended_ms.map(number))
        .execute(&mut *transaction)
        .await?;
        transaction.commit().await?;
        Ok(events)
    }

    async fn session(&self, id: &SandboxId) -> Result<Option<Session>> {
        Ok(self.row(id).await?.map(|row| row.session))
    }

    async fn sessions(&self, query: &Query) -> Result<Page> {
        let states = (!query.states.is_empty()).then(|| format!(",{},", query.states.join(",")));
        let limit = query.limit.clamp(1, SCANNED) as usize;
        let mut page = Page { sessions: Vec::new(), cursor: None };
        let (mut looked_at, mut bytes) = (query.cursor, 0);
        let mut shown = None;
        loop {
            let rows = sqlx::query(
                "SELECT number, seq, session FROM sessions
                 WHERE ($1 IS NULL OR tenant = $1) AND ($2 IS NULL OR number < $2)
                     AND ($3 IS NULL OR $3 LIKE '%,' || state || ',%')
                 ORDER BY number DESC LIMIT $4",
            )
            .bind(query.tenant.as_ref().map(|tenant| &tenant.0))
            .bind(looked_at.map(number))
            .bind(&states)
            .bind(SCANNED)
            .fetch_all(&self.readers)
            .await?;
            let last = (rows.len() as u64) < u64::from(SCANNED);
            for row in rows {
                let size = row.try_get::<&str, _>(2)?.len();
                let SessionRow { number, session, .. } = SessionRow::from(row)?;
                looked_at = Some(number.unsigned_abs());
                let labels = &session.request.spec.labels;
                if !query.labels.iter().all(|(name, value)| labels.get(name) == Some(value)) {
                    continue;
                }
                bytes += size;
                let is_full = page.sessions.len() == limit || bytes > PAGE_BYTES;
                if is_full && !page.sessions.is_empty() {
                    page.cursor = shown;
                    return Ok(page);
                }
                shown = looked_at;
                page.sessions.push(session);
            }
            if last {
                return Ok(page);
            }
        }
    }

    async fn alive(&self) -> Result<Vec<Session>> {
        let rows = sqlx::query("SELECT session FROM sessions WHERE ended_ms IS NULL ORDER BY number")
            .fetch_all(&self.readers)
            .await?;
        rows.iter().map(|row| from_json(row.try_get(0)?)).collect()
    }

    async fn executions(&self, session: &SandboxId) -> Result<Vec<Execution>> {
        let sql = "SELECT execution FROM executions JOIN sessions ON executions.session = number
                   WHERE id = $1 AND exec > $2 ORDER BY exec LIMIT $3";
        // Without an end.
        self.column(sql, session, 0, u32::MAX).await
    }

    async fn open_transfers(&self, session: &SandboxId) -> Result<Vec<u64>> {
        let rows = sqlx::query(
            "SELECT transfer FROM transfers JOIN sessions ON transfers.session = number WHERE id = $1
             ORDER BY transfer",
        )
        .bind(session.as_str())
        .fetch_all(&self.readers)
        .await?;
        rows.iter().map(|row| Ok(row.try_get::<i64, _>(0)?.unsigned_abs())).collect()
    }

    async fn events(&self, session: &SandboxId, after: u64, limit: u32) -> Result<Vec<Event>> {
        let sql = "SELECT event FROM events JOIN sessions ON events.session = number
                   WHERE id = $1 AND events.seq > $2 ORDER BY events.seq LIMIT $3";
        self.column(sql, session, after, limit).await
    }

    async fn last_event(&self, session: &SandboxId) -> Result<Option<u64>> {
        Ok(self.row(session).await?.map(|row| row.seq))
    }

    async fn used(&self, tenant: &Tenant) -> Result<Meter> {
        let rows = sqlx::query("SELECT meter FROM ledger WHERE tenant = $1")
            .bind(&tenant.0)
            .fetch_all(&self.readers)
            .await?;
        rows.iter().map(|row| from_json::<Meter>(row.try_get(0)?)).sum()
    }

    async fn forgettable(&self, retention: Retention) -> Result<Vec<SandboxId>> {
        let rows = sqlx::query(
            "SELECT id FROM sessions
             WHERE ended_ms < $1 OR number <= (
                 SELECT number FROM sessions WHERE ended_ms IS NOT NULL ORDER BY number DESC LIMIT 1 OFFSET $2
             ) AND ended_ms IS NOT NULL
             ORDER BY number LIMIT $3",
        )
        .bind(number(retention.ended_before_ms))
        .bind(retention.most)
        .bind(BATCH)
        .fetch_all(&self.readers)
        .await?;
        rows.iter()
            .map(|row| {
                row.try_get::<String, _>(0)?.parse().map_err(|error| StoreError::Database(Box::new(error)))
            })
            .collect()
    }

    async fn forget(&self, epoch: u64, sessions: &[SandboxId]) -> Result<()> {
        let mut writer = self.writer().await?;
        let mut transaction = begin(&mut writer, epoch).await?;
        for id in sessions {
            sqlx::query("DELETE FROM sessions WHERE id = $1 AND ended_ms IS NOT NULL")
                .bind(id.as_str())
                .execute(&mut *transaction)
                .await?;
        }
        transaction.commit().await?;
        // What became free goes back to the disk.
        sqlx::raw_sql("PRAGMA incremental_vacuum(2000)").execute(&mut *writer).await?;
        Ok(())
    }

    async fn backup(&self, to: &Path) -> Result<()> {
        // New, ours and nobody else's to read, before there is anything in it.
        new_file(to).map_err(trouble)?;
        let to = to.to_string_lossy().into_owned();
        let mut reader = self.readers.acquire().await?;
        sqlx::query("VACUUM INTO $1").bind(to).execute(&mut *reader).await?;
        Ok(())
    }

    async fn size(&self) -> Result<u64> {
        let mut log = self.path.clone().into_os_string();
        log.push("-wal");
        let length = |path: &Path| std::fs::metadata(path).map_or(0, |found| found.len());
        Ok(length(&self.path) + length(Path::new(&log)))
    }
}

/// SQLite's numbers have a sign; ours never reach so far.
fn number(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

fn to_json(value: &impl Serialize) -> Result<String> {
    serde_json::to_string(value).map_err(|error| StoreError::Database(Box::new(error)))
}

fn from_json<T: DeserializeOwned>(text: &str) -> Result<T> {
    serde_json::from_str(text).map_err(|error| StoreError::Database(Box::new(error)))
}

impl From<sqlx::Error> for StoreError {
    fn from(error: sqlx::Error) -> Self {
        // The lower byte is the kind; the rest says more.
        let kind = error
            .as_database_error()
            .and_then(|error| error.code())
            .and_then(|code| code.parse::<u32>().ok())
            .map(|code| code & 0xff);
        match kind {
            Some(5 | 6) => Self::Busy,
            Some(13) => Self::Full,
            _ => Self::Database(Box::new(error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::conformance;
    use super::*;

    async fn store() -> (tempfile::TempDir, Sqlite) {
        let directory = tempfile::tempdir().unwrap();
        let store = Sqlite::open(&directory.path().join("state.db")).await.unwrap();
        (directory, store)
    }

    macro_rules! conforms {
        ($($case:ident),* $(,)?) => {
            $(#[tokio::test]
            async fn $case() {
                let (_directory, store) = store().await;
                conformance::$case(&store).await;
            })*
        };
    }

    conforms! {
        a_log_is_numbered_without_gaps_and_read_from_anywhere,
        a_session_is_what_its_log_says,
        what_makes_no_sense_is_refused_whole,
        an_execution_has_one_result,
        transfers_are_open_until_they_are_over,
        only_the_newest_engine_writes,
        the_same_key_is_the_same_session,
        a_name_is_given_once,
        lists_go_from_the_newest_back_page_by_page,
        what_is_rare_is_found_among_many,
        pages_fit_into_one_answer,
        what_is_over_is_forgotten_and_its_use_is_not,
        writers_at_once_lose_nothing,
    }

    #[tokio::test]
    async fn what_was_written_is_there_after_a_restart_and_in_a_copy() {
        let (directory, store) = store().await;
        let epoch = store.take_over(0).await.unwrap();
        let session = conformance::session(1);
        store.accept(epoch, &session).await.unwrap();
        let copy = directory.path().join("copy.db");
        store.backup(&copy).await.unwrap();
        store.append(epoch, &session.id, &[Happening::Admitted], 0).await.unwrap();
        drop(store);
        let again = Sqlite::open(&directory.path().join("state.db")).await.unwrap();
        assert_eq!(again.events(&session.id, 0, 10).await.unwrap().len(), 2);
        assert_eq!(again.take_over(0).await.unwrap(), epoch + 1);
        let copied = Sqlite::open(&copy).await.unwrap();
        assert_eq!(copied.session(&session.id).await.unwrap(), Some(session));
    }

    #[tokio::test]
    async fn a_newer_database_is_refused_and_left_alone() {
        let (directory, store) = store().await;
        sqlx::raw_sql("PRAGMA user_version = 99").execute(&mut *store.writer().await.unwrap()).await.unwrap();
        drop(store);
        let path = directory.path().join("state.db");
        for _ in 0..2 {
            let refused = Sqlite::open(&path).await;
            assert!(matches!(refused, Err(StoreError::Newer { found: 99, .. })), "{refused:?}");
        }
    }

    #[tokio::test]
    async fn a_disk_that_was_full_is_written_to_again() {
        let (_directory, store) = store().await;
        let epoch = store.take_over(0).await.unwrap();
        let session = conformance::session(1);
        store.accept(epoch, &session).await.unwrap();
        // No page more than there are.
        sqlx::raw_sql("PRAGMA max_page_count = 1")
            .execute(&mut *store.writer().await.unwrap())
            .await
            .unwrap();
        let full = loop {
            let more = store.append(epoch, &session.id, &[Happening::Adopted { epoch }], 0).await;
            if let Err(error) = more {
                break error;
            }
        };
        assert!(matches!(full, StoreError::Full), "{full}");
        let before = store.last_event(&session.id).await.unwrap();
        store.append(epoch, &session.id, &[Happening::Admitted], 0).await.unwrap();
        assert_eq!(store.last_event(&session.id).await.unwrap(), before.map(|last| last + 1));
    }

    #[tokio::test]
    async fn readers_do_not_hold_up_the_writer() {
        let (_directory, store) = store().await;
        let epoch = store.take_over(0).await.unwrap();
        let session = conformance::session(1);
        store.accept(epoch, &session).await.unwrap();
        let mut reader = store.readers.acquire().await.unwrap();
        let mut reading = reader.begin().await.unwrap();
        let count = "SELECT count(*) FROM events";
        let seen: i64 = sqlx::query(count).fetch_one(&mut *reading).await.unwrap().get(0);
        store.append(epoch, &session.id, &[Happening::Admitted], 0).await.unwrap();
        let later: i64 = sqlx::query(count).fetch_one(&mut *reading).await.unwrap().get(0);
        assert_eq!((seen, later), (1, 1), "a reader sees one moment");
        drop(reading);
        assert_eq!(store.events(&session.id, 0, 10).await.unwrap().len(), 2);
    }
}
