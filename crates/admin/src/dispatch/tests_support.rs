//! Values for the tests of this crate.

use rondel_core::{AppId, JobId, NamespaceId, NodeId, Run, RunId, RunStatus, Timestamp, Trigger};

/// A pending run that is due then.
pub(crate) fn run_due_at(due_at: Timestamp) -> Run {
    Run {
        id: RunId::new(due_at.as_millis()),
        namespace: NamespaceId::new(1),
        job: JobId::new(1),
        job_version: 1,
        app: AppId::new(1),
        fire_at: due_at,
        cause: 0,
        shard_index: 0,
        shard_total: Some(1),
        trigger: Trigger::Cron,
        status: RunStatus::Pending,
        reason: None,
        attempt: 1,
        due_at,
        node: NodeId::new(1),
        node_epoch: 1,
        params: None,
        executor: None,
        executor_id: None,
        marked_at: None,
        started_at: None,
        finished_at: None,
        message: None,
        result: None,
        lost_count: 0,
        open_shards: None,
        parent: None,
        cancel_by: None,
        span_end_at: None,
        span_count: 1,
    }
}
