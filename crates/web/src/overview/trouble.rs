//! What went wrong in the last day in a namespace, read once for all parts of a page that need it.

use std::time::Duration;

use rondel_core::{IdGen, RunId};
use rondel_store::rollups::JobTrouble;
use tokio::sync::OnceCell;

use crate::call::Call;
use crate::problem::Problem;

/// How far back it is looked for.
const WITHIN: Duration = Duration::from_secs(24 * 3600);
/// Rows of the ledger in which it is looked for.
const ROW_COUNT: u32 = 2_000;

/// The jobs whose runs failed or were skipped in the last day. Parts that read it at the same time wait for one read.
#[derive(Debug, Default)]
pub(crate) struct Trouble(OnceCell<Vec<JobTrouble>>);

impl Trouble {
    /// Reads it, or answers what was read before.
    pub(crate) async fn read<Q: Sync>(&self, call: &Call<Q>) -> Result<&[JobTrouble], Problem> {
        let read = || async {
            let since = RunId::new(IdGen::first_at(call.engine().now() - WITHIN));
            call.engine().store().troubled_jobs(call.namespace.id, since, ROW_COUNT).await
        };
        Ok(self.0.get_or_try_init(read).await?)
    }
}
