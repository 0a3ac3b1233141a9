//! What happens to a job's queued runs when it is paused or deleted: the caller's choice, and the outcome.

use rondel_admin::jobs::QueuedRuns;
use rondel_core::queued::QueuedRunsPolicy;
use schemars::JsonSchema;
use serde::Serialize;

use crate::parameter::Parameter;
use crate::query::{FromQuery, Reader};

/// The caller's choice for the job's runs that no executor has yet.
#[derive(Clone, Copy, Debug)]
pub(super) struct QueuedQuery {
    pub(super) queued: Option<QueuedRunsPolicy>,
}

impl FromQuery for QueuedQuery {
    fn from_query(reader: &mut Reader) -> Self {
        let about = "What happens to the job's queued runs: `run` or `drop`; if left out, those that its schedule created are skipped.";
        Self { queued: reader.parsed(Parameter::text("queued").about(about), str::parse) }
    }
}

/// What happened to the open runs of a job.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "QueuedRuns")]
pub(super) struct QueuedJson {
    /// Runs that were queued and are skipped.
    dropped: u64,
    /// Runs that stay queued, and run when their turn comes.
    kept: u64,
    /// Runs that executors have, which continue.
    running: u64,
}

impl From<QueuedRuns> for QueuedJson {
    fn from(runs: QueuedRuns) -> Self {
        Self { dropped: runs.dropped_count, kept: runs.kept_count, running: runs.running_count }
    }
}

/// The answer to a deletion.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "DeletedJob")]
pub(super) struct DeletedJson {
    pub(super) queued: QueuedJson,
}
