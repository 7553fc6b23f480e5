//! Layers: read-only directories of files, each known by the digest of what is in it. A template is a stack of them.
//!
//! Nothing that comes in an archive is trusted: [`unpack`] makes what is honest and refuses the rest by the name of the offence.

#![forbid(unsafe_code)]

mod archive;
mod capture;
mod catalog;
mod changes;
mod digest;
mod export;
mod image;
mod offence;
mod record;
mod stack;
mod store;
mod unpack;

pub use self::archive::{Packing, unpacking};
pub use self::capture::{Captured, Ids, Times, Upper, capture};
pub use self::catalog::{Catalog, Collected, Named, is_name};
pub use self::changes::{Change, Changed, changes};
pub use self::digest::{Digest, digest};
pub use self::export::export;
pub use self::image::{Config, Image, Progress, import};
pub use self::offence::{Offence, Refused};
pub use self::record::{Ground, Record, Settings, Start};
pub use self::stack::{Kind, Listed, Stack};
pub use self::store::{Arrival, Held, Layer, Store};
pub use self::unpack::{Bounds, Myself, Unpacked, Unpacker, unpack};
