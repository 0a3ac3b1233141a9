//! What operators see: metrics, traces and the lines of the log.
#![expect(clippy::panic, reason = "a test fails by a panic")]

mod collector;
mod lines;
mod metrics;
mod traces;
