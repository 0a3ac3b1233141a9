//! Pump jobs: a group keeps running, fetches rows of the items that it holds, and executes them.
//!
//! [`group`] decides, without a clock or a runtime; the driver carries out the steps of the group and calls the user's
//! code.

mod context;
mod driver;
mod ending;
// Public only for the simulation of a cluster, which runs this group too.
#[doc(hidden)]
pub mod group;
mod handler;
mod item;
#[doc(hidden)]
pub mod mailbox;
mod testing;
#[cfg(test)]
mod tests;

pub use context::PumpContext;
pub use group::{CHECKPOINT_BYTES_MAX, CheckpointError};
pub(crate) use handler::PumpHandler;
pub use handler::{NamedPump, Pump};
pub use item::Item;
pub(crate) use mailbox::{LastReports, OrderMailbox};
pub use testing::{PumpOutcome, TestPump};
