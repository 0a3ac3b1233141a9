//! The context of the calls of a pump.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use super::group::CheckpointError;
use crate::extract::Log;
use crate::run::RunContext;

/// Receives checkpoints.
pub(super) trait Checkpoints: Send + Sync {
    fn store(&self, item: &str, epoch: i64, text: &str) -> Result<(), CheckpointError>;
}

/// The context of one call of [`Pump::select`](crate::Pump::select) or [`Pump::execute`](crate::Pump::execute): the
/// group, and its items as of this call.
#[derive(Clone)]
pub struct PumpContext {
    run: RunContext,
    /// The epochs of the items of this call.
    epochs: Arc<BTreeMap<String, i64>>,
    checkpoints: Arc<dyn Checkpoints>,
}

impl PumpContext {
    pub(super) fn new(run: &RunContext, epochs: BTreeMap<String, i64>, checkpoints: Arc<dyn Checkpoints>) -> Self {
        Self { run: run.clone(), epochs: Arc::new(epochs), checkpoints }
    }

    /// The item's fencing token: it rises with each owner of the item. 0 for an item that is not part of this call.
    ///
    /// A paused executor may write after the item has gone to another executor. No scheduler can stop that write, but
    /// your store can: keep the highest epoch with the data written for the item, and write only if this epoch is not
    /// lower:
    ///
    /// ```sql
    /// UPDATE orders SET state = 'closed', epoch = $1 WHERE id = $2 AND epoch <= $1
    /// ```
    #[must_use]
    pub fn epoch(&self, item: &str) -> i64 {
        self.epochs.get(item).copied().unwrap_or(0)
    }

    /// Stores the item's progress as text in a format of your own, at most 4 KiB. The checkpoint is sent to the
    /// server with the next report, within about a second, and the item's next owner gets it. If this executor is
    /// lost before that, the next owner gets the previous checkpoint and repeats the work in between.
    ///
    /// # Errors
    /// The text is too long, or the group no longer holds the item at this call's epoch.
    pub fn checkpoint(&self, item: &str, text: impl AsRef<str>) -> Result<(), CheckpointError> {
        self.checkpoints.store(item, self.epoch(item), text.as_ref())
    }

    /// The number of this group, from 0.
    #[must_use]
    pub fn group(&self) -> u32 {
        self.run.shard().index
    }

    /// How many groups the job has.
    #[must_use]
    pub fn groups(&self) -> u32 {
        self.run.shard().total
    }

    /// Resolves when the group's run must stop or its executor drains: the group then selects nothing more, and rows in
    /// execution have a bounded time to finish. Does not resolve when a server only asks for items back.
    pub async fn cancelled(&self) {
        match self.run.order_mailbox() {
            Some(mailbox) => tokio::select! {
                () = self.run.wait_until_stopped() => {}
                () = mailbox.leave_token().cancelled() => {}
            },
            None => self.run.wait_until_stopped().await,
        }
    }

    /// Whether the group's run must stop or its executor drains.
    #[must_use]
    pub fn is_stopping(&self) -> bool {
        self.run.stop_cause().is_some()
            || self.run.order_mailbox().is_some_and(|mailbox| mailbox.leave_token().is_cancelled())
    }

    /// The log of the group's run, for lines that are not events of `tracing`.
    #[must_use]
    pub fn log(&self) -> Log {
        Log::of(&self.run)
    }

    /// The context of the group's run: the job, its parameters, and the values that were given to the builder's `state`.
    #[must_use]
    pub fn run(&self) -> &RunContext {
        &self.run
    }
}

impl fmt::Debug for PumpContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PumpContext").field("run", &self.run).field("epochs", &self.epochs).finish_non_exhaustive()
    }
}
