//! The failing jobs of a namespace, read once for all parts of a page.

use std::time::Duration;

use rondel_core::{IdGen, RunId};
use rondel_store::rollups::{NewestOutcomes, UnsuccessfulCounts, UnsuccessfulRuns};
use tokio::sync::OnceCell;

use crate::call::Call;
use crate::problem::Problem;

/// How far back failed and skipped runs are searched.
const LOOK_BACK: Duration = Duration::from_secs(24 * 3600);
/// How many runs are searched at most.
const RUN_COUNT_MAX: u32 = 2_000;
/// How many failing jobs are read.
pub(crate) const FAILING_JOB_COUNT: u32 = 40;

/// The failed and skipped runs of the last day, by job, and the failing jobs. Parts of a page that read them concurrently share one read.
#[derive(Debug, Default)]
pub(crate) struct RecentFailures {
    unsuccessful_runs: OnceCell<UnsuccessfulCounts>,
    failing_jobs: OnceCell<Vec<NewestOutcomes>>,
}

impl RecentFailures {
    /// The jobs whose runs failed or were skipped in the last day.
    pub(crate) async fn read<Q: Sync>(&self, call: &Call<Q>) -> Result<&[UnsuccessfulRuns], Problem> {
        let query = || async {
            let first_run_id = RunId::new(IdGen::first_at(call.engine().now() - LOOK_BACK));
            call.engine().store().unsuccessful_runs(call.namespace.id, first_run_id, RUN_COUNT_MAX).await
        };
        Ok(&self.unsuccessful_runs.get_or_try_init(query).await?.counts)
    }

    /// The jobs whose newest runs failed and that the caller may see, the longest streak first; at most [`FAILING_JOB_COUNT`].
    pub(crate) async fn failing_jobs<Q: Sync>(&self, call: &Call<Q>) -> Result<&[NewestOutcomes], Problem> {
        let visible_apps = call.visible_apps();
        let store = call.engine().store();
        let query = || store.failing_jobs(call.namespace.id, visible_apps.as_deref(), FAILING_JOB_COUNT);
        Ok(self.failing_jobs.get_or_try_init(query).await?)
    }
}
