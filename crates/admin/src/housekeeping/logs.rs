//! Removes logs beyond their retention or beyond the size limit of their namespace: the oldest logs of ended runs first. The runs stay.

use rondel_core::time::format_duration;
use rondel_core::{IdGen, NamespaceId, RunId};
use rondel_store::StoreError;
use rondel_store::catalog::Namespace;
use rondel_store::logs::LogRange;
use serde_json::json;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::pause_after_batch;
use crate::node::Shared;

/// Maximum number of runs whose logs one transaction removes; each run can have megabytes of logs.
const BATCH_MAX: u32 = 50;

/// Removes logs in one namespace after another, until none is left to remove, or until `deadline`. Returns the number of runs whose logs were
/// removed.
pub(super) async fn remove_logs(
    shared: &Shared,
    stop: &CancellationToken,
    deadline: Instant,
) -> Result<u64, StoreError> {
    // Ids increase with time: this is the id that the first run of that instant would have.
    let first_kept_id = IdGen::first_at(shared.clock.now() - shared.config.log_retention);
    let last_old_run = RunId::new(first_kept_id.saturating_sub(1));
    let (mut removed_count, mut first_error) = (0, None);
    for namespace in shared.store.namespaces().await? {
        match remove_logs_of_namespace(shared, &namespace, last_old_run, (stop, deadline)).await {
            Ok(removed) => removed_count += removed,
            // The other namespaces are processed before the error is returned.
            Err(error) => first_error = first_error.or(Some(error)),
        }
    }
    first_error.map_or(Ok(removed_count), Err)
}

async fn remove_logs_of_namespace(
    shared: &Shared,
    namespace: &Namespace,
    last_old_run: RunId,
    (stop, deadline): (&CancellationToken, Instant),
) -> Result<u64, StoreError> {
    let (size_cut, cut_error) = match shared.config.log_size_max {
        0 => (None, None),
        bytes => match shared.store.log_cut(namespace.id, bytes).await {
            Ok(cut) => (cut, None),
            // Logs beyond their retention are removed although the sizes could not be summed.
            Err(error) => (None, Some(error)),
        },
    };
    let max_run = size_cut.map_or(last_old_run, |cut| cut.max(last_old_run));
    let removed_count = remove_logs_up_to(shared, namespace.id, max_run, (stop, deadline)).await?;
    if removed_count > 0 {
        tracing::info!(namespace = namespace.name, count = removed_count, "removed logs by age or size");
        let retention = format_duration(shared.config.log_retention);
        let size_max = shared.config.log_size_max;
        let up_to = json!({"run": max_run, "log_retention": retention, "log_size_max": size_max});
        super::audit::write(shared, "log.remove", Some(&namespace.name), &up_to, removed_count).await?;
    }
    cut_error.map_or(Ok(removed_count), Err)
}

async fn remove_logs_up_to(
    shared: &Shared,
    namespace: NamespaceId,
    max_run: RunId,
    (stop, deadline): (&CancellationToken, Instant),
) -> Result<u64, StoreError> {
    let mut range = LogRange { after: RunId::new(0), up_to: max_run, now: shared.clock.now() };
    let mut removed_count = 0;
    while !stop.is_cancelled() && Instant::now() < deadline {
        let batch_start = Instant::now();
        let removal = shared.store.remove_logs(namespace, range, BATCH_MAX).await?;
        removed_count += removal.runs;
        let Some(last_removed) = removal.last else { break };
        range.after = last_removed;
        pause_after_batch(batch_start.elapsed(), stop).await;
    }
    Ok(removed_count)
}
