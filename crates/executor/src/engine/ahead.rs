//! Starts the runs that were sent ahead of their instants.

use std::sync::Arc;

use tokio::time::{Instant, sleep_until};

use super::{Engine, now};

/// How long before its instant a trigger may come.
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
            let next = engine.table().next_begin();
            let due = async {
                match next {
                    Some(at) => sleep_until(Instant::from_std(at)).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                () = engine.setup.lifecycle.hard.cancelled() => return,
                () = engine.ahead_wake.notified() => {}
                () = due => {
                    let startable = engine.table().take_startable(now());
                    engine.start(startable);
                }
            }
        }
    }
}
