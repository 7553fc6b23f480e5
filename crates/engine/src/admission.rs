//! Who may use the machine, when more is asked for than it has.
//!
//! There is room for so many sessions at once. Whoever comes when it is full waits in a line of bounded length, for as long as
//! they care to; beyond that they are told when to try again. Tenants take turns, and share the line: one that asks for a
//! thousand holds up another that asks for one by a single session.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::oneshot;

use crate::session::Tenant;

/// How much there is room for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capacity {
    /// Sessions at once.
    pub running: usize,
    /// Requests that wait at once.
    pub waiting: usize,
}

/// There is no room, and will be none in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no room for another session; try again in {} s", .retry_after.as_secs())]
pub struct Overloaded {
    /// When it is worth trying again.
    pub retry_after: Duration,
}

/// Lets sessions in.
#[derive(Debug)]
pub struct Admission {
    capacity: Capacity,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    taken: usize,
    waiting: usize,
    lines: HashMap<Tenant, VecDeque<oneshot::Sender<Permit>>>,
    /// Tenants with someone in line, the next to be served first.
    turns: VecDeque<Tenant>,
    pace: Pace,
}

impl State {
    /// Makes a place in a line that is full, if somebody has so many that they can do with one less: the last of theirs is
    /// refused, as if it had come now.
    fn displace_for(&mut self, newcomer: &Tenant) -> bool {
        let own = self.lines.get(newcomer).map_or(0, VecDeque::len);
        let longest = self.lines.values_mut().max_by_key(|line| line.len());
        let Some(longest) = longest.filter(|line| line.len() > own + 1) else { return false };
        longest.pop_back();
        self.waiting -= 1;
        true
    }
}

/// How fast room becomes free.
#[derive(Debug, Default)]
struct Pace {
    last: Option<Instant>,
    between: Option<Duration>,
}

impl Pace {
    fn beat(&mut self, now: Instant) {
        if let Some(last) = self.last.replace(now) {
            let since = now.saturating_duration_since(last);
            self.between = Some(self.between.map_or(since, |between| (between * 7 + since) / 8));
        }
    }

    /// How long it will take until so many have left.
    fn time_for(&self, count: usize) -> Duration {
        // Before anybody has left there is nothing to go by, and asking again costs little.
        let between = self.between.unwrap_or(Duration::ZERO);
        (between * u32::try_from(count).unwrap_or(u32::MAX))
            .clamp(Duration::from_secs(1), Duration::from_secs(60))
    }
}

/// Room for one session; it becomes free when this is dropped.
#[derive(Debug)]
pub struct Permit(Option<Arc<Admission>>);

impl Drop for Permit {
    fn drop(&mut self) {
        if let Some(admission) = self.0.take() {
            admission.release();
        }
    }
}

impl Admission {
    /// Nobody is in yet.
    pub fn new(capacity: Capacity) -> Arc<Self> {
        Arc::new(Self { capacity, state: Mutex::default() })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for room. Dropping the future leaves the line.
    pub async fn admit(self: &Arc<Self>, tenant: Tenant, patience: Duration) -> Result<Permit, Overloaded> {
        let place = {
            let mut state = self.state();
            // Whoever comes late does not go before those who wait.
            if state.taken < self.capacity.running && state.waiting == 0 {
                state.taken += 1;
                return Ok(Permit(Some(self.clone())));
            }
            let full = state.waiting >= self.capacity.waiting;
            if patience.is_zero() || (full && !state.displace_for(&tenant)) {
                return Err(Overloaded { retry_after: state.pace.time_for(state.waiting + 1) });
            }
            let (sender, receiver) = oneshot::channel();
            state.waiting += 1;
            let line = state.lines.entry(tenant.clone()).or_default();
            line.push_back(sender);
            if line.len() == 1 {
                state.turns.push_back(tenant.clone());
            }
            Place { admission: self.clone(), tenant, receiver }
        };
        place.wait(patience).await
    }

    /// Room for a session that is there already, whether or not there is any.
    pub fn take(self: &Arc<Self>) -> Permit {
        self.state().taken += 1;
        Permit(Some(self.clone()))
    }

    /// How many have room, and how many wait.
    pub fn counts(&self) -> (usize, usize) {
        let state = self.state();
        (state.taken, state.waiting)
    }

    fn release(self: &Arc<Self>) {
        let mut state = self.state();
        state.taken -= 1;
        state.pace.beat(Instant::now());
        self.serve(&mut state);
    }

    /// Gives free room to those whose turn it is.
    fn serve(self: &Arc<Self>, state: &mut State) {
        while state.taken < self.capacity.running {
            let Some(tenant) = state.turns.pop_front() else { return };
            let Some(line) = state.lines.get_mut(&tenant) else { continue };
            let next = line.pop_front();
            if line.is_empty() {
                state.lines.remove(&tenant);
            } else {
                state.turns.push_back(tenant);
            }
            let Some(next) = next else { continue };
            state.waiting -= 1;
            state.taken += 1;
            if let Err(mut refused) = next.send(Permit(Some(self.clone()))) {
                // Whoever waited has gone. Taken apart here, for dropping it would ask for the lock that we hold.
                refused.0 = None;
                state.taken -= 1;
            }
        }
    }
}

/// A place in line.
struct Place {
    admission: Arc<Admission>,
    tenant: Tenant,
    receiver: oneshot::Receiver<Permit>,
}

impl Place {
    async fn wait(mut self, patience: Duration) -> Result<Permit, Overloaded> {
        if let Ok(Ok(permit)) = tokio::time::timeout(patience, &mut self.receiver).await {
            return Ok(permit);
        }
        // It may have come in the last moment.
        if let Ok(permit) = self.receiver.try_recv() {
            return Ok(permit);
        }
        let state = self.admission.state();
        Err(Overloaded { retry_after: state.pace.time_for(state.waiting) })
    }
}

impl Drop for Place {
    /// Leaves the line, so that its length is true.
    fn drop(&mut self) {
        self.receiver.close();
        let late = self.receiver.try_recv();
        let mut state = self.admission.state();
        let State { lines, turns, waiting, .. } = &mut *state;
        if let Some(line) = lines.get_mut(&self.tenant) {
            let before = line.len();
            line.retain(|sender| !sender.is_closed());
            *waiting -= before - line.len();
            if line.is_empty() {
                lines.remove(&self.tenant);
                turns.retain(|tenant| *tenant != self.tenant);
            }
        }
        drop(state);
        drop(late);
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    const LONG: Duration = Duration::from_secs(600);

    fn tenant(name: &str) -> Tenant {
        Tenant(name.to_owned())
    }

    fn capacity(running: usize, waiting: usize) -> Arc<Admission> {
        Admission::new(Capacity { running, waiting })
    }

    #[tokio::test(start_paused = true)]
    async fn tenants_take_turns() {
        let admission = capacity(1, 100);
        let first = admission.admit(tenant("greedy"), LONG).await.unwrap();
        let order = Arc::new(Mutex::new(Vec::new()));
        let mut tasks = Vec::new();
        let names = ["greedy"; 5].into_iter().chain(["modest"; 2]);
        for name in names {
            let (waits, order) = (admission.clone(), order.clone());
            tasks.push(tokio::spawn(async move {
                let permit = waits.admit(tenant(name), LONG).await.unwrap();
                order.lock().unwrap().push(name);
                tokio::time::sleep(Duration::from_secs(1)).await;
                drop(permit);
            }));
            tokio::task::yield_now().await;
        }
        drop(first);
        for task in tasks {
            task.await.unwrap();
        }
        let expected = ["greedy", "modest", "greedy", "modest", "greedy", "greedy", "greedy"];
        assert_eq!(*order.lock().unwrap(), expected);
        assert_eq!(admission.counts(), (0, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn a_line_is_bounded_and_whoever_is_refused_is_told_when_to_come_again() {
        let admission = capacity(1, 1);
        let held = admission.admit(tenant("a"), LONG).await.unwrap();
        let waits = admission.admit(tenant("a"), Duration::from_secs(5));
        tokio::pin!(waits);
        assert!(waits.as_mut().now_or_never().is_none());
        let refused = admission.admit(tenant("b"), LONG).await.unwrap_err();
        assert!(refused.retry_after >= Duration::from_secs(1), "{refused}");
        assert!(waits.await.is_err(), "its patience ended");
        assert_eq!(admission.counts(), (1, 0));
        drop(held);
        drop(admission.admit(tenant("b"), Duration::ZERO).await.unwrap());
        assert_eq!(admission.counts(), (0, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn nobody_fills_the_line_for_others() {
        let admission = capacity(1, 4);
        let _held = admission.admit(tenant("greedy"), LONG).await.unwrap();
        let mut greedy: Vec<_> = (0..4).map(|_| Box::pin(admission.admit(tenant("greedy"), LONG))).collect();
        assert!(greedy.iter_mut().all(|waits| waits.now_or_never().is_none()));
        let mut modest: Vec<_> = (0..3).map(|_| Box::pin(admission.admit(tenant("modest"), LONG))).collect();
        let refused: Vec<bool> = modest.iter_mut().map(|waits| waits.now_or_never().is_some()).collect();
        assert_eq!(refused, [false, false, true], "half of the line");
        let refused: Vec<bool> = greedy.iter_mut().map(|waits| waits.now_or_never().is_some()).collect();
        assert_eq!(refused, [false, false, true, true], "those who came last");
        assert_eq!(admission.counts(), (1, 4));
        drop((greedy, modest));
        assert_eq!(admission.counts(), (1, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn whoever_leaves_the_line_takes_no_room() {
        let admission = capacity(1, 10);
        let held = admission.admit(tenant("a"), LONG).await.unwrap();
        let mut leaves = Box::pin(admission.admit(tenant("a"), LONG));
        let mut stays = Box::pin(admission.admit(tenant("a"), LONG));
        assert!(leaves.as_mut().now_or_never().is_none() && stays.as_mut().now_or_never().is_none());
        assert_eq!(admission.counts(), (1, 2));
        drop(leaves);
        assert_eq!(admission.counts(), (1, 1));
        drop(held);
        // Left after it was given room, and before it could take it.
        assert_eq!(admission.counts(), (1, 0));
        drop(stays);
        assert_eq!(admission.counts(), (0, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_there_already_is_counted_even_beyond_the_room() {
        let admission = capacity(1, 10);
        let there = [admission.take(), admission.take()];
        let mut waits = Box::pin(admission.admit(tenant("a"), LONG));
        assert!(waits.as_mut().now_or_never().is_none());
        let [first, second] = there;
        drop(first);
        assert!(waits.as_mut().now_or_never().is_none(), "one is still there");
        drop(second);
        assert!(waits.as_mut().now_or_never().is_some());
    }
}
