//! Reads the states of the jobs of a page in one statement.

use std::collections::HashMap;
use std::time::Duration;

use rondel_admin::Engine;
use rondel_core::JobId;
use rondel_core::folded_state::{FoldedState, StateFacts};
use rondel_store::StoreError;
use rondel_store::catalog::JobRecord;
use rondel_store::rollups::JobActivity;

/// How far back to search for verdicts that are not counted yet: runs are counted every minute, with half a minute of delay.
const UNCOUNTED_LOOK_BACK: Duration = Duration::from_secs(300);

/// The facts about the runs of these jobs that determine their states.
pub(crate) async fn read_activity(engine: &Engine, jobs: &[JobId]) -> Result<HashMap<JobId, JobActivity>, StoreError> {
    let since = engine.now().saturating_sub(UNCOUNTED_LOOK_BACK);
    let activities = engine.store().job_activity(jobs, since).await?;
    Ok(activities.into_iter().map(|activity| (activity.job, activity)).collect())
}

/// The state of a job. A job without activity was saved or deleted just now, and has the state of a new job.
pub(crate) fn fold_state(activity: Option<&JobActivity>, (is_enabled, fires_by_time): (bool, bool)) -> FoldedState {
    FoldedState::fold(StateFacts {
        is_failing: activity.is_some_and(|activity| activity.is_failing),
        is_running: activity.is_some_and(|activity| activity.is_running),
        is_enabled,
        fires_by_time,
        is_over: activity.is_some_and(|activity| activity.is_over),
    })
}

/// The states of these jobs, in their order.
pub(crate) async fn job_states(engine: &Engine, records: &[JobRecord]) -> Result<Vec<FoldedState>, StoreError> {
    let ids: Vec<JobId> = records.iter().map(|record| record.id).collect();
    let activity = read_activity(engine, &ids).await?;
    let state =
        |record: &JobRecord| fold_state(activity.get(&record.id), (record.spec.enabled, record.spec.fires_by_time()));
    Ok(records.iter().map(state).collect())
}

pub(crate) async fn job_state(engine: &Engine, record: &JobRecord) -> Result<FoldedState, StoreError> {
    let activity = read_activity(engine, &[record.id]).await?;
    Ok(fold_state(activity.get(&record.id), (record.spec.enabled, record.spec.fires_by_time())))
}
