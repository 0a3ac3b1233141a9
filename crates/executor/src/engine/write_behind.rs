//! Writes results to the journal in batches before they go onto a stream, and shrinks the journal once the results are
//! acknowledged.

use std::sync::Arc;

use super::Engine;
use crate::journal::Journal;

pub(crate) struct JournalLoop {
    engine: Arc<Engine>,
    journal: Arc<Journal>,
    /// Whether a write has failed since the last batch of results that was written. Only the first failure is logged,
    /// not that of each batch. Emptying the journal does not reset this, because it succeeds even on a full disk.
    has_failed: bool,
}

impl JournalLoop {
    pub(crate) fn new(engine: Arc<Engine>, journal: Arc<Journal>) -> Self {
        Self { engine, journal, has_failed: false }
    }

    pub(crate) async fn run(mut self) {
        let engine = Arc::clone(&self.engine);
        loop {
            tokio::select! {
                () = engine.setup.lifecycle.soft.cancelled() => break,
                () = engine.journal_wake.notified() => self.tick().await,
            }
        }
        self.tick().await;
    }

    async fn tick(&mut self) {
        loop {
            let results = self.engine.table().take_to_journal();
            if results.is_empty() {
                break;
            }
            let append = self.write_journal({
                let results = results.clone();
                move |journal| journal.append(&results)
            });
            let is_written = append.await;
            if is_written && std::mem::take(&mut self.has_failed) {
                tracing::info!("the journal of results can be written again");
            }
            rondel_failpoint::pass("executor.journaled");
            self.engine.table().send_journaled(&results, is_written, super::now());
        }
        self.shrink().await;
        if self.journal.is_welcome_pending() {
            self.write_journal(Journal::store_welcome).await;
        }
    }

    /// Empties the journal if none of its lines is needed, and rewrites it if few of them are.
    async fn shrink(&mut self) {
        let needed_count = self.engine.table().outbox.unacked_journaled_count();
        if !self.journal.needs_shrinking(needed_count) {
            return;
        }
        let unacked_results: Vec<_> = self.engine.table().outbox.unacked_journaled().cloned().collect();
        self.write_journal(move |journal| journal.rewrite(&unacked_results)).await;
    }

    async fn write_journal(&mut self, write: impl FnOnce(&Journal) -> std::io::Result<()> + Send + 'static) -> bool {
        let journal = Arc::clone(&self.journal);
        let write_result = self.engine.setup.lifecycle.tracker.spawn_blocking(move || write(&journal)).await;
        let error = match write_result {
            Ok(Ok(())) => return true,
            Ok(Err(error)) => error.to_string(),
            Err(error) => error.to_string(),
        };
        if !self.has_failed {
            tracing::error!(%error, "the journal of results cannot be written; results are safe once a server has them");
        }
        self.has_failed = true;
        false
    }
}
