//! What package registries serve and never change, kept on disk for the sandboxes to come.
//!
//! A sandbox gets a file from here only where an index that was fetched *for it* names that file's hash, and the file lies here under just
//! that hash, which it was found to have. So nothing that one sandbox fetches, says or is told can change what another gets. What was
//! fetched with credentials lies apart, for those of the same tenant who have the same credentials. Indexes are never kept.

mod digest;
mod index;
mod learned;
mod store;

pub(crate) use self::digest::Check;
pub use self::digest::Digest;
pub(crate) use self::index::may_be_one;
pub use self::index::{Index, Named, Registry, read as read_index};
pub(crate) use self::learned::{Credentials, Learned, Room, Said, Wanted, credentials};
pub use self::store::{DEFAULT_LIMIT, Kept, Store};
