//! Runs that were sent ahead of their instants.

use std::sync::Arc;

use tokio::time::{Instant, sleep_until};

use super::{Executor, now};
use crate::world::lock;

impl Executor {
    /// Begins the runs that were sent ahead of their instants.
    pub(super) async fn begin_on_time(self: Arc<Self>) {
        loop {
            let next = lock(&self.table).next_begin();
            let due = async {
                match next {
                    Some(at) => sleep_until(Instant::from_std(at)).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                () = self.ahead_wake.notified() => {}
                () = due => {
                    let begun = lock(&self.table).take_startable(now());
                    self.begin(begun);
                }
            }
        }
    }
}
