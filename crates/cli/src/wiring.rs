//! The only file that names the providers: which rungs there are, and what they are built from.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use belljar_core::{Error, ErrorCode, NetworkPolicy, Provider, ProviderName, Result};
use belljar_engine::service::{Client, Lock, Reception};
use belljar_engine::store::Sqlite;
use belljar_engine::{Config, Engine};
use belljar_layers::Unpacker;
use belljar_providers::doctor;
pub(crate) use belljar_providers::doctor::{Area, Check, Status as Health};
use belljar_providers::home::Home;
use belljar_providers::jail::Jail;
use belljar_providers::local::Local;
use belljar_providers::template;
use belljar_providers::unpacker::Confined;

/// The provider of this name. Those whose sandboxes outlive a command keep them in the data directory `home`; where an
/// engine serves that, it is asked to do everything.
pub(crate) async fn provider(name: ProviderName, home: Option<PathBuf>) -> Result<Box<dyn Provider>> {
    match name {
        ProviderName::Jail => {
            let home = Home::open(home)?;
            match Client::find(home.path()).await? {
                Some(engine) => Ok(Box::new(engine)),
                None => Ok(Box::new(jail(home)?)),
            }
        }
        ProviderName::Local => Ok(Box::new(Local::new())),
        ProviderName::Fake => Err(Error::new(ErrorCode::InvalidArgument, "the `fake` provider is for tests")),
    }
}

/// The jail, with the door of its data directory.
fn jail(home: Home) -> Result<Jail> {
    let door = crate::door::client(home.path()).map_err(|error| {
        Error::new(ErrorCode::Internal, format!("cannot find the program itself: {error}"))
    })?;
    Ok(Jail::new(home)?.with_door(Arc::new(door)))
}

/// The jail itself, whether or not an engine serves the data directory.
pub(crate) fn own_jail(home: Option<PathBuf>) -> Result<Jail> {
    jail(Home::open(home)?)
}

/// Who unpacks archives of strangers: this program, in a process that has nothing to lose.
pub(crate) fn unpacker() -> Result<Box<dyn Unpacker>> {
    let program = std::env::current_exe().map_err(|error| {
        Error::new(ErrorCode::Internal, format!("cannot find the program itself: {error}"))
    })?;
    Ok(Box::new(Confined::new(program)))
}

/// The data directory.
pub(crate) fn home(home: Option<PathBuf>) -> Result<Home> {
    Home::open(home)
}

/// Does something that waits for the disk beside the async work.
pub(crate) async fn aside<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|error| {
        Err(Error::new(ErrorCode::Internal, format!("a worker thread failed: {error}")))
    })
}

/// The provider whose sandboxes outlive the command that made them.
pub(crate) async fn lasting(home: Option<PathBuf>) -> Result<Box<dyn Provider>> {
    provider(ProviderName::Jail, home).await
}

/// The engine that serves the data directory.
pub(crate) async fn engine(home: Option<PathBuf>) -> Result<Client> {
    let home = Home::open(home)?;
    Client::find(home.path()).await?.ok_or_else(|| {
        Error::new(ErrorCode::NotFound, format!("no engine serves {}", home.path().display()))
            .hint("start one with `belljar engine`")
    })
}

/// An engine of our own, the only one of its data directory for as long as the lock is held.
pub(crate) async fn new_engine(
    home: Option<PathBuf>,
    config: Config,
) -> Result<(Engine, Lock, Reception, PathBuf)> {
    let home = Home::open(home)?;
    let lock = Lock::take(home.path())?;
    // Before sandboxes are taken over: whoever comes meanwhile waits, and does not go past us.
    let reception = Reception::open(home.path())?;
    let store = Sqlite::open(&database(home.path())).await?;
    let path = home.path().to_owned();
    let tenants = config.tenants.clone();
    let provider = |epoch| {
        lock.set_epoch(epoch)?;
        Ok(Arc::new(jail(home)?.with_epoch(epoch).with_tenants(&tenants)?) as Arc<dyn Provider>)
    };
    let engine = Engine::start(Arc::new(store), lock.epoch(), provider, config).await?;
    Ok((engine, lock, reception, path))
}

/// Where an engine keeps what it remembers.
fn database(home: &Path) -> PathBuf {
    home.join("engine.db")
}

/// The database of a data directory, whether or not an engine serves it.
pub(crate) async fn store(home: Option<PathBuf>) -> Result<Sqlite> {
    let path = database(Home::open(home)?.path());
    if !path.exists() {
        return Err(Error::new(ErrorCode::NotFound, "no engine has ever served this data directory")
            .hint("`belljar engine` starts one"));
    }
    Ok(Sqlite::open(&path).await?)
}

/// Puts a copy of the database in its place. No engine may serve the data directory meanwhile.
pub(crate) async fn restore(home: Option<PathBuf>, from: &Path) -> Result<()> {
    let home = Home::open(home)?;
    let _lock = Lock::take(home.path())?;
    Ok(Sqlite::restore(from, &database(home.path())).await?)
}

/// The policy with its sets resolved as those of a new sandbox are.
pub(crate) async fn expand(home: Option<PathBuf>, policy: NetworkPolicy) -> Result<NetworkPolicy> {
    let cache = Home::open(home)?.templates();
    let resolved = tokio::task::spawn_blocking(move || template::host(&cache)).await;
    match resolved {
        Ok(Ok(template)) => template.expand(&policy),
        Ok(Err(error)) => {
            Err(Error::new(ErrorCode::Internal, format!("the sets cannot be resolved: {error}"))
                .hint("`belljar doctor` says what is missing"))
        }
        Err(error) => Err(Error::new(ErrorCode::Internal, format!("the sets cannot be resolved: {error}"))),
    }
}

/// Tries everything that the walls need on this host.
pub(crate) async fn examine(home: Option<PathBuf>) -> Vec<Check> {
    match Home::open(home) {
        Ok(home) => doctor::examine(&home).await,
        Err(error) => vec![unusable_home(error)],
    }
}

fn unusable_home(error: Error) -> Check {
    Check {
        area: Area::Data,
        name: "data directory".into(),
        status: Health::Missing,
        finding: error.message,
        advice: error.hint,
    }
}
