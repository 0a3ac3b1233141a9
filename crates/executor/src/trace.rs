//! The span around a run. Every line that the program logs inside it has the run's ids. If the program exports traces
//! (the feature `opentelemetry`, and a layer of `tracing-opentelemetry` in its subscriber), the run's span
//! becomes a part of the trace that the server sent with the run.

use rondel_core::RunStatus;
use tracing::Span;
use tracing::field::Empty;

use crate::ending::Ending;
use crate::run::RunContext;

/// The span of a run, open until its handler has ended. Its level is `error`, so that no level filter drops it.
pub(crate) fn span(run: &RunContext) -> Span {
    let span = tracing::error_span!(
        "run",
        run_id = %run.run_id(),
        job = run.job(),
        attempt = run.attempt(),
        otel.name = Empty,
        otel.kind = Empty,
        otel.status_code = Empty,
        otel.status_description = Empty,
    );
    otel::join(&span, run);
    span
}

/// Logs how the run ended. If the run's span is exported, it gets an error status, unless the run succeeded, was
/// skipped or yielded.
pub(crate) fn record_end(span: &Span, run: &RunContext, ending: &Ending) {
    tracing::debug!(status = %ending.status, message_of_run = ending.message, "the run ended");
    if run.is_exported() && !ending.is_yielded && !matches!(ending.status, RunStatus::Succeeded | RunStatus::Skipped) {
        span.record("otel.status_code", "ERROR");
        span.record("otel.status_description", ending.message.as_str());
    }
}

#[cfg(feature = "opentelemetry")]
mod otel {
    use opentelemetry::Context;
    use opentelemetry::trace::{SpanContext, SpanId, TraceContextExt as _, TraceFlags, TraceId, TraceState};
    use rondel_core::TraceParent;
    use tracing::Span;
    use tracing_opentelemetry::OpenTelemetrySpanExt as _;

    use crate::run::RunContext;

    /// Makes the span a part of the run's trace. If nothing exports spans, the run keeps the parent that the server
    /// sent.
    pub(super) fn join(span: &Span, run: &RunContext) {
        let parent = run.server_span().map_or_else(Context::new, context_of);
        if span.set_parent(parent).is_err() {
            return;
        }
        span.record("otel.name", format!("run {}", run.job()));
        span.record("otel.kind", "consumer");
        let shard = run.shard();
        span.set_attribute("rondel.run.id", run.run_id().to_string());
        span.set_attribute("rondel.job.name", run.job().to_owned());
        span.set_attribute("rondel.namespace", run.namespace().to_owned());
        span.set_attribute("rondel.attempt", i64::from(run.attempt()));
        span.set_attribute("rondel.trigger", run.trigger().to_owned());
        span.set_attribute("rondel.scheduled_time", run.fire_at().to_string());
        span.set_attribute("rondel.shard.index", i64::from(shard.index));
        span.set_attribute("rondel.shard.total", i64::from(shard.total));
        if let Some(exported_parent) = parent_of(span.context().span().span_context()) {
            run.set_exported_span(exported_parent);
        }
    }

    fn context_of(parent: TraceParent) -> Context {
        let flags = if parent.is_sampled() { TraceFlags::SAMPLED } else { TraceFlags::default() };
        let (trace_id, span_id) = (TraceId::from(parent.trace_id()), SpanId::from(parent.span_id()));
        let parent = SpanContext::new(trace_id, span_id, flags, true, TraceState::default());
        Context::new().with_remote_span_context(parent)
    }

    fn parent_of(span: &SpanContext) -> Option<TraceParent> {
        let trace_id = u128::from_be_bytes(span.trace_id().to_bytes());
        TraceParent::new(trace_id, u64::from_be_bytes(span.span_id().to_bytes()), span.is_sampled())
    }
}

#[cfg(not(feature = "opentelemetry"))]
mod otel {
    pub(super) const fn join(_: &tracing::Span, _: &crate::run::RunContext) {}
}
