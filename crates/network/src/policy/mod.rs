//! Whether something may leave a sandbox: one policy, judged in stages as the door comes to know more.

mod address;
pub mod decide;
mod denied;
pub mod file;
mod reading;

pub use decide::{Allowed, Destination, Look, Request};
pub(crate) use denied::shortened;
pub use denied::{Denied, List, Reason, RuleRef};
