//! The engine through its socket keeps every promise that a provider makes, and remembers meanwhile.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::Path;
use std::sync::Arc;

use belljar_core::conformance::{Programs, check_all};
use belljar_core::{ErrorCode, ExecRequest, Provider, SandboxSpec};
use belljar_engine::service::{Client, Lock, Reception};
use belljar_engine::store::{Query, Sqlite};
use belljar_engine::{Config, Engine};
use belljar_providers::home::Home;
use belljar_providers::jail::Jail;

async fn engine(home: &Path) -> Engine {
    let store = Arc::new(Sqlite::open(&home.join("engine.db")).await.unwrap());
    let house = Home::open(Some(home.to_owned())).unwrap();
    let provider = |epoch| Ok(Arc::new(Jail::new(house)?.with_epoch(epoch)) as Arc<dyn Provider>);
    Engine::start(store, provider, Config::default()).await.unwrap()
}

/// Serves until the test is over.
async fn served(home: &Path) -> Client {
    std::fs::create_dir_all(home).unwrap();
    let reception = Reception::open(home).unwrap();
    let engine = engine(home).await;
    tokio::spawn(async move { reception.serve(&engine).await });
    Client::find(home).await.unwrap().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_keeps_the_promises_of_its_provider() {
    let directory = tempfile::tempdir().unwrap();
    let client = served(&directory.path().join("home")).await;
    check_all(&client, Programs::Real, |span| Box::pin(tokio::time::sleep(span))).await.assert_kept();
    let page = client.sessions(Query { limit: 1000, ..Query::default() }).await.unwrap();
    assert!(page.sessions.len() > 20, "it remembers them: {}", page.sessions.len());
    for session in page.sessions {
        let events = client.events(&session.id, 0, 1000).await.unwrap();
        let numbers: Vec<u64> = events.iter().map(|event| event.seq).collect();
        assert_eq!(numbers, (1..=events.len() as u64).collect::<Vec<_>>());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_an_execution_did_is_on_record_before_its_caller_knows() {
    let directory = tempfile::tempdir().unwrap();
    let client = served(&directory.path().join("home")).await;
    let sandbox = client.create(SandboxSpec::default()).await.unwrap();
    let result = sandbox.execute(ExecRequest::shell("exit 7")).await.unwrap();
    let events = client.events(sandbox.id(), 0, 100).await.unwrap();
    let last = events.last().unwrap();
    assert_eq!(last.what.name(), "exec_finished");
    assert_eq!(serde_json::to_value(&last.what).unwrap()["code"], result.termination.exit_code().unwrap());
    sandbox.cleanup().await.unwrap();
    let events = client.events(sandbox.id(), last.seq, 100).await.unwrap();
    assert_eq!(events.iter().map(|event| event.what.name()).collect::<Vec<_>>(), ["ending", "ended"]);
}

#[tokio::test]
async fn a_second_engine_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let first = Lock::take(directory.path()).unwrap();
    assert_eq!(Lock::take(directory.path()).unwrap_err().code, ErrorCode::AlreadyExists);
    drop(first);
    Lock::take(directory.path()).unwrap();
}
