//! Requests to end runs: cancels, and drops of runs whose job was paused or deleted. [`forward`] reads the requests from the store and sends them
//! to the dispatcher, even while the node leaves and only waits for its runs.

use rondel_core::RunId;
use rondel_store::StoreError;

use crate::cluster::HeldLease;
use crate::dispatch::Event;
use crate::node::Shared;

/// Reads all requests, and sends them to the dispatcher.
pub(super) async fn forward(shared: &Shared, lease: &HeldLease) -> Result<(), StoreError> {
    let cancels = shared.store.cancels(lease.token).await?;
    if !cancels.is_empty() {
        drop(shared.events.send(Event::Cancels(cancels)).await);
    }
    forward_cancels_elsewhere(shared, lease).await?;
    forward_drops(shared, lease).await
}

/// Reads, page by page, cancel requests that the run's owner cannot deliver, because only other nodes hear the executor. All pages are read,
/// because this node may hear none of the executors that one page names.
async fn forward_cancels_elsewhere(shared: &Shared, lease: &HeldLease) -> Result<(), StoreError> {
    if shared.store.is_single_server() {
        return Ok(());
    }
    let limit = shared.config.end_request_page.max(1);
    let mut after_run = RunId::new(0);
    loop {
        let cancels = shared.store.cancels_elsewhere(lease.token, after_run, limit).await?;
        let Some(last_run) = cancels.last().map(|cancel| cancel.run) else { return Ok(()) };
        let is_last = u32::try_from(cancels.len()).is_ok_and(|count| count < limit);
        drop(shared.events.send(Event::CancelsElsewhere(cancels)).await);
        if is_last {
            return Ok(());
        }
        after_run = last_run;
    }
}

/// Reads, page by page, the runs that are to end unless an executor has them, because their job was paused or deleted.
async fn forward_drops(shared: &Shared, lease: &HeldLease) -> Result<(), StoreError> {
    let limit = shared.config.end_request_page.max(1);
    let mut after_run = RunId::new(0);
    loop {
        let drop_requests = shared.store.drops(lease.token, after_run, limit).await?;
        let Some((last_run, _)) = drop_requests.last().copied() else { return Ok(()) };
        let is_last = u32::try_from(drop_requests.len()).is_ok_and(|count| count < limit);
        drop(shared.events.send(Event::Drops(drop_requests)).await);
        if is_last {
            return Ok(());
        }
        after_run = last_run;
    }
}
