//! A run's log: lines from `tracing` and from child processes, bounded, in chunks that are kept until acknowledged.

mod buffer;
mod layer;
mod limit;
mod line;
mod shipping;
mod subscriber;
mod tail;

pub(crate) use buffer::{LogText, RunLog};
pub use layer::{LogLayer, log_layer};
pub(crate) use limit::Bytes;
pub use limit::LogLimit;
pub(crate) use line::LINE_BYTES_MAX;
pub(crate) use shipping::LogShipping;
pub(crate) use subscriber::install_if_missing;
