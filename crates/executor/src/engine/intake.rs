//! Turns triggers into runs in the table, and endings into results.

use std::ops::Deref;
use std::sync::Arc;
use std::time::Instant;

use rondel_core::time::millis;
use rondel_core::{JobId, RunStatus, Timestamp};
use rondel_proto::v1::{self, Trigger};

use super::Engine;
use crate::ending::Ending;
use crate::log::RunLog;
use crate::run::RunContext;
use crate::table::{Intake, RunKey, TableLog as _, TableRun};

/// A run in the table.
#[derive(Clone, Debug)]
pub(crate) struct HeldRun(pub(super) RunContext);

impl Deref for HeldRun {
    type Target = RunContext;

    fn deref(&self) -> &RunContext {
        &self.0
    }
}

impl TableRun for HeldRun {
    type Log = RunLog;

    fn key(&self) -> RunKey {
        self.0.key()
    }

    fn job_id(&self) -> JobId {
        self.0.job_id()
    }

    fn fence_n(&self) -> i64 {
        self.0.fencing_token().n
    }

    fn link_id(&self) -> u64 {
        self.0.log().link_id()
    }

    fn log(&self) -> &Arc<RunLog> {
        self.0.log()
    }

    fn started_at_ms(&self) -> Option<i64> {
        self.0.started_at().map(Timestamp::as_millis)
    }

    fn running_ms(&self) -> i64 {
        self.0.running_for().map_or(0, |length| millis(length).max(1))
    }

    fn started_after_ms(&self) -> i64 {
        millis(self.0.start_delay())
    }

    fn should_end(&self, now: Instant) -> bool {
        self.0.should_end(now.into())
    }
}

impl Intake for Engine {
    type Run = HeldRun;

    fn has_handler(&self, name: &str) -> bool {
        self.catalog.handlers.contains_key(name)
    }

    fn make_run(&self, trigger: Trigger, link_id: u64) -> HeldRun {
        HeldRun(RunContext::new(&self.setup, trigger, link_id))
    }
}

/// The result to send, with instants in milliseconds. A start of 0 means that the handler never began.
pub(super) fn wire_result(
    run: &RunContext,
    ending: &Ending,
    (started_at_ms, finished_at_ms): (i64, i64),
) -> v1::Result {
    v1::Result {
        run_id: run.run_id().get(),
        attempt: run.attempt(),
        status: ending.wire_status().into(),
        message: ending.message.clone(),
        result: ending.result.clone().unwrap_or_default(),
        retryable: ending.retryable && ending.status != RunStatus::Succeeded,
        started_at_ms,
        finished_at_ms,
        job_id: run.job_id().get(),
        silent_ms: ending.silent_for.map_or(0, |duration| millis(duration).max(1)),
        unreported_ms: 0,
        unfinished: ending.is_unfinished,
        shutting_down: false,
    }
}
