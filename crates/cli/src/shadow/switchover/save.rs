//! Saves a job's mode. If the answer is uncertain, reads the job to find out whether the mode was saved.

use std::time::Duration;

use rondel_core::Timestamp;
use serde_json::json;
use tokio::time::Instant;

use super::job::{HOLD_DELAY, Job};
use crate::client::Client;
use crate::clock;
use crate::exit::{Exit, Failure};

/// How long an edit is retried while its result is not certain.
const RETRY_TIMEOUT: Duration = Duration::from_secs(10);
const RETRY_DELAY: Duration = Duration::from_millis(300);
/// Minimum time allowed for saving.
const SAVE_TIMEOUT: Duration = Duration::from_secs(3);
/// Maximum number of jobs switched in one step.
const BATCH_MAX: usize = 20;
/// If saving a batch takes longer than this, the next batch is smaller.
const SLOW_AFTER: Duration = Duration::from_secs(1);

/// The result of saving an edited job.
pub(super) enum Saved {
    /// The edit applies to every fire that is due at this instant or later.
    HoldsFrom(Timestamp),
    /// The edit was not saved.
    Refused(Failure),
    /// The edit may have been saved.
    Unclear(Failure),
}

/// Saves a mode that applies from the seam on.
pub(super) async fn save(client: &Client, job: &Job, mode: &str, seam: Timestamp) -> Saved {
    let body = json!({"mode": mode, "mode_from": seam}).to_string();
    let began_at = Instant::now();
    let mut was_unclear = false;
    loop {
        let Err(failure) = client.patch(&["jobs", &job.name], &body).await else {
            return Saved::HoldsFrom(clock::now() + HOLD_DELAY);
        };
        let is_refusal = matches!(failure.exit(), Exit::Refused | Exit::Auth | Exit::NotFound | Exit::Conflict);
        if is_refusal && !was_unclear {
            return Saved::Refused(failure);
        }
        was_unclear = true;
        // The edit may have been saved although a proxy answered or an error was returned.
        if is_saved(client, job, mode, seam).await {
            return Saved::HoldsFrom(clock::now() + HOLD_DELAY);
        }
        if is_refusal || began_at.elapsed() >= RETRY_TIMEOUT {
            return Saved::Unclear(failure);
        }
        tokio::time::sleep(RETRY_DELAY).await;
    }
}

/// Whether the stored job has this mode from the seam on.
async fn is_saved(client: &Client, job: &Job, mode: &str, seam: Timestamp) -> bool {
    let Ok(stored_job) = client.get(&["jobs", &job.name], &[]).await.and_then(|body| body.value()) else {
        return false;
    };
    let stored_from = stored_job["mode_from"].as_str().and_then(|at| at.parse::<Timestamp>().ok());
    (stored_job["mode"] == "shadow") == (mode == "shadow") && stored_from == Some(seam)
}

/// How fast the server saves. This decides how far ahead a seam must be, and how many jobs are switched in one step.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pace {
    batch_len: usize,
    slowest_save: Duration,
}

impl Default for Pace {
    fn default() -> Self {
        Self { batch_len: 1, slowest_save: Duration::ZERO }
    }
}

impl Pace {
    /// How many jobs to switch in the next step: one at first, to measure the server.
    pub(super) const fn batch_len(self) -> usize {
        self.batch_len
    }

    /// Expects saving to take at least this long, until a batch is measured.
    pub(super) fn expect_at_least(&mut self, duration: Duration) {
        self.slowest_save = self.slowest_save.max(duration);
    }

    /// Adjusts the pace to the measured time of a batch.
    pub(super) fn record_measured(&mut self, duration: Duration) {
        self.batch_len =
            if duration > SLOW_AFTER { (self.batch_len / 2).max(1) } else { (self.batch_len * 2).min(BATCH_MAX) };
        self.slowest_save = duration;
    }

    /// How long saving the next batch may take: twice as long as the last batch took, because it may have twice as many jobs.
    pub(super) fn allowance(self) -> Duration {
        SAVE_TIMEOUT.max(self.slowest_save * 2)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_grow_while_saving_is_fast_and_the_seam_moves_away_where_it_is_slow() {
        let mut pace = Pace::default();
        let sizes: Vec<usize> = (0..6)
            .map(|_| {
                pace.record_measured(Duration::from_millis(50));
                pace.batch_len()
            })
            .collect();
        assert_eq!(sizes, [2, 4, 8, 16, 20, 20]);
        assert_eq!(pace.allowance(), SAVE_TIMEOUT);
        pace.record_measured(Duration::from_secs(4));
        assert_eq!((pace.batch_len(), pace.allowance()), (10, Duration::from_secs(8)));
        let mut slow = Pace::default();
        slow.expect_at_least(Duration::from_secs(5));
        slow.expect_at_least(Duration::from_secs(1));
        assert_eq!(slow.allowance(), Duration::from_secs(10));
    }
}
