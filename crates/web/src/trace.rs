//! The span of a request. It adds the request id to the log lines of the request and, if spans are exported, is part of the caller's
//! trace. Handlers find the parent for further spans in [`Trace`].

use std::pin::Pin;
use std::task::{self, Poll};

use axum::body::{Body, Bytes, HttpBody};
use axum::response::Response;
use http::{HeaderMap, Method};
use hyper::body::Frame;
use opentelemetry::Context;
use opentelemetry::trace::TraceContextExt as _;
use rondel_admin::trace::{context_of, parent_of};
use rondel_core::TraceParent;
use tracing::Span;
use tracing::field::Empty;
use tracing_opentelemetry::OpenTelemetrySpanExt as _;

const TRACE_HEADER: &str = "traceparent";

/// Extension of a request: the parent of the spans of all work that the request causes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Trace(pub(crate) Option<TraceParent>);

/// Begins the span of a request. Also returns the parent for further spans; without an exporter, this is the span of the caller.
pub(crate) fn begin(request_id: &str, method: &Method, headers: &HeaderMap) -> (Span, Trace) {
    // The span has level error: a filter must not drop the span while it keeps log lines within it.
    let span = tracing::error_span!(
        target: "http",
        "request",
        request_id,
        run_id = Empty,
        otel.name = Empty,
        otel.kind = Empty,
        otel.status_code = Empty,
    );
    let caller_parent = incoming_parent(headers);
    if span.set_parent(caller_parent.map_or_else(Context::new, context_of)).is_err() {
        return (span, Trace(caller_parent));
    }
    span.record("otel.name", method.as_str());
    span.record("otel.kind", "server");
    span.set_attribute("http.request.method", method.as_str().to_owned());
    let own_span = parent_of(span.context().span().span_context());
    (span, Trace(own_span.or(caller_parent)))
}

/// Names the current span after the method and the route of the request.
pub(crate) fn name_span(method: &Method, route: &'static str) {
    let context = Span::current().context();
    let span = context.span();
    if span.is_recording() {
        span.update_name(format!("{method} {route}"));
        span.set_attribute(opentelemetry::KeyValue::new("http.route", route));
    }
}

/// Records in the span which run the request is about.
pub(crate) fn record_run(run: rondel_core::RunId) {
    Span::current().record("run_id", tracing::field::display(run));
}

pub(crate) fn record_status(span: &Span, status: u16) {
    let context = span.context();
    if context.span().is_recording() {
        span.set_attribute("http.response.status_code", i64::from(status));
        if status >= 500 {
            span.record("otel.status_code", "ERROR");
        }
    }
}

/// Wraps a body that is produced while it is sent, so that its pieces are produced within the span. Other bodies stay as they are.
pub(crate) fn within_span(span: &Span, response: Response) -> Response {
    if response.body().size_hint().exact().is_some() {
        return response;
    }
    response.map(|body| Body::new(InSpan { body, span: span.clone() }))
}

struct InSpan {
    body: Body,
    span: Span,
}

impl HttpBody for InSpan {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut task::Context<'_>) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let Self { body, span } = self.get_mut();
        let _inside = span.enter();
        Pin::new(body).poll_frame(cx)
    }
}

/// The trace in the caller's header. An invalid header is ignored.
fn incoming_parent(headers: &HeaderMap) -> Option<TraceParent> {
    headers.get(TRACE_HEADER)?.to_str().ok()?.parse().ok()
}
