//! Addresses that are made up for names, one for each, so that the door knows which name a connection is meant for.

use std::collections::{HashMap, VecDeque};
use std::net::{IpAddr, Ipv4Addr};

use belljar_core::HostName;

/// From here on; a block that nobody may use in the world, set aside for tests of devices.
const FIRST: u32 = u32::from_be_bytes([198, 18, 0, 0]);
/// How many addresses there are. They are given in turn, so that one is not given again for long.
const ADDRESSES: u32 = 1 << 17;
/// How many names are remembered; older ones have to be looked up again.
const MOST: usize = 4096;

/// The names that a sandbox has looked up.
#[derive(Debug, Default)]
pub(super) struct Names {
    places: HashMap<HostName, u32>,
    names: HashMap<u32, HostName>,
    /// The oldest first.
    order: VecDeque<u32>,
    next: u32,
}

impl Names {
    /// Those of before, the oldest first. The next name gets no place before `first`, so that none gets one that another had
    /// and nobody remembers.
    pub(super) fn restored(given: Vec<(u32, HostName)>, first: u32) -> Self {
        let mut names = Self { next: first % ADDRESSES, ..Self::default() };
        for (place, name) in given {
            names.put(place % ADDRESSES, name);
        }
        names
    }

    /// The address of a name, and its place if that is new.
    pub(super) fn address(&mut self, name: &HostName) -> (Ipv4Addr, Option<u32>) {
        let (place, new) = match self.places.get(name) {
            Some(place) => (*place, None),
            None => {
                let place = self.next;
                self.put(place, name.clone());
                (place, Some(place))
            }
        };
        (Ipv4Addr::from(FIRST + place), new)
    }

    fn put(&mut self, place: u32, name: HostName) {
        if self.order.len() == MOST
            && let Some(oldest) = self.order.pop_front()
            && let Some(old) = self.names.remove(&oldest)
        {
            self.places.remove(&old);
        }
        self.places.insert(name.clone(), place);
        self.names.insert(place, name);
        self.order.push_back(place);
        self.next = (place + 1) % ADDRESSES;
    }

    /// The name that an address was made up for; an error if it could be one and is not known (any more).
    pub(super) fn name(&self, address: IpAddr) -> Result<Option<HostName>, Forgotten> {
        let IpAddr::V4(address) = address else { return Ok(None) };
        let place = u32::from(address).wrapping_sub(FIRST);
        if place >= ADDRESSES {
            return Ok(None);
        }
        self.names.get(&place).cloned().map(Some).ok_or(Forgotten)
    }
}

/// An address that stands for no name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Forgotten;

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> HostName {
        text.parse().unwrap()
    }

    #[test]
    fn a_name_has_one_address_and_that_leads_back_to_it() {
        let mut names = Names::default();
        let (one, new) = names.address(&name("one.example"));
        assert_eq!((one, new), (Ipv4Addr::new(198, 18, 0, 0), Some(0)));
        assert_eq!(names.address(&name("one.example")), (one, None));
        let (other, _) = names.address(&name("other.example"));
        assert_ne!(one, other);
        assert_eq!(names.name(one.into()), Ok(Some(name("one.example"))));
        assert_eq!(names.name(other.into()), Ok(Some(name("other.example"))));
        assert_eq!(names.name("198.19.255.255".parse().unwrap()), Err(Forgotten));
        for elsewhere in ["198.17.255.255", "198.20.0.0", "127.0.0.1", "::1"] {
            assert_eq!(names.name(elsewhere.parse().unwrap()), Ok(None), "{elsewhere}");
        }
    }

    #[test]
    fn the_oldest_are_forgotten_and_their_addresses_not_given_to_others_soon() {
        let mut names = Names::default();
        let (first, _) = names.address(&name("n0.example"));
        for number in 1..=MOST {
            let (address, _) = names.address(&name(&format!("n{number}.example")));
            assert_ne!(address, first);
        }
        assert_eq!(names.name(first.into()), Err(Forgotten), "not another's");
        assert_eq!(names.names.len(), MOST);
        assert_eq!(names.places.len(), MOST);
    }

    #[test]
    fn what_is_restored_is_as_it_was() {
        let mut names = Names::default();
        let given: Vec<_> = ["a.example", "b.example"]
            .iter()
            .map(|text| (names.address(&name(text)).1.unwrap(), name(text)))
            .collect();
        let mut again = Names::restored(given, 0);
        assert_eq!(again.address(&name("b.example")), (Ipv4Addr::new(198, 18, 0, 1), None));
        assert_eq!(again.address(&name("c.example")).0, Ipv4Addr::new(198, 18, 0, 2));
    }
}
