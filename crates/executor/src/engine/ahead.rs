//! Starts the runs that were sent ahead of their instants.

use std::sync::Arc;

use super::{Engine, now};
use crate::lifecycle::wait_until;

/// How far ahead of a run's instant its trigger may arrive, in milliseconds; the hello reports it to servers.
pub(super) const AHEAD_MAX_MS: u32 = 1_000;

pub(super) struct AheadLoop {
    engine: Arc<Engine>,
}

impl AheadLoop {
    pub(super) const fn new(engine: Arc<Engine>) -> Self {
        Self { engine }
    }

    pub(super) async fn run(self) {
        let engine = &self.engine;
        loop {
            let next_begin_at = engine.table().next_begin();
            tokio::select! {
                biased;
                () = engine.setup.lifecycle.hard.cancelled() => return,
                () = engine.ahead_wake.notified() => {}
                () = wait_until(next_begin_at) => {
                    let startable_runs = engine.table().take_startable(now());
                    engine.start(startable_runs);
                }
            }
        }
    }
}
