//! Stores the end of an executor's session, and tries again while the database does not answer. Otherwise later roll calls would wait for an
//! executor whose row states that its stream is open.

use std::time::Duration;

use rondel_core::ExecutorId;
use rondel_core::backoff::backoff;
use rondel_core::error_chain::chain;
use rondel_store::cluster::StreamEnd;
use tokio_util::sync::CancellationToken;

use crate::node::Shared;

const RETRY_DELAY_MIN: Duration = Duration::from_secs(1);
const RETRY_DELAY_MAX: Duration = Duration::from_secs(30);

/// Stores the end; false if it has to be stored again, because the database did not answer, or the server is taking its next lease. Such a server
/// moves the sessions of its executors to the next lease, as open sessions, including the session of an executor whose stream has just ended.
pub(super) async fn store_end(shared: &Shared, executor: ExecutorId, stream_end: StreamEnd) -> bool {
    let token = shared.membership.token();
    match shared.store.close_session(token, executor, stream_end).await {
        Ok(()) => shared.is_leaving() || shared.membership.is_current_lease(token),
        Err(error) => {
            tracing::debug!(error = %chain(&error), "cannot note the end of a session");
            false
        }
    }
}

/// Tries until the end is stored, after a first try. A session that the executor has opened since does not end.
pub(super) async fn retry_store_end(
    shared: &Shared,
    executor: ExecutorId,
    stream_end: StreamEnd,
    stop: &CancellationToken,
) {
    let mut failed_count = 1;
    loop {
        let wait = tokio::time::sleep(backoff(RETRY_DELAY_MIN, RETRY_DELAY_MAX, failed_count));
        if stop.run_until_cancelled(wait).await.is_none() || store_end(shared, executor, stream_end).await {
            return;
        }
        failed_count = failed_count.saturating_add(1);
    }
}
