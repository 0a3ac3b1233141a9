//! Between the dispatcher's words and the wire's.

use rondel_core::outcome::Outcome;
use rondel_core::spec::{Delivery, OverlapPolicy};
use rondel_core::time::millis;
use rondel_core::{Reason, RunId, Timestamp};
use rondel_proto::v1;
use rondel_store::LeaseToken;
use rondel_store::ledger::Finished;

use super::{IncomingResult, Ready};

/// Triggers in one message.
pub(crate) const TRIGGER_BATCH: usize = 500;

/// A run as an executor gets it. `fence` rises with each start of the job's runs.
pub(crate) fn trigger(ready: &Ready, fence: i64) -> v1::Trigger {
    let (run, definition) = (&ready.run, &ready.definition);
    v1::Trigger {
        run_id: run.id.get(),
        attempt: run.attempt,
        job_id: run.job.get(),
        job: definition.job.name.clone(),
        namespace: definition.namespace_name.clone(),
        handler: definition.job.handler.clone(),
        params: run.params.clone().unwrap_or_else(|| definition.job.params.clone()),
        fire_at_ms: run.fire_at.as_millis(),
        due_at_ms: run.due_at.as_millis(),
        shard_index: run.shard_index.max(0),
        shard_total: run.shard_total.unwrap_or(1).max(1),
        timeout_ms: definition.job.timeout.map_or(0, millis),
        fence_term: 0,
        fence_n: fence,
        at_most_once: definition.job.delivery == Delivery::AtMostOnce,
        serial: definition.job.overlap.policy != OverlapPolicy::Allow,
        trigger: run.trigger.as_str().to_owned(),
    }
}

/// One message for all of an executor's triggers of this instant.
pub(crate) fn triggers(token: LeaseToken, triggers: Vec<v1::Trigger>) -> v1::server_message::Body {
    v1::server_message::Body::Triggers(v1::Triggers { node_id: token.node.get(), node_epoch: token.epoch, triggers })
}

pub(crate) fn cancel(run: RunId, attempt: i32, by: &str) -> v1::server_message::Body {
    let cancel = v1::Cancel { run_id: run.get(), attempt, by: by.to_owned() };
    v1::server_message::Body::Cancels(v1::Cancels { cancels: vec![cancel] })
}

/// A result from the wire; an unknown status is a failure that says so.
pub(crate) fn incoming(result: v1::Result, now: Timestamp) -> IncomingResult {
    use v1::result::Status;
    let status = result.status();
    let outcome = match status {
        Status::Succeeded => Outcome::Succeeded,
        Status::Failed => Outcome::Failed { retryable: result.retryable },
        Status::TimedOut => Outcome::TimedOut,
        Status::Cancelled => Outcome::Cancelled,
        Status::Skipped => Outcome::Skipped(Reason::Requested),
        Status::Unspecified => Outcome::Failed { retryable: false },
    };
    let text = |text: String| (!text.is_empty()).then_some(text);
    let message = match status {
        Status::Unspecified => Some("the executor sent a result that this server does not know".to_owned()),
        _ => text(result.message),
    };
    // An executor's clock is only a guess of the server's: nothing ends in the future.
    let instant = |at_ms: i64| (at_ms > 0).then(|| Timestamp::from_millis(at_ms).min(now));
    IncomingResult {
        run: RunId::new(result.run_id),
        attempt: result.attempt,
        outcome,
        message,
        result: text(result.result),
        started_at: instant(result.started_at_ms),
        finished_at: instant(result.finished_at_ms).unwrap_or(now),
    }
}

/// The answer to a result.
pub(crate) fn ack(run: RunId, attempt: i32, finished: &Finished) -> v1::ResultAck {
    use v1::result_ack::Kind;
    let kind = match finished {
        Finished::Stored(..) | Finished::Unwritable => Kind::Stored,
        Finished::Duplicate => Kind::Duplicate,
        Finished::Superseded => Kind::Superseded,
        Finished::Late => Kind::Late,
        Finished::NoSuchRun => Kind::NoSuchRun,
    };
    v1::ResultAck { run_id: run.get(), attempt, kind: kind.into() }
}
