//! The waits of runs, as stored in their rows.

use std::collections::HashMap;
use std::sync::Arc;

use rondel_core::reason::ReasonDetail;
use rondel_core::{RunId, Timestamp};
use rondel_store::LeaseToken;
use rondel_store::ledger::WaitPlace;

#[derive(Debug, Default)]
pub(crate) struct NotedWaits {
    pub(in crate::dispatch) by_run: HashMap<RunId, StoredWait>,
}

#[derive(Debug)]
pub(crate) struct StoredWait {
    pub(in crate::dispatch) attempt: i32,
    /// The lease that owned the row when the wait was noted. An adoption changes the row, so the wait counts as stored only under this lease.
    pub(in crate::dispatch) token: LeaseToken,
    /// When the wait was noted.
    pub(in crate::dispatch) stored_at: Timestamp,
    pub(in crate::dispatch) detail: Arc<ReasonDetail>,
    pub(in crate::dispatch) place: WaitPlace,
}
