//! A run's log: lines from `tracing` and from child processes, bounded, in chunks that are kept until acknowledged.

mod buffer;
mod layer;
mod line;
mod shipping;

pub(crate) use buffer::{LogText, RunLog};
pub use layer::{LogLayer, log_layer};
pub(crate) use shipping::Shipping;
