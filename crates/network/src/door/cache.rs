//! The cache as the supervisor keeps it: it alone has its files. What the worker brings is believed to be nothing but bytes.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

use belljar_core::{CACHE_FILE, CachePlan, Tenant};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::pipe::{PipeFlags, fcntl_setpipe_size, pipe_with};
use tokio::sync::Semaphore;

use super::message::{Order, Wish};
use super::supervisor::{MAX_POLICY, read};
use crate::cache::{Store, Wanted};
use crate::channel::Channel;

/// Files that are brought at a time; each takes a thread.
const MOST_BROUGHT: usize = 128;
/// Files that are looked for at a time.
const MOST_LOOKED_FOR: usize = 16;
/// How long whoever brings a file may be silent.
const SILENCE: Timespec = Timespec { tv_sec: 120, tv_nsec: 0 };
/// How much of a file may be on its way.
const ON_ITS_WAY: usize = 256 << 10;

/// What is kept for a sandbox, if anything is.
pub(super) fn find_plan(directory: &Path) -> io::Result<Option<CachePlan>> {
    match read(&directory.join(CACHE_FILE), MAX_POLICY) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        found => found.map(Some),
    }
}

/// Whoever keeps the files.
pub(super) struct Keeper {
    store: Arc<Store>,
    brought: Arc<Semaphore>,
    looked_for: Semaphore,
}

impl Keeper {
    pub(super) fn new(home: &Path) -> Self {
        let store = Arc::new(Store::of(home));
        store.tidy();
        Self {
            store,
            brought: Arc::new(Semaphore::new(MOST_BROUGHT)),
            looked_for: Semaphore::new(MOST_LOOKED_FOR),
        }
    }

    /// Does what the worker wishes for a sandbox of this plan, and hands over what it needs for that.
    pub(super) async fn grant(&self, wish: Wish, wanted: Wanted, plan: Option<CachePlan>, channel: &Channel) {
        let is_granted = plan.is_some();
        let tenant = plan.and_then(|plan| plan.tenant);
        let (handed, serial) = match wish {
            Wish::Find { serial } if is_granted => (self.find(wanted, tenant).await, serial),
            Wish::Keep { serial } if is_granted => (self.keep(wanted, tenant), serial),
            Wish::Find { serial } | Wish::Keep { serial } => (Ok(None), serial),
            Wish::Discard => {
                tracing::warn!(url = %wanted.url, "what is kept of it is not what it should be, and is removed");
                let store = self.store.clone();
                return drop(tokio::task::spawn_blocking(move || store.discard(&wanted, tenant.as_ref())));
            }
        };
        let handed = handed.unwrap_or_else(|error| {
            tracing::warn!(%error, "the cache cannot be used");
            None
        });
        let length = handed.as_ref().map_or(0, |(_, length)| *length);
        let files: Vec<_> = handed.iter().map(|(file, _)| file.as_fd()).collect();
        let _ = channel.send(&Order::Handed { serial, length }, &files).await;
    }

    async fn find(&self, wanted: Wanted, tenant: Option<Tenant>) -> io::Result<Option<(OwnedFd, u64)>> {
        let _place = self.looked_for.acquire().await;
        let store = self.store.clone();
        let found = tokio::task::spawn_blocking(move || store.open(&wanted, tenant.as_ref())).await;
        Ok(found.map_err(io::Error::other)??.map(|(file, length)| (file.into(), length)))
    }

    /// Where a file is to be put that comes; it is kept once it is all there, if it is what it should be.
    fn keep(&self, wanted: Wanted, tenant: Option<Tenant>) -> io::Result<Option<(OwnedFd, u64)>> {
        let Ok(place) = self.brought.clone().try_acquire_owned() else { return Ok(None) };
        let (out, into) = pipe_with(PipeFlags::CLOEXEC)?;
        // Where that is not granted it is slower.
        let _ = fcntl_setpipe_size(&into, ON_ITS_WAY);
        let store = self.store.clone();
        tokio::task::spawn_blocking(move || {
            let _place = place;
            match take_in(&store, File::from(out), &wanted, tenant.as_ref()) {
                Ok(true) => {}
                Ok(false) => {
                    tracing::info!(url = %wanted.url, "not kept: it broke off, or is not what its index says")
                }
                Err(error) => tracing::info!(url = %wanted.url, %error, "not kept"),
            }
        });
        Ok(Some((into, 0)))
    }
}

fn take_in(store: &Store, mut from: File, wanted: &Wanted, tenant: Option<&Tenant>) -> io::Result<bool> {
    let mut arriving = store.begin(wanted, tenant)?;
    let mut buffer = vec![0; 128 * 1024];
    loop {
        if poll(&mut [PollFd::new(&from, PollFlags::IN)], Some(&SILENCE))? == 0 {
            return Err(io::ErrorKind::TimedOut.into());
        }
        match from.read(&mut buffer)? {
            0 => return store.keep(arriving),
            count => arriving.push(&buffer[..count])?,
        }
    }
}
