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

/// Runs whose logs one transaction removes: each can have megabytes.
const BATCH_MAX: u32 = 50;

/// Goes through the namespaces until no logs are left to remove, or until `end`. Returns the number of runs whose logs were removed.
pub(super) async fn remove_logs(shared: &Shared, stop: &CancellationToken, end: Instant) -> Result<u64, StoreError> {
    // Ids increase with time: this is the id that the first run of that instant would have.
    let before = IdGen::first_at(shared.clock.now() - shared.config.log_retention);
    let too_old = RunId::new(before.saturating_sub(1));
    let (mut all, mut failed) = (0, None);
    for namespace in shared.store.namespaces().await? {
        match remove_logs_of_namespace(shared, &namespace, too_old, (stop, end)).await {
            Ok(removed) => all += removed,
            // The other namespaces are processed before the error is returned.
            Err(error) => failed = failed.or(Some(error)),
        }
    }
    failed.map_or(Ok(all), Err)
}

async fn remove_logs_of_namespace(
    shared: &Shared,
    namespace: &Namespace,
    too_old: RunId,
    (stop, end): (&CancellationToken, Instant),
) -> Result<u64, StoreError> {
    let cut = match shared.config.log_size_max {
        0 => None,
        bytes => shared.store.log_cut(namespace.id, bytes).await?,
    };
    let up_to = cut.map_or(too_old, |cut| cut.max(too_old));
    let removed = remove_logs_up_to(shared, namespace.id, up_to, (stop, end)).await?;
    if removed > 0 {
        tracing::info!(namespace = namespace.name, count = removed, "removed logs by age or size");
        let retention = format_duration(shared.config.log_retention);
        let size_max = shared.config.log_size_max;
        let up_to = json!({"run": up_to, "log_retention": retention, "log_size_max": size_max});
        super::audit::write(shared, "log.remove", Some(&namespace.name), &up_to, removed).await?;
    }
    Ok(removed)
}

async fn remove_logs_up_to(
    shared: &Shared,
    namespace: NamespaceId,
    up_to: RunId,
    (stop, end): (&CancellationToken, Instant),
) -> Result<u64, StoreError> {
    let mut range = LogRange { after: RunId::new(0), up_to, now: shared.clock.now() };
    let mut removed = 0;
    while !stop.is_cancelled() && Instant::now() < end {
        let began = Instant::now();
        let done = shared.store.remove_logs(namespace, range, BATCH_MAX).await?;
        removed += done.runs;
        let Some(last) = done.last else { break };
        range.after = last;
        pause_after_batch(began.elapsed(), stop).await;
    }
    Ok(removed)
}
