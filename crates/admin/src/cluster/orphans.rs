//! Groups orphaned jobs into the batches in which they are taken over, and adopted runs by whether an executor may have them.

use rondel_core::{JobId, Run, RunStatus};
use rondel_store::ledger::{Adopted, OrphanedJob};

/// Divides jobs into batches of at most `page` runs; a job with more runs gets its own batch. Each batch is taken over in one transaction.
pub(super) fn batch_jobs(jobs: &[OrphanedJob], page: u32) -> Vec<Vec<JobId>> {
    let (mut batches, mut room_left) = (Vec::<Vec<JobId>>::new(), 0);
    for job in jobs {
        match batches.last_mut().filter(|_| job.run_count <= room_left) {
            Some(batch) => batch.push(job.id),
            None => {
                batches.push(vec![job.id]);
                room_left = u64::from(page);
            }
        }
        room_left = room_left.saturating_sub(job.run_count);
    }
    batches
}

/// Splits adopted runs into those that cannot have been sent and those that may have been. Leaves out waiting runs, which the scan finds,
/// and the rows of broadcasts in progress, whose shards are listed instead.
pub(super) fn split_by_sent(adopted_runs: Vec<Adopted>) -> (Vec<Run>, Vec<Adopted>) {
    let open_runs = adopted_runs.into_iter().filter(|adopted| match adopted.run.status {
        RunStatus::Pending => true,
        status => status == RunStatus::Running && !adopted.run.is_root(),
    });
    let (unsent_runs, maybe_sent_runs): (Vec<_>, Vec<_>) =
        open_runs.partition(|adopted| adopted.run.status == RunStatus::Pending);
    (unsent_runs.into_iter().map(|adopted| adopted.run).collect(), maybe_sent_runs)
}
