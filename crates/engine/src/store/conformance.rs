//! What every store must do. Each case gets an empty store of its own.

use std::collections::BTreeMap;

use belljar_core::{Error, ErrorCode, ExecId, ExecRequest, ProviderName, SandboxId, Termination};

use super::{Accepted, ExecState, Query, Retention, Store, StoreError, accepted};
use crate::event::{Happening, SCHEMA, TransferKind};
use crate::meter::{Amount, Meter};
use crate::session::{EndReason, Session, SessionRequest, SessionState, Tenant};

/// A session that any store can be asked to accept; the number tells one from another.
pub(super) fn session(number: u8) -> Session {
    let request = SessionRequest::default();
    accepted(SandboxId::from_random([number; 16]), ProviderName::Fake, request, 1_000 + u64::from(number))
}

fn of(tenant: &str, key: Option<&str>, number: u8) -> Session {
    let mut session = session(number);
    session.request.tenant = Tenant(tenant.to_owned());
    session.request.key = key.map(str::to_owned);
    session
}

fn ended(reason: EndReason, cpu_us: u64) -> Happening {
    Happening::Ended { reason, meter: Meter { cpu_us: Amount::from(cpu_us), ..Meter::default() } }
}

fn accepted_exec(exec: u64) -> Happening {
    Happening::ExecAccepted { exec, request: Box::new(ExecRequest::argv(["true"])) }
}

fn finished(exec: u64) -> Happening {
    let meter = Meter { cpu_us: Amount::from(7), ..Meter::default() };
    let termination = Termination::Exited { code: 3 };
    Happening::ExecFinished { exec, termination, duration_us: Some(9), meter }
}

async fn accept(store: &dyn Store, epoch: u64, session: &Session) -> SandboxId {
    assert_eq!(store.accept(epoch, session).await.unwrap(), Accepted::New(session.clone()));
    session.id.clone()
}

pub(super) async fn a_log_is_numbered_without_gaps_and_read_from_anywhere(store: &dyn Store) {
    let epoch = store.take_over(0).await.unwrap();
    let id = accept(store, epoch, &session(1)).await;
    let what = [Happening::Admitted, Happening::Created, accepted_exec(1)];
    let events = store.append(epoch, &id, &what, 5_000).await.unwrap();
    assert_eq!(events.iter().map(|event| event.seq).collect::<Vec<_>>(), [2, 3, 4]);
    let all = store.events(&id, 0, 100).await.unwrap();
    assert_eq!(
        all.iter().map(|event| event.what.name()).collect::<Vec<_>>(),
        ["accepted", "admitted", "created", "exec_accepted"]
    );
    assert_eq!(all[1..], events);
    assert!(all.iter().all(|event| event.schema == SCHEMA && event.session == id));
    assert_eq!(store.events(&id, 2, 1).await.unwrap(), events[1..2]);
    assert_eq!(store.events(&id, 4, 100).await.unwrap(), []);
}

pub(super) async fn a_session_is_what_its_log_says(store: &dyn Store) {
    let epoch = store.take_over(0).await.unwrap();
    let id = accept(store, epoch, &session(1)).await;
    let state = async || store.session(&id).await.unwrap().unwrap().state;
    assert_eq!(state().await, SessionState::Queued);
    for (what, then) in [
        (Happening::Admitted, SessionState::Creating),
        (Happening::Created, SessionState::Running),
        (Happening::Paused, SessionState::Paused),
        (Happening::Resumed, SessionState::Running),
        (
            Happening::Ending { reason: EndReason::Expired, error: None },
            SessionState::Ending { reason: EndReason::Expired },
        ),
        (ended(EndReason::Lost, 4), SessionState::Ended { reason: EndReason::Expired }),
    ] {
        store.append(epoch, &id, &[what], 7_000).await.unwrap();
        assert_eq!(state().await, then);
    }
    let over = store.session(&id).await.unwrap().unwrap();
    assert_eq!((over.ended_ms, over.meter.unwrap().cpu_us.exact()), (Some(7_000), Some(4)));
}

pub(super) async fn what_makes_no_sense_is_refused_whole(store: &dyn Store) {
    let epoch = store.take_over(0).await.unwrap();
    let id = accept(store, epoch, &session(1)).await;
    let before = (store.session(&id).await.unwrap(), store.events(&id, 0, 10).await.unwrap());
    let refused = store.append(epoch, &id, &[Happening::Admitted, Happening::Paused], 0).await;
    assert!(matches!(refused, Err(StoreError::Impossible(_))), "{refused:?}");
    assert_eq!((store.session(&id).await.unwrap(), store.events(&id, 0, 10).await.unwrap()), before);
    let nobody = SandboxId::from_random([9; 16]);
    let refused = store.append(epoch, &nobody, &[Happening::Admitted], 0).await;
    assert!(matches!(refused, Err(StoreError::NoSession(_))), "{refused:?}");
    store.append(epoch, &id, &[ended(EndReason::Killed, 0)], 0).await.unwrap();
    let late = store.append(epoch, &id, &[accepted_exec(1)], 0).await;
    assert!(matches!(late, Err(StoreError::Inconsistent(_))), "nothing happens after the end: {late:?}");
}

pub(super) async fn an_execution_has_one_result(store: &dyn Store) {
    let epoch = store.take_over(0).await.unwrap();
    let id = accept(store, epoch, &session(1)).await;
    let start = |exec| Happening::ExecStarted { exec, inside: ExecId(40 + exec as u32) };
    let refuse = Happening::ExecRefused { exec: 2, error: Error::new(ErrorCode::CommandNotFound, "no") };
    let what = [
        Happening::Admitted,
        Happening::Created,
        accepted_exec(1),
        accepted_exec(2),
        accepted_exec(3),
        accepted_exec(4),
        start(1),
        start(4),
        finished(1),
        refuse,
        Happening::ExecInterrupted { exec: 3 },
    ];
    store.append(epoch, &id, &what, 0).await.unwrap();
    let executions = store.executions(&id).await.unwrap();
    use ExecState::{Finished, Interrupted, Refused, Running};
    assert_eq!(
        executions.iter().map(|execution| execution.state).collect::<Vec<_>>(),
        [Finished, Refused, Interrupted, Running]
    );
    let first = &executions[0];
    assert_eq!((first.inside, first.duration_us), (Some(ExecId(41)), Some(9)));
    assert_eq!(first.termination, Some(Termination::Exited { code: 3 }));
    assert_eq!(executions[1].error.as_ref().map(|error| error.code), Some(ErrorCode::CommandNotFound));
    for again in [start(1), finished(1), finished(2), finished(3), finished(9), accepted_exec(4)] {
        let refused = store.append(epoch, &id, std::slice::from_ref(&again), 0).await;
        assert!(refused.is_err(), "{again:?}");
    }
    assert_eq!(store.executions(&id).await.unwrap(), executions);
}

pub(super) async fn transfers_are_open_until_they_are_over(store: &dyn Store) {
    let epoch = store.take_over(0).await.unwrap();
    let id = accept(store, epoch, &session(1)).await;
    let begin = |transfer| Happening::Transfer { transfer, kind: TransferKind::Upload, path: "a".into() };
    let what =
        [begin(1), begin(2), begin(3), Happening::Transferred { transfer: 2, bytes: Some(1), error: None }];
    store.append(epoch, &id, &what, 0).await.unwrap();
    assert_eq!(store.open_transfers(&id).await.unwrap(), [1, 3]);
    store.append(epoch, &id, &[Happening::TransferInterrupted { transfer: 1 }], 0).await.unwrap();
    assert_eq!(store.open_transfers(&id).await.unwrap(), [3]);
}

pub(super) async fn only_the_newest_engine_writes(store: &dyn Store) {
    let old = store.take_over(0).await.unwrap();
    let id = accept(store, old, &session(1)).await;
    let new = store.take_over(old + 7).await.unwrap();
    assert!(new > old + 7, "higher than what its caller knows of");
    assert!(new > old);
    let fenced = |result: &Result<_, StoreError>| matches!(result, Err(StoreError::Fenced { ours, theirs }) if (*ours, *theirs) == (old, new));
    let late = store.append(old, &id, &[Happening::Admitted], 0).await.map(drop);
    assert!(fenced(&late), "{late:?}");
    let late = store.accept(old, &session(2)).await.map(drop);
    assert!(fenced(&late), "{late:?}");
    let late = store.forget(old, std::slice::from_ref(&id)).await;
    assert!(fenced(&late), "{late:?}");
    store.append(new, &id, &[Happening::Admitted], 0).await.unwrap();
}

pub(super) async fn the_same_key_is_the_same_session(store: &dyn Store) {
    let epoch = store.take_over(0).await.unwrap();
    let first = of("a", Some("k"), 1);
    let id = accept(store, epoch, &first).await;
    let again = store.accept(epoch, &of("a", Some("k"), 2)).await.unwrap();
    assert_eq!(again, Accepted::Known(first));
    accept(store, epoch, &of("b", Some("k"), 3)).await;
    accept(store, epoch, &of("a", None, 4)).await;
    accept(store, epoch, &of("a", None, 5)).await;
    store.append(epoch, &id, &[ended(EndReason::Interrupted, 0)], 0).await.unwrap();
    accept(store, epoch, &of("a", Some("k"), 6)).await;
    assert!(store.session(&id).await.unwrap().is_some(), "the one that never ran is still on record");
}

pub(super) async fn a_name_is_given_once(store: &dyn Store) {
    let epoch = store.take_over(0).await.unwrap();
    let id = accept(store, epoch, &session(1)).await;
    let again = store.accept(epoch, &session(1)).await;
    assert!(matches!(&again, Err(StoreError::Taken(taken)) if *taken == id), "{again:?}");
}

pub(super) async fn lists_go_from_the_newest_back_page_by_page(store: &dyn Store) {
    let epoch = store.take_over(0).await.unwrap();
    for number in 0..25 {
        let mut session = of(if number % 2 == 0 { "even" } else { "odd" }, None, number);
        session.request.spec.labels = BTreeMap::from([("third".into(), (number % 3).to_string())]);
        let id = accept(store, epoch, &session).await;
        if number < 10 {
            store.append(epoch, &id, &[ended(EndReason::Killed, 0)], 0).await.unwrap();
        }
    }
    let listed = async |mut query: Query| {
        let (mut all, mut pages) = (Vec::new(), 0);
        loop {
            let page = store.sessions(&query).await.unwrap();
            assert!(page.sessions.len() <= query.limit as usize);
            all.extend(page.sessions.iter().map(|session| session.created_ms - 1_000));
            pages += 1;
            match page.cursor {
                Some(cursor) => query.cursor = Some(cursor),
                None => return (all, pages),
            }
        }
    };
    let all = listed(Query { limit: 10, ..Query::default() }).await;
    assert_eq!(all, ((0..25).rev().collect(), 3));
    let even = Query { limit: 100, tenant: Some(Tenant("even".into())), ..Query::default() };
    assert_eq!(listed(even).await, ((0..25).rev().filter(|number| number % 2 == 0).collect(), 1));
    let queued = Query { limit: 4, states: vec!["queued".into(), "running".into()], ..Query::default() };
    assert_eq!(listed(queued).await.0, (10..25).rev().collect::<Vec<_>>());
    let third = BTreeMap::from([("third".to_owned(), "1".to_owned())]);
    let found = listed(Query { limit: 3, labels: third, ..Query::default() }).await;
    assert_eq!(found.0, (0..25).rev().filter(|number| number % 3 == 1).collect::<Vec<_>>());
    let alive = store.alive().await.unwrap();
    assert_eq!(
        alive.iter().map(|session| session.created_ms - 1_000).collect::<Vec<_>>(),
        (10..25).collect::<Vec<_>>()
    );
}

pub(super) async fn what_is_rare_is_found_among_many(store: &dyn Store) {
    let epoch = store.take_over(0).await.unwrap();
    let rare = BTreeMap::from([("rare".to_owned(), "yes".to_owned())]);
    for number in 0..2_500u16 {
        let mut session = session(0);
        let [high, low] = number.to_be_bytes();
        let mut random = [0; 16];
        random[..4].copy_from_slice(&[high, low / 32, low % 32, 0]);
        session.id = SandboxId::from_random(random);
        session.created_ms = number.into();
        if number == 3 || number == 1_400 {
            session.request.spec.labels = rare.clone();
        }
        accept(store, epoch, &session).await;
    }
    let mut query = Query { limit: 1, labels: rare, ..Query::default() };
    for expected in [1_400, 3] {
        let page = store.sessions(&query).await.unwrap();
        assert_eq!(page.sessions.iter().map(|session| session.created_ms).collect::<Vec<_>>(), [expected]);
        query.cursor = page.cursor;
        assert_eq!(query.cursor.is_some(), expected == 1_400);
    }
    query.labels.insert("rare".into(), "no".into());
    let none = store.sessions(&query).await.unwrap();
    assert_eq!((none.sessions.len(), none.cursor), (0, None));
}

pub(super) async fn pages_fit_into_one_answer(store: &dyn Store) {
    let epoch = store.take_over(0).await.unwrap();
    for number in 0..12 {
        let mut session = session(number);
        let size = if number == 5 { 3_000_000 } else { 500_000 };
        session.request.spec.env.insert("LARGE".into(), "x".repeat(size));
        accept(store, epoch, &session).await;
    }
    let mut query = Query { limit: 1000, ..Query::default() };
    let mut all = Vec::new();
    loop {
        let page = store.sessions(&query).await.unwrap();
        let size = serde_json::to_vec(&page).unwrap().len();
        assert!(!page.sessions.is_empty() && size < belljar_core::wire::MAX_CONTROL, "{size} bytes");
        all.extend(page.sessions.iter().map(|session| session.created_ms - 1_000));
        query.cursor = page.cursor;
        if query.cursor.is_none() {
            break;
        }
    }
    assert_eq!(all, (0..12).rev().collect::<Vec<_>>(), "none twice, none left out");
}

pub(super) async fn what_is_over_is_forgotten_and_its_use_is_not(store: &dyn Store) {
    let epoch = store.take_over(0).await.unwrap();
    let mut ids = Vec::new();
    for number in 0..6 {
        let id = accept(store, epoch, &of("a", Some(&number.to_string()), number)).await;
        if number < 5 {
            let at = 1_000 * u64::from(number);
            store.append(epoch, &id, &[accepted_exec(1), ended(EndReason::Killed, 10)], at).await.unwrap();
        }
        ids.push(id);
    }
    let used = Meter { cpu_us: Amount::from(50), ..Meter::default() };
    assert_eq!(store.used(&Tenant("a".into())).await.unwrap(), used);
    assert_eq!(store.used(&Tenant("b".into())).await.unwrap(), Meter::default());
    let forgettable =
        async |ended_before_ms, most| store.forgettable(Retention { ended_before_ms, most }).await.unwrap();
    assert_eq!(forgettable(2_000, 100).await, ids[..2]);
    assert_eq!(forgettable(0, 2).await, ids[..3], "the newest two are kept");
    assert_eq!(forgettable(0, 5).await, []);
    // One that lives is not forgotten, whoever asks.
    store.forget(epoch, &[ids[0].clone(), ids[1].clone(), ids[5].clone()]).await.unwrap();
    assert_eq!(store.session(&ids[0]).await.unwrap(), None);
    assert_eq!(store.events(&ids[0], 0, 10).await.unwrap(), []);
    assert_eq!(store.executions(&ids[0]).await.unwrap(), []);
    assert!(store.session(&ids[5]).await.unwrap().is_some());
    assert_eq!(store.used(&Tenant("a".into())).await.unwrap(), used);
}

pub(super) async fn writers_at_once_lose_nothing(store: &dyn Store) {
    let epoch = store.take_over(0).await.unwrap();
    let sessions: Vec<Session> = (0..4).map(session).collect();
    for session in &sessions {
        accept(store, epoch, session).await;
    }
    let writes = (0..80u64).map(|number| {
        let id = &sessions[number as usize % 4].id;
        let what = [Happening::Extended { ttl_ms: number }];
        async move { store.append(epoch, id, &what, number).await.unwrap() }
    });
    futures_util::future::join_all(writes).await;
    for session in &sessions {
        let events = store.events(&session.id, 0, 1000).await.unwrap();
        assert_eq!(events.iter().map(|event| event.seq).collect::<Vec<_>>(), (1..=21).collect::<Vec<_>>());
    }
}
