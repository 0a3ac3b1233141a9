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
/// removed. Begins after `last_namespace`, where the last pass ended, and replaces it: the logs of one namespace can take whole passes, and
/// the others must not wait for them.
pub(super) async fn remove_logs(
    shared: &Shared,
    last_namespace: &mut Option<NamespaceId>,
    (stop, deadline): (&CancellationToken, Instant),
) -> Result<u64, StoreError> {
    // Ids increase with time: this is the id that the first run of that instant would have.
    let first_kept_id = IdGen::first_at(shared.clock.now() - shared.config.log_retention);
    let last_old_run = RunId::new(first_kept_id.saturating_sub(1));
    let (mut removed_count, mut first_error) = (0, None);
    let mut namespaces = shared.store.namespaces().await?;
    let last_index = namespaces.iter().position(|namespace| Some(namespace.id) == *last_namespace);
    namespaces.rotate_left(last_index.map_or(0, |index| index + 1));
    for namespace in namespaces {
        *last_namespace = Some(namespace.id);
        match remove_logs_of_namespace(shared, &namespace, last_old_run, (stop, deadline)).await {
            Ok(removed) => removed_count += removed,
            // The other namespaces are processed before the error is returned.
            Err(error) => first_error = first_error.or(Some(error)),
        }
        if stop.is_cancelled() || Instant::now() >= deadline {
            break;
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

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use rondel_core::Timestamp;
    use rondel_store::{MemStore, Store};

    use super::*;
    use crate::config::EngineConfig;
    use crate::engine::Engine;
    use crate::lifecycle::Lifecycle;

    /// A namespace whose logs take whole passes delays the others by one pass at most.
    #[tokio::test(start_paused = true)]
    async fn each_pass_begins_after_the_namespace_where_the_last_one_ended() {
        let started = Instant::now();
        let clock = move || Timestamp::from_secs(1_800_000_000) + started.elapsed();
        let store: Arc<dyn Store> = Arc::new(MemStore::new(Arc::new(clock)));
        let lifecycle = Lifecycle::new();
        let engine = Engine::start(Arc::clone(&store), EngineConfig::default(), &lifecycle).await.unwrap();
        for (id, name) in [(2, "second"), (3, "third")] {
            let namespace = Namespace { id: NamespaceId::new(id), name: name.to_owned() };
            assert!(store.create_namespace(&namespace, engine.now()).await.unwrap());
        }
        let ids: Vec<_> = store.namespaces().await.unwrap().iter().map(|namespace| namespace.id).collect();
        let (shared, stop) = (engine.node().shared(), CancellationToken::new());
        let (mut last_namespace, mut ends) = (None, Vec::new());
        for _ in 0..4 {
            // The deadline is over after the first namespace.
            remove_logs(shared, &mut last_namespace, (&stop, Instant::now())).await.unwrap();
            ends.extend(last_namespace);
        }
        assert_eq!(ends, [ids[0], ids[1], ids[2], ids[0]]);
        let in_time = Instant::now() + std::time::Duration::from_secs(60);
        remove_logs(shared, &mut last_namespace, (&stop, in_time)).await.unwrap();
        assert_eq!(last_namespace, Some(ids[0]), "it went through all");
        lifecycle.soft.cancel();
        lifecycle.hard.cancel();
    }
}
