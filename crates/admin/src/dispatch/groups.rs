//! Groups of pump jobs: how many of them an executor has, and which executors have the maximum.

use rondel_core::reason::{Obstacle, ObstacleKind};
use rondel_core::route::Answer;
use rondel_core::{ExecutorId, JobId};

use super::decision::Decision;
use super::executors::ConnectedExecutor;
use super::ready::ReadyRun;

/// How many groups of a pump job an executor has.
pub(super) fn group_count(d: &Decision<'_>, executor: ExecutorId, job: JobId) -> u32 {
    let groups = d.state.runs.of_executor(executor).filter(|active| active.ready.run.job == job);
    u32::try_from(groups.count()).unwrap_or(u32::MAX)
}

/// The executors that have room for this group of a pump job, but already have as many of the job's groups as one executor may have.
pub(super) fn busy_with_groups(d: &Decision<'_>, ready: &ReadyRun) -> Vec<Obstacle> {
    let pump = ready.definition.job.pump.as_ref().filter(|_| ready.run.only_executor.is_none());
    let Some(groups_max) = pump.and_then(|pump| pump.per_executor) else { return Vec::new() };
    let executors = &d.state.executors;
    let is_busy = |online: &&ConnectedExecutor| {
        let has_room = online.candidate(Answer::Missing, d.now).refusal.is_none() && !executors.is_silent(online);
        has_room && group_count(d, online.session.executor, ready.run.job) >= groups_max
    };
    let busy_executors = executors.eligible_executors(ready).into_iter().filter(is_busy);
    busy_executors
        .map(|online| Obstacle { executor: online.name.clone(), kind: ObstacleKind::Busy, condition: None })
        .collect()
}
