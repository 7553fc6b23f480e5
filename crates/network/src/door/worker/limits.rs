//! How much of the network a sandbox may use, and all sandboxes of a tenant together: places, and buckets that fill again with time.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use belljar_core::{Moved, NetLimits};
use tokio::time::Instant;

/// How long somebody waits for a bucket to have enough.
const PATIENCE: Duration = Duration::from_secs(5);

/// The limits of one sandbox, or of a tenant, and how far they are used up.
#[derive(Debug)]
pub(super) struct Limits {
    bounds: Mutex<NetLimits>,
    open: AtomicU32,
    requests: Bucket,
    bytes: Bucket,
    sent: AtomicU64,
    received: AtomicU64,
    /// Those of the sandbox's tenant, which hold as well.
    tenant: Mutex<Option<Arc<Limits>>>,
}

/// Where bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    Out,
    In,
}

/// A limit that was reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reached {
    Connections,
    Requests,
    Total,
    /// The same of its tenant.
    TenantConnections,
    TenantRequests,
    TenantTotal,
}

impl Reached {
    /// The same limit, of the tenant.
    fn of_tenant(self) -> Self {
        match self {
            Self::Connections | Self::TenantConnections => Self::TenantConnections,
            Self::Requests | Self::TenantRequests => Self::TenantRequests,
            Self::Total | Self::TenantTotal => Self::TenantTotal,
        }
    }

    /// Whether somebody asked too often.
    pub(super) fn is_haste(self) -> bool {
        matches!(self, Self::Requests | Self::TenantRequests)
    }

    pub(super) fn is_tenants(self) -> bool {
        self == self.of_tenant()
    }
}

impl Limits {
    pub(super) fn new(bounds: NetLimits, moved: Moved) -> Self {
        Self {
            bounds: Mutex::new(bounds),
            open: AtomicU32::new(0),
            requests: Bucket::default(),
            bytes: Bucket::default(),
            sent: AtomicU64::new(moved.sent),
            received: AtomicU64::new(moved.received),
            tenant: Mutex::default(),
        }
    }

    /// Has those of a tenant hold too, from now on.
    pub(super) fn set_tenant(&self, tenant: Option<Arc<Self>>) {
        *self.tenant.lock().unwrap_or_else(PoisonError::into_inner) = tenant;
    }

    fn tenant(&self) -> Option<Arc<Self>> {
        self.tenant.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Counts from nothing again.
    pub(super) fn begin_anew(&self) {
        self.sent.store(0, Ordering::Relaxed);
        self.received.store(0, Ordering::Relaxed);
    }

    pub(super) fn set(&self, bounds: NetLimits) {
        *self.bounds.lock().unwrap_or_else(PoisonError::into_inner) = bounds;
    }

    pub(super) fn bounds(&self) -> NetLimits {
        *self.bounds.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A place for one more connection, until it is dropped.
    pub(super) fn connection(self: &Arc<Self>) -> Result<Place, Reached> {
        let own = self.place()?;
        let tenants = self.tenant().map(|tenant| tenant.place().map_err(Reached::of_tenant)).transpose()?;
        Ok(Place { _own: own, _tenants: tenants })
    }

    fn place(self: &Arc<Self>) -> Result<Taken, Reached> {
        let most = self.bounds().connections;
        let free = |open: u32| (open < most).then(|| open + 1);
        match self.open.fetch_update(Ordering::Relaxed, Ordering::Relaxed, free) {
            Ok(_) => Ok(Taken(self.clone())),
            Err(_) => Err(Reached::Connections),
        }
    }

    /// Waits until one more request may be made.
    pub(super) async fn request(&self) -> Result<(), Reached> {
        let mut wait = self.take_request()?;
        if let Some(tenant) = self.tenant() {
            wait = wait.max(tenant.take_request().map_err(Reached::of_tenant)?);
        }
        pause(wait).await;
        Ok(())
    }

    fn take_request(&self) -> Result<Duration, Reached> {
        self.total()?;
        let most = u64::from(self.bounds().requests_per_second);
        self.requests.take(1, most, PATIENCE).ok_or(Reached::Requests)
    }

    /// The same for one that does not wait.
    pub(super) fn try_request(&self) -> bool {
        let most = u64::from(self.bounds().requests_per_second);
        self.requests.take(1, most, Duration::ZERO).is_some()
    }

    /// Counts bytes that went through, and waits until more may.
    pub(super) async fn passed(&self, way: Way, bytes: u64) -> Result<(), Reached> {
        let own = self.count(way, bytes);
        // They went through, whatever the first says.
        let tenants = self.tenant().map(|tenant| tenant.count(way, bytes).map_err(Reached::of_tenant));
        let wait = own?.max(tenants.transpose()?.unwrap_or_default());
        pause(wait).await;
        Ok(())
    }

    fn count(&self, way: Way, bytes: u64) -> Result<Duration, Reached> {
        let count = if way == Way::Out { &self.sent } else { &self.received };
        count.fetch_add(bytes, Ordering::Relaxed);
        self.total()?;
        let wait = self.bytes.take(bytes, self.bounds().bytes_per_second.0, Duration::MAX);
        Ok(wait.unwrap_or_default())
    }

    fn total(&self) -> Result<(), Reached> {
        let Moved { sent, received, .. } = self.moved();
        let over = sent.saturating_add(received) >= self.bounds().total_bytes.0;
        if over { Err(Reached::Total) } else { Ok(()) }
    }

    /// What went through in all.
    pub(super) fn moved(&self) -> Moved {
        let (sent, received) = (self.sent.load(Ordering::Relaxed), self.received.load(Ordering::Relaxed));
        Moved { sent, received, complete: false }
    }
}

/// Waits this long. Not even for a moment if that is no time at all: the shortest that a timer can wait is a millisecond or more.
async fn pause(wait: Duration) {
    if !wait.is_zero() {
        tokio::time::sleep(wait).await;
    }
}

/// A place that is taken, also among those of the tenant.
#[derive(Debug)]
pub(super) struct Place {
    _own: Taken,
    _tenants: Option<Taken>,
}

#[derive(Debug)]
struct Taken(Arc<Limits>);

impl Drop for Taken {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::Relaxed);
    }
}

/// What is taken from it must have been filled in, at so much a second; it holds what comes in one second. More may be taken than
/// there is: then it owes, and whoever took waits until it does not.
#[derive(Debug, Default)]
struct Bucket(Mutex<Option<Level>>);

#[derive(Clone, Copy, Debug)]
struct Level {
    amount: f64,
    at: Instant,
}

impl Bucket {
    /// Takes this much, and says how long to wait; takes nothing if that is longer than `patience`.
    fn take(&self, amount: u64, per_second: u64, patience: Duration) -> Option<Duration> {
        let rate = per_second as f64;
        let now = Instant::now();
        let mut level = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let before = level.map_or(rate, |level| {
            (level.amount + now.duration_since(level.at).as_secs_f64() * rate).min(rate)
        });
        let after = before - amount as f64;
        let wait = Duration::try_from_secs_f64((-after / rate).max(0.0)).unwrap_or(Duration::MAX);
        if wait > patience {
            return None;
        }
        *level = Some(Level { amount: after, at: now });
        Some(wait)
    }
}

#[cfg(test)]
mod tests {
    use belljar_core::ByteSize;
    use futures_util::FutureExt;

    use super::*;

    fn limits(connections: u32, requests: u32, bytes: u64, total: u64) -> Arc<Limits> {
        Arc::new(Limits::new(
            NetLimits {
                connections,
                requests_per_second: requests,
                bytes_per_second: ByteSize(bytes),
                total_bytes: ByteSize(total),
            },
            Moved::default(),
        ))
    }

    #[test]
    fn places_are_given_back() {
        let limits = limits(2, 1, 1, 1);
        let places = [limits.connection().unwrap(), limits.connection().unwrap()];
        assert_eq!(limits.connection().unwrap_err(), Reached::Connections);
        drop(places);
        assert!(limits.connection().is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn a_burst_is_let_through_and_then_the_pace_is_kept() {
        let limits = limits(1, 10, 1000, 1 << 40);
        let began = Instant::now();
        for _ in 0..10 {
            limits.request().await.unwrap();
        }
        assert_eq!(began.elapsed(), Duration::ZERO);
        for _ in 0..20 {
            limits.request().await.unwrap();
        }
        let took = began.elapsed();
        assert!(took >= Duration::from_millis(1990) && took < Duration::from_millis(2100), "{took:?}");
        let began = Instant::now();
        limits.passed(Way::Out, 11_000).await.unwrap();
        assert!(began.elapsed() >= Duration::from_millis(9990), "{:?}", began.elapsed());
    }

    #[test]
    fn whoever_need_not_wait_does_not_even_give_up_its_turn() {
        let limits = limits(1, 10, 1000, 1 << 40);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let _inside = runtime.enter();
        assert_eq!(limits.request().now_or_never(), Some(Ok(())));
        assert_eq!(limits.passed(Way::Out, 1000).now_or_never(), Some(Ok(())));
        assert_eq!(limits.passed(Way::Out, 1000).now_or_never(), None, "nothing is left for this second");
    }

    #[tokio::test(start_paused = true)]
    async fn who_would_wait_too_long_is_turned_away() {
        let limits = limits(1, 10, 1000, 1 << 40);
        let many: Vec<_> = (0..100)
            .map(|_| {
                let limits = limits.clone();
                tokio::spawn(async move { limits.request().await })
            })
            .collect();
        let mut refused = 0;
        for one in many {
            refused += u32::from(one.await.unwrap() == Err(Reached::Requests));
        }
        assert_eq!(refused, 40, "ten at once, and fifty in five seconds");
    }

    #[tokio::test(start_paused = true)]
    async fn all_that_is_allowed_is_an_end() {
        let limits = limits(1, 10, 1 << 30, 100);
        limits.passed(Way::Out, 99).await.unwrap();
        limits.request().await.unwrap();
        assert_eq!(limits.passed(Way::Out, 1).await, Err(Reached::Total));
        assert_eq!(limits.request().await, Err(Reached::Total));
        limits.set(NetLimits { total_bytes: ByteSize(200), ..limits.bounds() });
        limits.request().await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn what_a_tenant_may_use_its_sandboxes_share() {
        let tenant = limits(3, 5, 1000, 10_000);
        let sandboxes = [0; 2].map(|_| {
            let sandbox = limits(2, 100, 1 << 30, 1 << 40);
            sandbox.set_tenant(Some(tenant.clone()));
            sandbox
        });
        let [one, other] = &sandboxes;
        let held = [one.connection().unwrap(), one.connection().unwrap()];
        assert_eq!(one.connection().unwrap_err(), Reached::Connections, "its own");
        let last = other.connection().unwrap();
        for _ in 0..2 {
            assert_eq!(other.connection().unwrap_err(), Reached::TenantConnections);
        }
        drop(held);
        assert!(other.connection().is_ok(), "a refusal took no place");
        drop(last);

        let began = Instant::now();
        for sandbox in [one, other, one, other, one] {
            sandbox.request().await.unwrap();
        }
        assert_eq!(began.elapsed(), Duration::ZERO);
        other.request().await.unwrap();
        assert!(began.elapsed() >= Duration::from_millis(190), "{:?}", began.elapsed());

        let began = Instant::now();
        one.passed(Way::Out, 1000).await.unwrap();
        assert_eq!(began.elapsed(), Duration::ZERO);
        other.passed(Way::In, 2000).await.unwrap();
        assert!(began.elapsed() >= Duration::from_millis(1990), "{:?}", began.elapsed());
        assert_eq!(other.passed(Way::In, 7000).await, Err(Reached::TenantTotal));
        assert_eq!(one.request().await, Err(Reached::TenantTotal));
        assert_eq!((one.moved().sent, other.moved().received), (1000, 9000), "each has its own count");
        tenant.begin_anew();
        one.request().await.unwrap();
        tenant.set(NetLimits { connections: 0, ..tenant.bounds() });
        assert_eq!(one.connection().unwrap_err(), Reached::TenantConnections);
        one.set_tenant(None);
        assert!(one.connection().is_ok());
        assert!(Reached::TenantRequests.is_tenants() && !Reached::Requests.is_tenants());
    }

    #[tokio::test(start_paused = true)]
    async fn bytes_beyond_ones_own_limit_are_the_tenants_too() {
        let (tenant, sandbox) = (limits(1, 1, 1 << 30, 1000), limits(1, 1, 1 << 30, 100));
        sandbox.set_tenant(Some(tenant.clone()));
        assert_eq!(sandbox.passed(Way::Out, 600).await, Err(Reached::Total));
        assert_eq!(tenant.moved().sent, 600);
    }
}
