//! The engine through its socket keeps every promise that a provider makes, and remembers meanwhile.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use belljar_core::conformance::{Programs, check_all};
use belljar_core::{
    Capabilities, Error, ErrorCode, ExecId, ExecRequest, Flow, FlowKind, NetworkPolicy, Provider,
    ProviderName, Result, Rules, Sandbox, SandboxId, SandboxInfo, SandboxSpec, Verdict,
};
use belljar_engine::service::{Client, Lock, Reception};
use belljar_engine::session::SessionState;
use belljar_engine::store::{Query, Sqlite};
use belljar_engine::{Config, Engine};
use belljar_providers::fake::Fake;
use belljar_providers::home::Home;
use belljar_providers::jail::Jail;
use futures_util::TryStreamExt;

async fn engine(home: &Path) -> Engine {
    troubled_engine(home, Arc::default()).await
}

/// An engine whose provider cannot be had while the flag is set.
async fn troubled_engine(home: &Path, trouble: Arc<AtomicBool>) -> Engine {
    let store = Arc::new(Sqlite::open(&home.join("engine.db")).await.unwrap());
    let house = Home::open(Some(home.to_owned())).unwrap();
    let provider = |epoch| {
        let jail = Jail::new(house)?.with_epoch(epoch);
        Ok(Arc::new(Troubled { jail, trouble }) as Arc<dyn Provider>)
    };
    let config = Config { rounds: Duration::from_millis(20), ..Config::default() };
    Engine::start(store, 0, provider, config).await.unwrap()
}

struct Troubled {
    jail: Jail,
    trouble: Arc<AtomicBool>,
}

#[async_trait::async_trait]
impl Provider for Troubled {
    fn name(&self) -> ProviderName {
        self.jail.name()
    }

    fn capabilities(&self) -> Capabilities {
        self.jail.capabilities()
    }

    async fn create(&self, spec: SandboxSpec) -> Result<Arc<dyn Sandbox>> {
        self.jail.create(spec).await
    }

    async fn open(&self, id: &SandboxId) -> Result<Arc<dyn Sandbox>> {
        if self.trouble.load(Ordering::SeqCst) {
            return Err(Error::new(ErrorCode::Internal, "the test makes trouble"));
        }
        self.jail.open(id).await
    }

    async fn list(&self) -> Result<Vec<SandboxInfo>> {
        self.jail.list().await
    }
}

/// Serves until the test is over.
async fn served(home: &Path) -> Client {
    std::fs::create_dir_all(home).unwrap();
    let reception = Reception::open(home).unwrap();
    let engine = engine(home).await;
    tokio::spawn(async move { reception.serve(&engine, std::future::pending()).await });
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

#[tokio::test(flavor = "multi_thread")]
async fn a_session_that_cannot_be_taken_over_holds_nobody_up_and_is_tried_again() {
    let directory = tempfile::tempdir().unwrap();
    let home = directory.path().join("home");
    std::fs::create_dir_all(&home).unwrap();
    let before = engine(&home).await;
    let sandbox = Provider::create(&before, SandboxSpec::default()).await.unwrap();
    let id = sandbox.id().clone();
    let trouble = Arc::new(AtomicBool::new(true));
    let after = troubled_engine(&home, trouble.clone()).await;
    let others = Provider::create(&after, SandboxSpec::default()).await.unwrap();
    assert!(others.execute(ExecRequest::argv(["true"])).await.unwrap().termination.is_success());
    assert_eq!(after.session(&id).await.unwrap().state, SessionState::Running, "nothing was given up");
    trouble.store(false, Ordering::SeqCst);
    let again = after.open(&id).await.unwrap();
    loop {
        match again.execute(ExecRequest::argv(["true"])).await {
            Ok(result) => break assert!(result.termination.is_success()),
            Err(error) => {
                assert_eq!(error.code, ErrorCode::Unavailable, "{error}");
                tokio::time::sleep(Duration::from_millis(error.retry_after_ms.unwrap() / 50)).await;
            }
        }
    }
    let names: Vec<&str> =
        after.events(&id, 3, 100).await.unwrap().iter().map(|event| event.what.name()).collect();
    assert_eq!(names, ["adopted", "exec_accepted", "exec_started", "exec_finished"]);
    again.cleanup().await.unwrap();
    others.cleanup().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_caller_that_goes_away_takes_its_command_along_however_early_it_goes() {
    let directory = tempfile::tempdir().unwrap();
    let client = served(&directory.path().join("home")).await;
    let sandbox = client.create(SandboxSpec::default()).await.unwrap();
    for patience in (0..24).map(|step| Duration::from_micros(step * 250)) {
        let endless = sandbox.execute(ExecRequest::argv(["sleep", "600"]));
        assert!(tokio::time::timeout(patience, endless).await.is_err(), "it does not end by itself");
    }
    let execs = sandbox.execs().unwrap();
    // What was asked for may begin a moment later. This one comes after all of them, and ends after they have.
    sandbox.execute(ExecRequest::argv(["true"])).await.unwrap();
    let begun = execs.list().await.unwrap();
    assert!(begun.len() > 1, "the control: some had begun");
    for exec in begun {
        let ended = tokio::time::timeout(Duration::from_secs(20), execs.wait(exec.exec)).await;
        ended.unwrap_or_else(|_| panic!("{exec:?} runs on")).unwrap();
    }
    sandbox.cleanup().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_tied_to_a_caller_is_that_sandbox_and_not_its_name() {
    let directory = tempfile::tempdir().unwrap();
    let client = served(&directory.path().join("home")).await;
    let id = SandboxId::from_random([7; 16]);
    let spec =
        |tied_to_creator| SandboxSpec { id: Some(id.clone()), tied_to_creator, ..SandboxSpec::default() };
    let tied = client.create(spec(true)).await.unwrap();
    client.open(&id).await.unwrap().cleanup().await.unwrap();
    let named_alike = client.create(spec(false)).await.unwrap();
    drop(tied);
    // The engine has heard of it by the time that somebody who came later has been served.
    let other = client.create(SandboxSpec { tied_to_creator: true, ..SandboxSpec::default() }).await.unwrap();
    let gone = other.id().clone();
    drop(other);
    while client.list().await.unwrap().iter().any(|info| info.id == gone) {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let result = named_alike.execute(ExecRequest::argv(["true"])).await.unwrap();
    assert!(result.termination.is_success());
    named_alike.cleanup().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_of_the_engine_are_not_for_its_callers() {
    let directory = tempfile::tempdir().unwrap();
    let client = served(&directory.path().join("home")).await;
    let sandbox = client.create(SandboxSpec::default()).await.unwrap();
    let key = Some(format!("{}2", ExecRequest::ENGINE_KEYS));
    let refused = sandbox.execute(ExecRequest { key, ..ExecRequest::argv(["true"]) }).await.unwrap_err();
    assert_eq!(refused.code, ErrorCode::InvalidArgument, "{refused}");
    for _ in 0..3 {
        assert!(sandbox.execute(ExecRequest::argv(["true"])).await.unwrap().termination.is_success());
    }
    sandbox.cleanup().await.unwrap();
}

#[tokio::test]
async fn a_second_engine_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let first = Lock::take(directory.path()).unwrap();
    assert_eq!(Lock::take(directory.path()).unwrap_err().code, ErrorCode::AlreadyExists);
    drop(first);
    Lock::take(directory.path()).unwrap();
}

fn flow(seq: u64) -> Flow {
    Flow {
        seq,
        time_ms: 1_000 + seq,
        exec: Some(ExecId(1)),
        purpose: belljar_core::Purpose::default(),
        owner: None,
        kind: FlowKind::Tls,
        host: format!("{}.example.org", "x".repeat(200)),
        port: Some(443),
        request: None,
        address: None,
        verdict: if seq.is_multiple_of(2) {
            Verdict::Allowed
        } else {
            Verdict::Denied { reason: "not_listed".into(), what: "it".into(), how_to_grant: "ask".into() }
        },
        rule: None,
        sent: seq,
        received: 2 * seq,
        cached: 0,
        duration_us: 3,
    }
}

/// An engine whose sandboxes are models that have a network, on which as much went on.
async fn networked(home: &Path, flows: u64) -> Client {
    std::fs::create_dir_all(home).unwrap();
    let reception = Reception::open(home).unwrap();
    let store = Arc::new(Sqlite::open(&home.join("engine.db")).await.unwrap());
    let fake = Fake::new().with_flows((1..=flows).map(flow).collect::<Vec<_>>());
    let provider = |_| Ok(Arc::new(fake) as Arc<dyn Provider>);
    let engine = Engine::start(store, 0, provider, Config::default()).await.unwrap();
    tokio::spawn(async move { reception.serve(&engine, std::future::pending()).await });
    Client::find(home).await.unwrap().unwrap()
}

fn allowlist(rule: &str) -> NetworkPolicy {
    NetworkPolicy::Allowlist(Rules { allow: vec![rule.parse().unwrap()], ..Rules::default() })
}

#[tokio::test(flavor = "multi_thread")]
async fn what_may_be_reached_is_changed_and_on_record() {
    let directory = tempfile::tempdir().unwrap();
    let client = networked(&directory.path().join("home"), 0).await;
    let spec = SandboxSpec { network: allowlist("a.org"), ..SandboxSpec::default() };
    let sandbox = client.create(spec).await.unwrap();
    let network = sandbox.network().unwrap();
    assert_eq!(network.policy().await.unwrap(), allowlist("a.org"));
    network.set_policy(allowlist("b.org:8443")).await.unwrap();
    assert_eq!(network.policy().await.unwrap(), allowlist("b.org:8443"));
    let events = client.events(sandbox.id(), 0, 100).await.unwrap();
    let last = serde_json::to_value(&events.last().unwrap().what).unwrap();
    assert_eq!((&last["event"], &last["policy"]["allow"][0]), (&"network_set".into(), &"b.org:8443".into()));

    let out_of_bounds =
        NetworkPolicy::Allowlist(Rules { allow: vec!["192.0.2.0/24".parse().unwrap()], ..Rules::default() });
    assert_eq!(network.set_policy(out_of_bounds).await.unwrap_err().code, ErrorCode::InvalidArgument);
    let without = client.create(SandboxSpec::default()).await.unwrap();
    let error = without.network().unwrap().set_policy(allowlist("a.org")).await.unwrap_err();
    assert!(error.message.contains("without a network"), "{error}");
    let events = client.events(without.id(), 3, 100).await.unwrap();
    let names: Vec<&str> = events.iter().map(|event| event.what.name()).collect();
    assert_eq!(names, ["network_set", "network_kept"], "what was not done is not left standing");
    sandbox.cleanup().await.unwrap();
    without.cleanup().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn flows_come_whole_and_in_order_and_end_with_the_sandbox() {
    let directory = tempfile::tempdir().unwrap();
    let client = networked(&directory.path().join("home"), 3000).await;
    let spec = SandboxSpec { network: allowlist("a.org"), ..SandboxSpec::default() };
    let sandbox = client.create(spec).await.unwrap();
    let network = sandbox.network().unwrap();
    let all: Vec<Flow> = network.flows(0, false).await.unwrap().try_collect().await.unwrap();
    assert_eq!(all, (1..=3000).map(flow).collect::<Vec<_>>());
    let some: Vec<Flow> = network.flows(2998, false).await.unwrap().try_collect().await.unwrap();
    assert_eq!(some, [flow(2999), flow(3000)]);

    let followed = network.flows(2999, true).await.unwrap();
    let followed = tokio::spawn(followed.try_collect::<Vec<Flow>>());
    for _ in 0..20 {
        network.policy().await.unwrap();
    }
    assert!(!followed.is_finished(), "there may be more to come");
    sandbox.cleanup().await.unwrap();
    assert_eq!(followed.await.unwrap().unwrap(), [flow(3000)]);
    assert_eq!(network.policy().await.unwrap_err().code, ErrorCode::SandboxGone);
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_door_there_is_no_network_to_speak_of() {
    let directory = tempfile::tempdir().unwrap();
    let client = served(&directory.path().join("home")).await;
    let sandbox = client.create(SandboxSpec::default()).await.unwrap();
    let error = sandbox.network().map(|_| ()).unwrap_err();
    assert_eq!(error.code, ErrorCode::Unsupported);
    sandbox.cleanup().await.unwrap();
}
