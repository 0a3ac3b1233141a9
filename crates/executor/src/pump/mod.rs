//! Pump jobs: a group keeps running, fetches rows of the items that it holds, and executes them.
//!
//! [`group`] decides and knows neither a clock nor a runtime; the driver calls the user's code and does what it decides.

mod context;
mod driver;
mod ending;
// Not for programs: the simulation of a cluster runs this group too.
#[doc(hidden)]
pub mod group;
mod handler;
mod item;
#[doc(hidden)]
pub mod port;
mod testing;
#[cfg(test)]
mod tests;

pub use context::PumpContext;
pub use group::{CHECKPOINT_BYTES_MAX, CheckpointError};
pub(crate) use handler::PumpHandler;
pub use handler::{NamedPump, Pump};
pub use item::Item;
pub(crate) use port::{Port, Reports};
pub use testing::{PumpOutcome, TestPump};
