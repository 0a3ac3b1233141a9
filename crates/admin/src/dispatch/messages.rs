//! Converts between the dispatcher's types and the messages on the wire.

use std::time::Duration;

use rondel_core::outcome::{NextStepPolicy, Outcome};
use rondel_core::pump::Limits;
use rondel_core::spec::{Delivery, OnSilence, OverlapPolicy, PumpMode};
use rondel_core::time::millis;
use rondel_core::{Job, Reason, RunId, Timestamp, TraceParent};
use rondel_failpoint::mutant::{self, Mutant};
use rondel_proto::v1;
use rondel_store::LeaseToken;
use rondel_store::ledger::EndOutcome;

use super::event::IncomingResult;
use super::ready::ReadyRun;
use super::starts::reported_instant;

/// Maximum number of triggers in one message.
pub(crate) const TRIGGER_BATCH: usize = 500;

/// How deeply the result of a run may be nested.
const RESULT_DEPTH_MAX: usize = 50;

/// How many bits of a fence term hold the epoch of the home's lease.
const EPOCH_BITS: u32 = 24;

/// The term of the fencing token that a handler gets. It rises when the job's home changes and when the home takes a new lease,
/// independently of the home's clock and of the ids that the home generates.
fn fence_term(ready: &ReadyRun) -> i64 {
    let epoch = ready.run.node_epoch.clamp(0, (1 << EPOCH_BITS) - 1);
    ready.term.saturating_mul(1 << EPOCH_BITS).saturating_add(epoch)
}

/// The trigger of a run. `trigger_number` rises with each start of the job's runs within a term.
pub(crate) fn trigger(
    ready: &ReadyRun,
    trigger_number: i64,
    parent: Option<TraceParent>,
    (now, silence_max): (Timestamp, Duration),
) -> v1::Trigger {
    let (run, definition) = (&ready.run, &ready.definition);
    let has_begin_limit = !mutant::on(Mutant::QueueTimeFromTurn);
    let shard = definition.job.shard(run.shard_index);
    v1::Trigger {
        run_id: run.id.get(),
        attempt: run.attempt,
        job_id: run.job.get(),
        job: definition.job.name.clone(),
        namespace: definition.namespace_name.clone(),
        handler: definition.job.handler.clone(),
        params: definition.job.params_of(run.params.as_deref(), run.shard_index),
        fire_at_ms: run.fire_at.as_millis(),
        due_at_ms: run.due_at.as_millis(),
        shard_index: run.shard_index.max(0),
        shard_total: run.shard_total.unwrap_or(1).max(1),
        timeout_ms: definition.job.timeout.map_or(0, millis),
        fence_term: fence_term(ready),
        fence_n: trigger_number,
        at_most_once: definition.job.delivery == Delivery::AtMostOnce,
        serial: definition.job.overlap.policy != OverlapPolicy::Allow,
        trigger: run.trigger.as_str().to_owned(),
        traceparent: parent.map(|parent| parent.to_string()).unwrap_or_default(),
        // 0 would mean that there is no limit.
        begin_within_ms: if has_begin_limit { millis(ready.waits_until().since(now)).max(1) } else { 0 },
        on_silence: on_silence(&definition.job).into(),
        overlap: overlap(&definition.job).into(),
        silence_max_ms: if definition.job.silent_run_blocks_others() { millis(silence_max).max(1) } else { 0 },
        pump: definition.job.pump.as_ref().map(|pump| group_settings(pump.limits, definition.job.next_step_policy)),
        shard_name: shard.map_or_else(String::new, |shard| shard.name.clone()),
        shard_params: shard
            .filter(|shard| !shard.params.is_null())
            .map_or_else(String::new, |shard| shard.params.to_string()),
        // Set when the trigger is put on the stream.
        start_in_us: 0,
    }
}

/// The settings of a group of a pump job.
fn group_settings(limits: Limits, row_policy: NextStepPolicy) -> v1::Pump {
    v1::Pump {
        threads: limits.threads,
        fetch: limits.fetch,
        batch: limits.batch,
        not_sleep: limits.mode == PumpMode::NotSleep,
        idle_ms: millis(limits.idle),
        pause_ms: millis(limits.pause),
        hand_over_ms: millis(limits.hand_over),
        row_retry_max: row_policy.retry_max,
        row_backoff_ms: millis(row_policy.backoff),
        row_backoff_max_ms: millis(row_policy.backoff_max),
    }
}

const fn overlap(job: &Job) -> v1::Overlap {
    match job.overlap.policy {
        OverlapPolicy::Serial | OverlapPolicy::Allow => v1::Overlap::Unspecified,
        OverlapPolicy::Discard => v1::Overlap::Discard,
        OverlapPolicy::Cover => v1::Overlap::Cover,
    }
}

const fn on_silence(job: &Job) -> v1::OnSilence {
    match job.on_silence {
        OnSilence::Continue => v1::OnSilence::Continue,
        OnSilence::Stop => v1::OnSilence::Stop,
    }
}

/// The message with a batch of triggers for one executor.
pub(crate) fn triggers(token: LeaseToken, triggers: Vec<v1::Trigger>) -> v1::server_message::Body {
    v1::server_message::Body::Triggers(v1::Triggers { node_id: token.node.get(), node_epoch: token.epoch, triggers })
}

pub(crate) fn cancel(run: RunId, attempt: i32, actor: &str) -> v1::server_message::Body {
    let cancel = v1::Cancel { run_id: run.get(), attempt, by: actor.to_owned() };
    v1::server_message::Body::Cancels(v1::Cancels { cancels: vec![cancel] })
}

/// The message that announces an ended lease to an executor.
pub(crate) fn fence(lease: LeaseToken) -> v1::Fence {
    v1::Fence { node_id: lease.node.get(), node_epoch: lease.epoch }
}

/// Converts a result from the wire; an unknown status becomes a failure with a message about it.
pub(crate) fn incoming_result(result: v1::Result, now: Timestamp) -> IncomingResult {
    use v1::result::Status;
    let status = result.status();
    let outcome = match status {
        Status::Succeeded => Outcome::Succeeded,
        Status::Failed if result.unreported_ms > 0 && result.retryable => Outcome::Lost(Reason::ExecutorLost),
        Status::Failed if result.unreported_ms > 0 => Outcome::Unreported,
        Status::Failed if result.silent_ms > 0 => Outcome::Silenced { has_begun: result.started_at_ms != 0 },
        Status::Failed => Outcome::Failed { retryable: result.retryable },
        Status::TimedOut => Outcome::TimedOut,
        Status::Cancelled => Outcome::Cancelled,
        Status::Skipped => Outcome::Skipped(Reason::Handler),
        Status::Yielded => Outcome::Yielded,
        Status::Unspecified => Outcome::Failed { retryable: false },
    };
    let is_shutting_down = result.shutting_down;
    let non_empty = |text: String| (!text.is_empty()).then_some(text);
    let message = match status {
        Status::Unspecified => Some("the executor sent a result that this server does not know".to_owned()),
        _ => non_empty(result.message),
    };
    IncomingResult {
        run: RunId::new(result.run_id),
        attempt: result.attempt,
        outcome,
        message,
        result: non_empty(result.result).map(bounded_depth),
        started_at: reported_instant(result.started_at_ms, now),
        finished_at: reported_instant(result.finished_at_ms, now).unwrap_or(now),
        received_at: now,
        silent_ms: u64::try_from(result.silent_ms).ok().filter(|silent| *silent > 0 && !is_shutting_down),
        is_shutting_down,
        is_unfinished: result.unfinished,
        memory: None,
    }
}

/// Turns a result that is nested too deeply for other readers of JSON into one JSON string that contains the result's text.
fn bounded_depth(json: String) -> String {
    if depth(&json) <= RESULT_DEPTH_MAX {
        return json;
    }
    serde_json::Value::String(json).to_string()
}

/// How deeply the arrays and objects of a JSON text are nested.
fn depth(json: &str) -> usize {
    let (mut depth, mut deepest, mut in_text, mut is_escaped) = (0_usize, 0, false, false);
    for byte in json.bytes() {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' if in_text => is_escaped = true,
            b'"' => in_text = !in_text,
            b'[' | b'{' if !in_text => {
                depth += 1;
                deepest = deepest.max(depth);
            }
            b']' | b'}' if !in_text => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    deepest
}

/// The answer to a result.
pub(crate) fn ack(run: RunId, attempt: i32, end_outcome: &EndOutcome) -> v1::ResultAck {
    use v1::result_ack::Kind;
    let kind = match end_outcome {
        EndOutcome::Stored(..) | EndOutcome::Unwritable => Kind::Stored,
        EndOutcome::Duplicate => Kind::Duplicate,
        EndOutcome::Superseded => Kind::Superseded,
        EndOutcome::Late => Kind::Late,
        // The last two are answers to ends that servers decide, so no executor gets them.
        EndOutcome::NoSuchRun | EndOutcome::NotOwner | EndOutcome::UnderWay => Kind::NoSuchRun,
    };
    v1::ResultAck { run_id: run.get(), attempt, kind: kind.into() }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::json;

    use super::*;
    use crate::dispatch::tests_support::{definition, ready};

    #[test]
    fn a_result_that_is_nested_too_deeply_is_kept_as_a_text() {
        let nested = |depth: usize| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
        assert_eq!(bounded_depth(nested(50)), nested(50));
        assert_eq!(bounded_depth(nested(51)), format!("{:?}", nested(51)));
        let texts = r#"{"a": "[[[[\"[[[[", "b": [{}, {}]}"#;
        assert_eq!((depth(texts), depth("7"), depth("]]]]")), (3, 0, 0));
    }

    /// A shard's own parameters are not in its row: the definition of its fire has the parameters of all shards.
    #[test]
    fn a_shard_gets_its_own_parameters_over_those_of_its_fire() {
        let shards = json!([{"name": "eu", "params": {"schema": "eu"}}, {"name": "us"}, {"name": "all", "params": 7}]);
        let definition = definition(&json!({"params": {"day": "today", "schema": "main"}, "shards": shards}));
        let sent = |index: i32, own: Option<&str>| {
            let mut ready = ready(1_000, &definition);
            (ready.run.shard_index, ready.run.shard_total) = (index, Some(3));
            ready.run.params = own.map(str::to_owned);
            let sent = trigger(&ready, 1, None, (ready.run.due_at, Duration::from_secs(105)));
            let params: serde_json::Value = serde_json::from_str(&sent.params).unwrap();
            (sent.shard_name, sent.shard_params, params)
        };
        let of = |name: &str, own: &str, params| (name.to_owned(), own.to_owned(), params);
        assert_eq!(sent(0, None), of("eu", r#"{"schema":"eu"}"#, json!({"day": "today", "schema": "eu"})));
        assert_eq!(sent(1, None), of("us", "", json!({"day": "today", "schema": "main"})));
        assert_eq!(sent(2, None), of("all", "7", json!(7)));
        let own = Some(r#"{"day": "2026-03-08"}"#);
        assert_eq!(sent(0, own).2, json!({"day": "2026-03-08", "schema": "eu"}));
        assert_eq!(sent(1, own).2, json!({"day": "2026-03-08"}));
        assert_eq!(sent(rondel_core::run::ROOT_SHARD, None).0, "");
    }

    #[test]
    fn an_end_that_is_not_known_is_no_failure() {
        let outcome = |retryable, unreported_ms| {
            let status = v1::result::Status::Failed.into();
            let result = v1::Result { status, retryable, unreported_ms, ..v1::Result::default() };
            incoming_result(result, Timestamp::from_secs(1)).outcome
        };
        assert_eq!(outcome(true, 60_000), Outcome::Lost(Reason::ExecutorLost));
        assert_eq!(outcome(false, 60_000), Outcome::Unreported);
        assert_eq!(outcome(true, 0), Outcome::Failed { retryable: true });
    }

    /// Such a result also has a length of silence, for servers that do not know the field `shutting_down`. This server ignores the length: the
    /// executor was not silent.
    #[test]
    fn a_run_that_is_handed_back_at_a_shutdown_did_not_begin() {
        let ready = ready(1_000, &definition(&json!({})));
        for (shutting_down, silent_ms) in [(true, None), (false, Some(1))] {
            let status = v1::result::Status::Failed.into();
            let result = v1::Result {
                attempt: 1,
                status,
                silent_ms: 1,
                shutting_down,
                retryable: true,
                ..v1::Result::default()
            };
            let result = incoming_result(result, Timestamp::from_secs(1));
            assert_eq!(result.outcome, Outcome::Silenced { has_begun: false });
            let executor = (rondel_core::ExecutorId::new(1), "e1".to_owned());
            let policy = ready.definition.job.next_step_policy;
            let detail = result.into_attempt_end(&ready.run, policy, executor).detail.unwrap();
            assert_eq!((detail.executor.as_deref(), detail.shutting_down), (Some("e1"), shutting_down));
            assert_eq!(detail.silent_ms, silent_ms);
        }
    }

    #[test]
    fn an_attempt_neither_begins_nor_ends_before_it_is_due() {
        let ready = ready(1_000, &definition(&json!({})));
        let at = Timestamp::from_secs;
        let reported = |at_ms: i64, now| {
            let result =
                v1::Result { attempt: 1, started_at_ms: at_ms, finished_at_ms: at_ms, ..v1::Result::default() };
            let policy = ready.definition.job.next_step_policy;
            let attempt_end = incoming_result(result, now).into_attempt_end(
                &ready.run,
                policy,
                (rondel_core::ExecutorId::new(1), String::new()),
            );
            (attempt_end.started_at, attempt_end.finished_at)
        };
        for (at_ms, expected) in [(1, 1_000), (1_005_000, 1_005), (i64::MAX, 1_010)] {
            assert_eq!(reported(at_ms, at(1_010)), (Some(at(expected)), at(expected)), "{at_ms}");
        }
        let lags = Timestamp::from_millis(999_990);
        assert_eq!(reported(999_990, lags), (Some(at(1_000)), at(1_000)), "this server's clock is behind the sender's");
        assert_eq!(reported(1, at(999)).1, at(999), "not after the present, where a clock stepped back");
    }

    /// Every later start has the greater token, whether the home changes, the home takes a new lease, or only the number rises.
    #[test]
    fn a_later_start_has_the_greater_token() {
        let definition = definition(&json!({}));
        let token = |term, epoch, number| {
            let mut ready = ReadyRun { term, ..ready(1, &Arc::clone(&definition)) };
            ready.run.node_epoch = epoch;
            let trigger = trigger(&ready, number, None, (ready.run.due_at, Duration::from_secs(105)));
            (trigger.fence_term, trigger.fence_n)
        };
        let starts =
            [(0, 1, 5), (1, 7, 5), (1, 7, 6), (1, 8, 2), (1, 8, 3), (2, 1, 1), (3, 7, 1), (3, 1 << 30, 9), (4, 1, 1)];
        let tokens: Vec<_> = starts.map(|(term, epoch, number)| token(term, epoch, number)).into();
        assert!(tokens.is_sorted_by(|a, b| a < b), "{tokens:?}");
    }
}
