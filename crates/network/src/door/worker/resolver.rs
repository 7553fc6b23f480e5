//! The addresses of names, asked of the host's own resolver, only for names that may be known.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use belljar_core::HostName;
use tokio::sync::Semaphore;
use tokio::time::Instant;

/// How long an answer is used again. Every address is judged again each time it is dialled.
const KEPT: Duration = Duration::from_secs(30);
/// How many answers are kept.
const MOST: usize = 4096;
/// How many questions are asked at once; each takes a thread.
const AT_ONCE: usize = 32;
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

#[derive(Debug)]
pub(super) struct Resolver {
    known: Mutex<HashMap<HostName, (Instant, Vec<IpAddr>)>>,
    asking: Semaphore,
}

impl Default for Resolver {
    fn default() -> Self {
        Self { known: Mutex::default(), asking: Semaphore::new(AT_ONCE) }
    }
}

impl Resolver {
    /// The addresses of a name, at least one.
    pub(super) async fn look_up(&self, name: &HostName) -> Result<Vec<IpAddr>, NoAddress> {
        if let Some(addresses) = self.kept(name) {
            return Ok(addresses);
        }
        let ask = async {
            let _place = self.asking.acquire().await;
            tokio::net::lookup_host((name.as_str(), 0)).await
        };
        let answer = tokio::time::timeout(PATIENCE, ask).await.map_err(|_| NoAddress::NoAnswer)?;
        let mut addresses: Vec<IpAddr> = answer
            .map_err(|error| {
                // The only way to tell the two apart that the standard library leaves.
                let passing = error.to_string().contains("Temporary failure");
                if passing { NoAddress::NoAnswer } else { NoAddress::Unknown }
            })?
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
