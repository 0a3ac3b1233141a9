//! The log readers of this node. A reader is woken when lines are stored here. It polls the store only at a low rate, for lines that other nodes
//! store.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use rondel_core::RunId;
use tokio::sync::watch;

/// The logs that have readers.
#[derive(Debug, Default)]
pub(crate) struct LogReaders(Mutex<HashMap<RunId, watch::Sender<()>>>);

/// Waits for lines of one log.
#[derive(Debug)]
pub struct LogReader(watch::Receiver<()>);

impl LogReaders {
    pub(crate) fn follow(&self, run: RunId) -> LogReader {
        let mut senders_by_run = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        senders_by_run.retain(|_, sender| sender.receiver_count() > 0);
        LogReader(senders_by_run.entry(run).or_insert_with(|| watch::channel(()).0).subscribe())
    }

    pub(crate) fn count(&self) -> usize {
        let senders_by_run = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        senders_by_run.values().map(watch::Sender::receiver_count).sum()
    }

    /// Wakes the readers of these logs.
    pub(super) fn poke(&self, runs: impl Iterator<Item = RunId>) {
        let senders_by_run = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if senders_by_run.is_empty() {
            return;
        }
        for sender in runs.filter_map(|run| senders_by_run.get(&run)) {
            sender.send_replace(());
        }
    }
}

impl LogReader {
    /// Resolves once lines have been stored on this node since the last call. Lines that other nodes store do not resolve it.
    pub async fn wait_for_lines(&mut self) {
        if self.0.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_poke_reaches_the_readers_of_the_run_and_is_not_lost() {
        let readers = LogReaders::default();
        let (mut mine, mut others) = (readers.follow(RunId::new(1)), readers.follow(RunId::new(2)));
        readers.poke([RunId::new(1), RunId::new(3)].into_iter());
        mine.wait_for_lines().await;
        for reader in [&mut mine, &mut others] {
            let waited = tokio::time::timeout(std::time::Duration::from_secs(9), reader.wait_for_lines()).await;
            assert!(waited.is_err());
        }
        drop((mine, others));
        drop(readers.follow(RunId::new(4)));
        assert_eq!(readers.0.lock().unwrap().len(), 1);
    }
}
