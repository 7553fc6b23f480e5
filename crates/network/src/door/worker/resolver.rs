//! The addresses of names, asked of the host's own resolver, only for names that may be known.

use std::collections::HashMap;
use std::net::{IpAddr, ToSocketAddrs};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use belljar_core::HostName;
use tokio::sync::Semaphore;
use tokio::time::Instant;

/// How long an answer is used again. Every address is judged again each time it is dialled.
const KEPT: Duration = Duration::from_secs(30);
/// How many answers are kept.
const MOST: usize = 4096;
/// How many questions of one sandbox are asked at once; each takes a thread until it is answered, however long nobody waits any
/// more.
pub(super) const AT_ONCE: usize = 4;
/// How long a question may take.
const PATIENCE: Duration = Duration::from_secs(15);
/// Addresses of one name that are looked at.
const MOST_ADDRESSES: usize = 16;

/// Why there is no address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum NoAddress {
    #[error("there is no host of this name")]
    Unknown,
    #[error("the host's resolver does not answer")]
    NoAnswer,
}

#[derive(Debug, Default)]
pub(super) struct Resolver {
    known: Mutex<HashMap<HostName, (Instant, Vec<IpAddr>)>>,
}

impl Resolver {
    /// The addresses of a name, at least one. `places` are the asking sandbox's.
    pub(super) async fn look_up(
        &self,
        name: &HostName,
        places: &Arc<Semaphore>,
    ) -> Result<Vec<IpAddr>, NoAddress> {
        if let Some(addresses) = self.kept(name) {
            return Ok(addresses);
        }
        let ask = async {
            let place = places.clone().acquire_owned().await;
            let name = name.clone();
            let asked = tokio::task::spawn_blocking(move || {
                let answer = (name.as_str(), 0).to_socket_addrs().map(Iterator::collect::<Vec<_>>);
                drop(place);
                answer
            });
            asked.await.map_err(std::io::Error::other)?
        };
        let answer = tokio::time::timeout(PATIENCE, ask).await.map_err(|_| NoAddress::NoAnswer)?;
        let mut addresses: Vec<IpAddr> = answer
            .map_err(|error| {
                // The only way to tell the two apart that the standard library leaves.
                let passing = error.to_string().contains("Temporary failure");
                if passing { NoAddress::NoAnswer } else { NoAddress::Unknown }
            })?
            .into_iter()
            .map(|address| address.ip())
            .take(MOST_ADDRESSES)
            .collect();
        let mut seen = Vec::new();
        addresses.retain(|address| {
            !seen.contains(address) && {
                seen.push(*address);
                true
            }
        });
        if addresses.is_empty() {
            return Err(NoAddress::Unknown);
        }
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= MOST {
            known.retain(|_, (at, _)| at.elapsed() < KEPT);
        }
        if known.len() < MOST {
            known.insert(name.clone(), (Instant::now(), addresses.clone()));
        }
        Ok(addresses)
    }

    fn kept(&self, name: &HostName) -> Option<Vec<IpAddr>> {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.get(name).filter(|(at, _)| at.elapsed() < KEPT).map(|(_, addresses)| addresses.clone())
    }
}
