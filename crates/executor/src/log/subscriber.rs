//! The `tracing` subscriber for programs that have none: without one, neither the run's log nor the program's terminal
//! would show anything.

use std::io::IsTerminal as _;

use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::prelude::*;

use super::log_layer;

/// Installs the subscriber unless the program has one. `RUST_LOG` sets its filter, which is `info` by default. Events
/// go to stderr, and those inside a run also to the run's log.
pub(crate) fn install_if_missing() {
    if tracing::dispatcher::has_been_set() {
        return;
    }
    let filter = EnvFilter::builder().with_default_directive(LevelFilter::INFO.into()).from_env_lossy();
    let stderr_layer = tracing_subscriber::fmt::layer()
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .with_target(false);
    let subscriber = tracing_subscriber::registry().with(filter).with(stderr_layer).with(log_layer());
    // An error means that the program installed its own subscriber meanwhile, which then stays.
    subscriber.try_init().ok();
}
