//! How much of the network a sandbox may use: places, and buckets that fill again with time.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use belljar_core::{Moved, NetLimits};
use tokio::time::Instant;

/// How long somebody waits for a bucket to have enough.
const PATIENCE: Duration = Duration::from_secs(5);

/// The limits of one sandbox, and how far they are used up.
#[derive(Debug)]
pub(super) struct Limits {
    bounds: Mutex<NetLimits>,
    open: AtomicU32,
    requests: Bucket,
    bytes: Bucket,
    sent: AtomicU64,
    received: AtomicU64,
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
        }
    }

    pub(super) fn set(&self, bounds: NetLimits) {
        *self.bounds.lock().unwrap_or_else(PoisonError::into_inner) = bounds;
    }

    pub(super) fn bounds(&self) -> NetLimits {
        *self.bounds.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A place for one more connection, until it is dropped.
    pub(super) fn connection(self: &Arc<Self>) -> Result<Place, Reached> {
        let most = self.bounds().connections;
        let free = |open: u32| (open < most).then(|| open + 1);
        match self.open.fetch_update(Ordering::Relaxed, Ordering::Relaxed, free) {
            Ok(_) => Ok(Place(self.clone())),
            Err(_) => Err(Reached::Connections),
        }
    }

    /// Waits until one more request may be made.
    pub(super) async fn request(&self) -> Result<(), Reached> {
        self.total()?;
        let wait = self.requests.take(1, u64::from(self.bounds().requests_per_second), PATIENCE);
        pause(wait.ok_or(Reached::Requests)?).await;
        Ok(())
    }

    /// The same for one that does not wait.
    pub(super) fn try_request(&self) -> bool {
        let most = u64::from(self.bounds().requests_per_second);
        self.requests.take(1, most, Duration::ZERO).is_some()
    }

    /// Counts bytes that went through, and waits until more may.
    pub(super) async fn passed(&self, way: Way, bytes: u64) -> Result<(), Reached> {
        let count = if way == Way::Out { &self.sent } else { &self.received };
        count.fetch_add(bytes, Ordering::Relaxed);
        self.total()?;
        let wait = self.bytes.take(bytes, self.bounds().bytes_per_second.0, Duration::MAX);
        pause(wait.unwrap_or_default()).await;
        Ok(())
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

/// A place that is taken.
#[derive(Debug)]
pub(super) struct Place(Arc<Limits>);

impl Drop for Place {
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
}
