//! Sets the next fire of a job with a fixed delay when a run ends.

use std::collections::HashMap;
use std::time::Duration;

use rondel_core::{JobId, RunId, Timestamp};

use crate::Result;
use crate::settle::{CleanEnd, fire_after_delay};
use crate::sql::Tx;
use crate::sql::query::{CHUNK_MAX, Query, Reader, Statement};

pub(in crate::sql) const LOCK_DELAYED_JOBS: Statement = Statement {
    name: "lock_followed",
    text: "SELECT job_id, follows_run_id, delay_ms, (SELECT updated_at_ms FROM job WHERE job.id = job_due.job_id), {now} \
           FROM job_due WHERE job_id {in_list} AND {check}follows_run_id IS NOT NULL{end} ORDER BY job_id {for_update}",
};
/// A job that no longer has a delay keeps the next fire of its new schedule.
const MOVE_DELAYED_JOBS: Statement = Statement {
    name: "move_followed",
    text: "UPDATE {join:ii}job_due SET follows_run_id = NULL, \
           is_over = CASE WHEN COALESCE(v.column2, job_due.next_fire_at_ms) IS NULL THEN 1 ELSE 0 END, \
           next_fire_at_ms = COALESCE(v.column2, job_due.next_fire_at_ms) {from:ii} WHERE {of_rows:job_due.job_id}",
};

/// A job with a fixed delay that waits for the end of a run.
struct DelayedJob {
    job: i64,
    /// `None` if the job is paused, or no longer has a delay.
    delay: Option<Duration>,
    /// When the job was last edited, or created.
    defined_at: Timestamp,
    now: Timestamp,
}

/// The jobs with a fixed delay in a batch, and their new next fires.
#[derive(Default)]
pub(super) struct Delays {
    /// The jobs by the run whose end sets their next fire.
    jobs_by_awaited_run: HashMap<RunId, DelayedJob>,
    /// The runs that set the next fires, with their jobs and these fires.
    moves: Vec<(RunId, i64, Option<Timestamp>)>,
}

impl Delays {
    /// Locks the jobs of a batch that have a delay. Sends nothing to the database if no job has one.
    pub(in crate::sql) async fn lock(tx: &mut Tx<'_>, part: &[CleanEnd<'_>]) -> Result<Self> {
        let delaying_ends = part.iter().filter(|clean_end| clean_end.end.policy.has_fixed_delay);
        let mut delays = Self::default();
        delays.lock_jobs(tx, delaying_ends.map(|clean_end| clean_end.end.job.get()).collect()).await?;
        Ok(delays)
    }

    /// Locks those of these jobs that wait for the end of a run.
    async fn lock_jobs(&mut self, tx: &mut Tx<'_>, mut jobs: Vec<i64>) -> Result<()> {
        jobs.sort_unstable();
        jobs.dedup();
        for chunk in jobs.chunks(CHUNK_MAX) {
            for row in tx.rows(Query::new(&LOCK_DELAYED_JOBS).list(chunk.iter().copied())).await? {
                let mut columns = Reader::new(&row, "job_due");
                let job = columns.int("job_id")?;
                let run = RunId::new(columns.int("follows_run_id")?);
                let delay = columns.opt_int("delay_ms")?.and_then(|millis| u64::try_from(millis).ok());
                let delay = delay.map(Duration::from_millis);
                let (defined_at, now) = (columns.at("updated_at_ms")?, columns.at("now")?);
                self.jobs_by_awaited_run.insert(run, DelayedJob { job, delay, defined_at, now });
            }
        }
        Ok(())
    }

    /// Records that a run has its verdict.
    pub(in crate::sql) fn on_verdict(&mut self, run: RunId, fire_at: Timestamp, finished_at: Timestamp) {
        let Some(DelayedJob { job, delay, defined_at, now }) = self.jobs_by_awaited_run.remove(&run) else { return };
        let next_fire_at = delay.map(|delay| fire_after_delay((fire_at, finished_at), (delay, defined_at), now));
        self.moves.push((run, job, next_fire_at));
    }

    /// Leaves out runs that await their children, and adds runs whose last child has just ended.
    pub(in crate::sql) async fn adjust_for_children(
        &mut self,
        tx: &mut Tx<'_>,
        awaiting_runs: &[(JobId, RunId)],
        ended_parents: &[(JobId, RunId)],
    ) -> Result<()> {
        self.moves.retain(|(run, ..)| !awaiting_runs.iter().any(|(_, awaiting_run)| awaiting_run == run));
        self.lock_jobs(tx, ended_parents.iter().map(|(job, _)| job.get()).collect()).await?;
        for (_, run) in ended_parents {
            let is_known = self.moves.iter().any(|(moved_run, ..)| moved_run == run);
            if let Some(now) = self.jobs_by_awaited_run.get(run).filter(|_| !is_known).map(|job| job.now) {
                self.on_verdict(*run, now, now);
            }
        }
        Ok(())
    }

    /// Writes the next fires of the jobs; returns the earliest of them.
    pub(in crate::sql) async fn write(self, tx: &mut Tx<'_>) -> Result<Option<Timestamp>> {
        for chunk in self.moves.chunks(CHUNK_MAX) {
            let query = Query::new(&MOVE_DELAYED_JOBS)
                .rows(chunk, |query, (_, job, next_fire_at)| query.int(*job).opt_at(*next_fire_at));
            tx.execute_all(query, chunk.len()).await?;
        }
        Ok(self.moves.iter().filter_map(|(.., next_fire_at)| *next_fire_at).min())
    }
}
