//! The names that sandboxes of one provider have, where no directory on disk keeps them apart.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use belljar_core::{Error, ErrorCode, Result, SandboxId};

/// What a provider answers when a name is asked for that some sandbox has.
pub(crate) fn taken(id: &SandboxId) -> Error {
    Error::new(ErrorCode::AlreadyExists, format!("there is a sandbox `{id}` already"))
        .hint("remove it with `belljar rm -f`, or let the new one be given a name of its own")
}

/// A name that nobody has.
pub fn new_id() -> Result<SandboxId> {
    let mut random = [0; 16];
    rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())
        .map_err(|error| Error::new(ErrorCode::Internal, format!("no random numbers: {error}")))?;
    Ok(SandboxId::from_random(random))
}

/// Names in use.
#[derive(Clone, Debug, Default)]
pub(crate) struct Names(Arc<Mutex<BTreeSet<SandboxId>>>);

/// A name that is free again when this is dropped.
#[derive(Debug)]
pub(crate) struct Held {
    names: Names,
    id: SandboxId,
}

impl Names {
    /// Takes a name, unless it is in use.
    pub(crate) fn take(&self, id: &SandboxId) -> Result<Held> {
        if !self.lock().insert(id.clone()) {
            return Err(taken(id));
        }
        Ok(Held { names: self.clone(), id: id.clone() })
    }

    fn lock(&self) -> MutexGuard<'_, BTreeSet<SandboxId>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.names.lock().remove(&self.id);
    }
}
