//! Traces: from the fire of a job to the executor that gets its run. Spans are created only if the configuration enables the export of
//! traces; the trace of a request is passed on in either case.

use std::cell::Cell;
use std::time::{Duration, SystemTime};

use opentelemetry::global::{self, BoxedSpan, BoxedTracer};
use opentelemetry::trace::{
    Span as _, SpanContext, SpanId, SpanKind, Status, TraceContextExt as _, TraceFlags, TraceId, TraceState,
    Tracer as _,
};
use opentelemetry::{Context, KeyValue};
use rondel_core::{Timestamp, TraceParent, trace_parent};

use crate::dispatch::ReadyRun;

/// The instrumentation scope of the spans.
const SCOPE: &str = "rondel";

thread_local! {
    /// The id of the next trace that begins on this thread; 0 for a random id.
    static NEXT_TRACE: Cell<u128> = const { Cell::new(0) };
}

/// Takes the id for the trace that begins now on this thread, for the id generator; `None` for a random id. The id of a fire's trace is derived
/// from its run, so that all attempts of a run share one trace, whichever node sends them.
#[must_use]
pub fn take_next_trace() -> Option<u128> {
    let id = NEXT_TRACE.replace(0);
    (id != 0).then_some(id)
}

/// A context whose spans are children of `parent`.
#[must_use]
pub fn context_of(parent: TraceParent) -> Context {
    let flags = if parent.is_sampled() { TraceFlags::SAMPLED } else { TraceFlags::default() };
    let (trace_id, span_id) = (TraceId::from(parent.trace_id()), SpanId::from(parent.span_id()));
    let parent = SpanContext::new(trace_id, span_id, flags, true, TraceState::default());
    Context::new().with_remote_span_context(parent)
}

/// The span as the parent of other spans; `None` if the span context is not valid.
#[must_use]
pub fn parent_of(span: &SpanContext) -> Option<TraceParent> {
    let trace_id = u128::from_be_bytes(span.trace_id().to_bytes());
    TraceParent::new(trace_id, u64::from_be_bytes(span.span_id().to_bytes()), span.is_sampled())
}

/// Creates the spans of fires, if traces are enabled.
pub(crate) struct FireTracer(Option<BoxedTracer>);

/// The span that covers the sending of a run to an executor. It ends at the latest when it is dropped.
#[derive(Debug)]
pub(crate) struct DispatchSpan(BoxedSpan);

impl FireTracer {
    pub(crate) fn new(is_on: bool) -> Self {
        Self(is_on.then(|| global::tracer(SCOPE)))
    }

    /// Returns the trace parent to send with a run, and the span of its dispatch. That span is a child of the fire's span, which began when
    /// the run was due and ends now; the fire's span is a child of the caller's span.
    pub(crate) fn start_dispatch(
        &self,
        ready: &ReadyRun,
        executor: &str,
        now: Timestamp,
    ) -> (Option<TraceParent>, Option<DispatchSpan>) {
        let Some(tracer) = &self.0 else { return (ready.trace.as_deref().copied(), None) };
        let context = match ready.trace.as_deref().copied() {
            Some(parent) => context_of(parent),
            None => {
                NEXT_TRACE.set(trace_parent::trace_id(&ready.run));
                Context::new()
            }
        };
        let mut fire_span = tracer
            .span_builder(format!("fire {}", ready.definition.job.name))
            .with_kind(SpanKind::Producer)
            .with_start_time(system_time(ready.run.due_at.min(now)))
            .with_attributes(attributes(ready))
            .start_with_context(tracer, &context);
        NEXT_TRACE.set(0);
        if !fire_span.is_recording() {
            return (parent_of(fire_span.span_context()), None);
        }
        let context = Context::new().with_remote_span_context(fire_span.span_context().clone());
        let dispatch_span = tracer
            .span_builder("dispatch")
            .with_start_time(system_time(now))
            .with_attributes([KeyValue::new("rondel.executor.name", executor.to_owned())])
            .start_with_context(tracer, &context);
        fire_span.end_with_timestamp(system_time(now));
        (parent_of(dispatch_span.span_context()), Some(DispatchSpan(dispatch_span)))
    }
}

impl DispatchSpan {
    /// Ends the span: the executor has accepted the run, or refused it for this reason.
    pub(crate) fn end(mut self, refusal: Option<&'static str>, now: Timestamp) {
        if let Some(why) = refusal {
            self.0.set_status(Status::error(why));
        }
        self.0.end_with_timestamp(system_time(now));
    }
}

impl std::fmt::Debug for FireTracer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("FireTracer").field(&self.0.is_some()).finish()
    }
}

fn attributes(ready: &ReadyRun) -> Vec<KeyValue> {
    let (run, definition) = (&ready.run, &ready.definition);
    let mut attributes = vec![
        KeyValue::new("rondel.run.id", run.id.to_string()),
        KeyValue::new("rondel.job.name", definition.job.name.clone()),
        KeyValue::new("rondel.namespace", definition.namespace_name.clone()),
        KeyValue::new("rondel.attempt", i64::from(run.attempt)),
        KeyValue::new("rondel.trigger", run.trigger.as_str()),
        KeyValue::new("rondel.scheduled_time", run.fire_at.to_string()),
    ];
    if let Some(total) = run.shard_total.filter(|_| run.parent.is_some() || definition.job.is_sharded()) {
        attributes.push(KeyValue::new("rondel.shard.index", i64::from(run.shard_index)));
        attributes.push(KeyValue::new("rondel.shard.total", i64::from(total)));
    }
    attributes
}

fn system_time(at: Timestamp) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_millis(u64::try_from(at.as_millis()).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::dispatch::tests_support::{definition, ready};

    const PARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    #[test]
    fn a_trace_parent_survives_the_conversion() {
        let parent: TraceParent = PARENT.parse().unwrap();
        assert_eq!(parent_of(context_of(parent).span().span_context()), Some(parent));
        assert_eq!(parent_of(Context::new().span().span_context()), None);
    }

    #[test]
    fn without_an_exporter_a_run_is_sent_with_the_requested_trace_parent() {
        let tracer = FireTracer::new(false);
        let mut ready = ready(60, &definition(&json!({})));
        assert!(matches!(tracer.start_dispatch(&ready, "e", Timestamp::from_secs(61)), (None, None)));
        ready.trace = PARENT.parse().ok().map(Box::new);
        let (parent, span) = tracer.start_dispatch(&ready, "e", Timestamp::from_secs(61));
        assert_eq!((parent, span.is_none()), (ready.trace.as_deref().copied(), true));
    }
}
