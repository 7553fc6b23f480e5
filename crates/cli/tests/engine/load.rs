//! More sessions than there is room for, and more than anybody wants to remember.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use belljar_core::{ErrorCode, ExecRequest, Provider, SandboxSpec};
use belljar_engine::event::{Event, Happening};
use belljar_engine::meter::Meter;
use belljar_engine::service::Client;
use belljar_engine::session::{Session, SessionRequest, Tenant};
use serde_json::Value;
use tokio::task::JoinSet;

use crate::surroundings::announce;
use crate::surroundings::processes::cgroups;
use crate::{House, runtime, setting};

fn request(tenant: &str) -> SessionRequest {
    let spec = SandboxSpec { ttl: Duration::from_secs(600), ..SandboxSpec::default() };
    SessionRequest { tenant: Tenant(tenant.to_owned()), spec, ..SessionRequest::default() }
}

/// The part below which this many hundredths of the values are.
fn percentile(sorted: &[Duration], hundredths: usize) -> Duration {
    sorted[(sorted.len() * hundredths / 100).min(sorted.len() - 1)]
}

/// A session that was asked for, however often one had to ask.
struct Made {
    tenant: &'static str,
    /// In which order it was there.
    place: u64,
    waited: Duration,
    refusals: u64,
}

#[test]
fn five_hundred_at_once_with_room_for_fifty_are_served_in_turn() {
    const EACH: [(&str, usize); 2] = [("many", 400), ("few", 100)];
    let mut house = House::new();
    house.start_with(&["--room", "50", "--line", "300", "--patience", "60s"]);
    let order = Arc::new(AtomicU64::new(0));
    let (calm, harm) = (AtomicBool::new(false), AtomicU64::new(0));
    let neighbour = house.create(600);
    let begun = Instant::now();
    let made: Vec<Made> = std::thread::scope(|scope| {
        // Whoever is there already is served as ever.
        let others = scope.spawn(|| {
            while !calm.load(Ordering::SeqCst) {
                if house.shell(&neighbour, "echo here")["stdout"] != "here\n" {
                    harm.fetch_add(1, Ordering::SeqCst);
                }
            }
        });
        let made = runtime().block_on(async {
            let client = house.client().await;
            let mut all = JoinSet::new();
            for (tenant, count) in EACH {
                for _ in 0..count {
                    all.spawn(one(client.clone(), tenant, order.clone()));
                }
            }
            all.join_all().await
        });
        calm.store(true, Ordering::SeqCst);
        others.join().unwrap();
        made
    });
    let took = begun.elapsed();
    assert_eq!(harm.load(Ordering::SeqCst), 0, "running sessions are not harmed");
    assert!(made.iter().map(|one| one.refusals).sum::<u64>() > 0, "the control: more came than could wait");
    // They take turns. Of those who were never refused, the last of the few has at most as many of the many before it
    // as there were of the few, and those who had room before anybody waited.
    let in_line = |tenant| made.iter().filter(move |one| one.tenant == tenant && one.refusals == 0);
    let few = in_line("few").count() as u64;
    let last = in_line("few").map(|one| one.place).max().unwrap();
    let before = in_line("many").filter(|one| one.place < last).count() as u64;
    assert!(few > 10 && before <= few + 50 + 50, "{before} of the many before the last of {few} few");
    let mut waited: Vec<Duration> = made.iter().map(|one| one.waited).collect();
    waited.sort();
    announce(&format!(
        "{} sessions in {took:?}, {:.0} a second; from request to running p50 {:?}, p99 {:?}",
        made.len(),
        made.len() as f64 / took.as_secs_f64(),
        percentile(&waited, 50),
        percentile(&waited, 99),
    ));
    let client = runtime().block_on(house.client());
    assert_eq!(runtime().block_on(client.list()).unwrap().len(), 1, "only the neighbour is left");
}

/// Asks until there is room, as one is told to; uses the session and ends it.
async fn one(client: Client, tenant: &'static str, order: Arc<AtomicU64>) -> Made {
    let (begun, mut refusals) = (Instant::now(), 0);
    let session = loop {
        match client.session_for(request(tenant)).await {
            Ok(accepted) => break accepted.session().clone(),
            Err(error) => {
                assert_eq!(error.code, ErrorCode::Overloaded, "{error}");
                let wait = error.retry_after_ms.expect("when to try again");
                refusals += 1;
                tokio::time::sleep(Duration::from_millis(wait)).await;
            }
        }
    };
    let (place, waited) = (order.fetch_add(1, Ordering::SeqCst), begun.elapsed());
    let sandbox = client.open(&session.id).await.unwrap();
    let result = sandbox.execute(ExecRequest::argv(["echo", "1"])).await.unwrap();
    assert_eq!(result.termination.exit_code(), Some(0));
    sandbox.cleanup().await.unwrap();
    Made { tenant, place, waited, refusals }
}

/// What an engine takes up: memory, descriptors, database.
#[derive(Clone, Copy, Debug)]
struct Taken {
    memory: u64,
    descriptors: usize,
    database: u64,
}

impl Taken {
    fn by(house: &House) -> Self {
        let pid = house.engine.as_ref().unwrap().id();
        let size = |file: &str| fs::metadata(house.home().join(file)).map_or(0, |data| data.len());
        Self {
            memory: house.resident(),
            descriptors: fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count(),
            database: size("engine.db") + size("engine.db-wal"),
        }
    }
}

/// Lives one short session, and reads its log before it is forgotten. What it used is answered.
async fn short(client: &Client, tenant: &str, number: u64) -> (Session, Meter) {
    let session = client.session_for(request(tenant)).await.unwrap().session().clone();
    let sandbox = client.open(&session.id).await.unwrap();
    let code = i32::try_from(number % 3).unwrap();
    let result = sandbox.execute(ExecRequest::shell(format!("echo {number}; exit {code}"))).await.unwrap();
    assert_eq!(
        (result.termination.exit_code(), &*result.stdout.head),
        (Some(code), &*format!("{number}\n").into_bytes())
    );
    sandbox.control().unwrap().kill().await.unwrap();
    let events = client.events(&session.id, 0, 100).await.unwrap();
    let numbers: Vec<u64> = events.iter().map(|event| event.seq).collect();
    assert_eq!(numbers, (1..=numbers.len() as u64).collect::<Vec<_>>(), "in order, without gaps");
    let names: Vec<&str> = events.iter().map(|event| event.what.name()).collect();
    let all = [
        "accepted",
        "admitted",
        "created",
        "exec_accepted",
        "exec_started",
        "exec_finished",
        "ending",
        "ended",
    ];
    assert_eq!(names, all);
    assert!(
        events.windows(2).all(|pair| pair[0].time_ms <= pair[1].time_ms),
        "in the order of time: {events:?}"
    );
    let ended = client.session(&session.id).await.unwrap();
    let meter = sums(&events);
    assert_eq!(ended.meter, Some(meter), "the session's is what its log says");
    (ended, meter)
}

/// What a log says the session used; the parts are not more than the whole.
fn sums(events: &[Event]) -> Meter {
    let executions: u64 = events
        .iter()
        .filter_map(|event| match &event.what {
            Happening::ExecFinished { meter, .. } => Some(meter.cpu_us.exact().expect("known")),
            _ => None,
        })
        .sum();
    let Some(Happening::Ended { meter, .. }) = events.last().map(|event| &event.what) else {
        panic!("not ended: {events:?}")
    };
    assert!(executions > 0 && executions <= meter.cpu_us.exact().expect("known"), "{events:?}");
    *meter
}

#[test]
fn short_sessions_without_end_leave_the_engine_as_it_was() {
    let count = setting("BELLJAR_ENGINE_SESSIONS", 300);
    let mut house = House::new();
    house.start_with(&["--most", "200"]);
    // The template is looked for once.
    assert!(house.run(&["run", "--", "true"]).status.success());
    let (runtime, next) = (runtime(), AtomicU64::new(0));
    let client = runtime.block_on(house.client());
    let used: std::sync::Mutex<BTreeMap<&str, Meter>> = std::sync::Mutex::default();
    let begun = Instant::now();
    let live = |until: u64| {
        std::thread::scope(|scope| {
            for tenant in ["one", "other", "one"] {
                let (client, next, used, runtime) = (&client, &next, &used, &runtime);
                scope.spawn(move || {
                    runtime.block_on(async {
                        loop {
                            let number = next.fetch_add(1, Ordering::SeqCst);
                            if number >= until {
                                return;
                            }
                            let (_, meter) = short(client, tenant, number).await;
                            *used.lock().unwrap().entry(tenant).or_default() += meter;
                        }
                    })
                });
            }
        });
        next.store(until, Ordering::SeqCst);
        Taken::by(&house)
    };
    // What is kept has reached its bound by then.
    let early = live(count.min(2000).max(count / 5));
    let late = live(count);
    let took = begun.elapsed();
    announce(&format!("{count} sessions in {took:?}: at first {early:?}, in the end {late:?}"));
    assert!(late.memory < early.memory + (8 << 20), "memory: {early:?}, {late:?}");
    assert!(late.descriptors <= early.descriptors + 8, "descriptors: {early:?}, {late:?}");
    assert!(late.database < early.database + (4 << 20), "database: {early:?}, {late:?}");
    // Sessions are forgotten; what was used is not, to the unit.
    for (tenant, meter) in used.into_inner().unwrap() {
        let (billed, _) = runtime.block_on(client.used(&Tenant(tenant.to_owned()))).unwrap();
        assert_eq!(billed, meter, "{tenant}");
    }
    let left = runtime.block_on(client.sessions(Default::default())).unwrap();
    crate::until("old ones are forgotten", || {
        fs::read_dir(house.home().join("sandboxes")).unwrap().count() <= 210
    });
    assert!(!left.sessions.is_empty(), "the last ones are still there");
}

/// Processor time of a sandbox, as its cgroup has it, in microseconds.
fn counted_by_kernel(slot: u32) -> u64 {
    let of = |group: PathBuf| {
        let stat = fs::read_to_string(group.join("box/cpu.stat")).unwrap_or_default();
        let v2 = stat.lines().find_map(|line| line.strip_prefix("usage_usec ")?.parse().ok());
        let v1 = || fs::read_to_string(group.join("box/cpuacct.usage")).ok()?.trim().parse::<u64>().ok();
        v2.or_else(|| Some(v1()? / 1000))
    };
    cgroups(slot).into_iter().find_map(of).expect("a cgroup that counts processor time")
}

#[test]
fn what_is_billed_is_what_the_kernel_counted() {
    let mut house = House::new();
    house.start(None);
    let runtime = runtime();
    let id = house.create(600);
    let slot = u32::try_from(house.built(&id)["slot"].as_u64().unwrap()).unwrap();
    let sandbox = runtime.block_on(async { house.client().await.open(&id.parse().unwrap()).await.unwrap() });
    let control = sandbox.control().unwrap();
    for round in 1..=3 {
        house.shell(&id, &format!("i=0; while [ $i -lt {round}0000 ]; do i=$((i+1)); done"));
        let before = counted_by_kernel(slot);
        let told = runtime.block_on(control.stats()).unwrap().cpu_us.unwrap();
        assert!((before..=counted_by_kernel(slot)).contains(&told), "{told}, not {before} or a little more");
    }
    let before = counted_by_kernel(slot);
    assert!(house.run(&["kill", &id]).status.success());
    let events = house.events(&id);
    let used = |event: &Value| event["meter"]["cpu_us"]["known"].as_u64().unwrap();
    let whole = used(events.last().unwrap());
    assert!(whole >= before, "{whole} {before}");
    let executions: u64 = events.iter().filter(|event| event["event"] == "exec_finished").map(used).sum();
    let stats = runtime.block_on(control.info()).unwrap().stats.unwrap();
    assert_eq!(stats.cpu_us, Some(whole), "{stats:?}");
    assert_eq!(executions + stats.besides_cpu_us.unwrap(), whole, "to the unit");
    assert_eq!(house.json(&["usage"])["meter"]["cpu_us"]["known"], whole, "and so is the bill");
}
