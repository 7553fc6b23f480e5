//! Places for connections whose TLS is open, which take memory of ours: so many for each sandbox, and so many for all. When all are
//! taken, a connection on which nothing is asked gives its place to another.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use belljar_core::SandboxId;
use tokio::sync::Notify;

/// All places.
#[derive(Debug)]
pub(super) struct Rooms {
    /// For one sandbox, and for all.
    most: [usize; 2],
    taken: Mutex<Taken>,
}

#[derive(Debug, Default)]
struct Taken {
    /// Those that are taken, by number.
    rooms: BTreeMap<u64, Guest>,
    /// Grows with everything that happens.
    clock: u64,
}

/// Whoever has a place.
#[derive(Debug)]
struct Guest {
    sandbox: SandboxId,
    under_way: u32,
    /// When something was last under way.
    at: u64,
    asked_for: Arc<Notify>,
}

impl Taken {
    fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    /// The place that somebody of this sandbox may have: of those on which nothing is asked, the one that has been so longest, of
    /// the sandbox that has most places. Nobody gives way to a sandbox that has more than its own.
    fn to_give_up(&self, to: &SandboxId) -> Option<u64> {
        let mut count = HashMap::<_, usize>::new();
        self.rooms.values().for_each(|guest| *count.entry(&guest.sandbox).or_default() += 1);
        let of = |sandbox: &SandboxId| count.get(sandbox).copied().unwrap_or_default();
        let idle = self.rooms.iter().filter(|(_, guest)| guest.under_way == 0);
        let fair = idle.filter(|(_, guest)| of(&guest.sandbox) >= of(to));
        let first = fair.max_by_key(|(_, guest)| (of(&guest.sandbox), std::cmp::Reverse(guest.at)));
        first.map(|(number, _)| *number)
    }
}

impl Rooms {
    pub(super) fn new(most: [usize; 2]) -> Arc<Self> {
        Arc::new(Self { most, taken: Mutex::default() })
    }

    fn taken(&self) -> MutexGuard<'_, Taken> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A place for a connection, if there is one or somebody gives up theirs.
    pub(super) fn take(self: &Arc<Self>, sandbox: &SandboxId) -> Option<Room> {
        let mut taken = self.taken();
        let [each, all] = self.most;
        if taken.rooms.values().filter(|guest| guest.sandbox == *sandbox).count() >= each {
            return None;
        }
        if taken.rooms.len() >= all {
            let number = taken.to_give_up(sandbox)?;
            if let Some(guest) = taken.rooms.remove(&number) {
                guest.asked_for.notify_one();
            }
        }
        let (number, asked_for) = (taken.tick(), Arc::new(Notify::new()));
        let guest =
            Guest { sandbox: sandbox.clone(), under_way: 0, at: number, asked_for: asked_for.clone() };
        taken.rooms.insert(number, guest);
        Some(Room { rooms: self.clone(), number, asked_for })
    }
}

/// A place that is taken, until this is dropped.
#[derive(Debug)]
pub(super) struct Room {
    rooms: Arc<Rooms>,
    number: u64,
    asked_for: Arc<Notify>,
}

impl Drop for Room {
    fn drop(&mut self) {
        self.rooms.taken().rooms.remove(&self.number);
    }
}

impl Room {
    /// Waits until somebody else has got it; the connection is to be closed then.
    pub(super) async fn given_up(&self) {
        self.asked_for.notified().await;
    }

    /// Says that a request is under way, until this is dropped.
    pub(super) fn busy(self: &Arc<Self>) -> Busy {
        self.change(|under_way| under_way + 1);
        Busy(self.clone())
    }

    fn change(&self, change: impl Fn(u32) -> u32) {
        let mut taken = self.rooms.taken();
        let at = taken.tick();
        if let Some(guest) = taken.rooms.get_mut(&self.number) {
            (guest.under_way, guest.at) = (change(guest.under_way), at);
        }
    }
}

/// A request that is under way.
#[derive(Debug)]
pub(super) struct Busy(Arc<Room>);

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.change(|under_way| under_way.saturating_sub(1));
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    fn sandboxes<const N: usize>() -> [SandboxId; N] {
        std::array::from_fn(|number| SandboxId::from_random([number as u8 + 1; 16]))
    }

    fn has_lost(room: &Room) -> bool {
        room.given_up().now_or_never().is_some()
    }

    #[test]
    fn the_longest_idle_of_whoever_has_most_gives_way() {
        let [many, few, new] = sandboxes();
        let rooms = Rooms::new([4, 6]);
        let of_few: Vec<_> = (0..2).map(|_| Arc::new(rooms.take(&few).unwrap())).collect();
        let of_many: Vec<_> = (0..4).map(|_| Arc::new(rooms.take(&many).unwrap())).collect();
        assert!(rooms.take(&many).is_none(), "it has as many as one may have");
        // The first of them has something under way, and the second had a moment ago.
        let busy = of_many[0].busy();
        drop(of_many[1].busy());
        let _new = rooms.take(&new).unwrap();
        let lost = |rooms: &[Arc<Room>]| rooms.iter().map(|room| has_lost(room)).collect::<Vec<_>>();
        assert_eq!(lost(&of_many), [false, false, true, false]);
        assert_eq!(lost(&of_few), [false, false]);
        // Whoever lost its place has none to give back.
        drop((busy, of_many));
        let again: Vec<_> = (0..3).map(|_| rooms.take(&many).unwrap()).collect();
        assert!(!again.iter().any(has_lost) && rooms.taken().rooms.len() == 6);
    }

    #[test]
    fn nobody_gives_way_to_whoever_has_more_or_while_something_is_under_way() {
        let [many, few, new] = sandboxes();
        let rooms = Rooms::new([4, 4]);
        let of_few = Arc::new(rooms.take(&few).unwrap());
        let of_many: Vec<_> = (0..3).map(|_| Arc::new(rooms.take(&many).unwrap())).collect();
        let busy: Vec<_> = of_many.iter().map(Room::busy).collect();
        assert!(rooms.take(&many).is_none(), "only one that has less is idle");
        let _new = rooms.take(&new).unwrap();
        assert!(has_lost(&of_few));
        drop(busy);
        let _more = rooms.take(&many).unwrap();
        assert!(has_lost(&of_many[0]), "its own");
    }
}
