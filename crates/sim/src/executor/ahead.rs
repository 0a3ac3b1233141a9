//! Runs that were sent ahead of their instants.

use std::sync::Arc;

use super::{Executor, now};
use crate::world::{lock, wait_until};

impl Executor {
    /// Begins the runs that were sent ahead of their instants.
    pub(super) async fn begin_due_loop(self: Arc<Self>) {
        loop {
            let next_begin = lock(&self.table).next_begin();
            tokio::select! {
                biased;
                () = self.ahead_wake.notified() => {}
                () = wait_until(next_begin) => {
                    let startable_runs = lock(&self.table).take_startable(now());
                    self.begin(startable_runs);
                }
            }
        }
    }
}
