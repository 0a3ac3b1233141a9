//! Writes the lines of the log as JSON documents for programs. Each document is flat, so that `run_id` and `request_id` are
//! at the same place in each line, whether they belong to the line itself or to its span.

use std::collections::BTreeMap;
use std::fmt;
use std::io::Write as _;

use opentelemetry::trace::TraceContextExt as _;
use serde::Serializer as _;
use serde::ser::SerializeMap as _;
use serde_json::Value;
use tracing::dispatcher::WeakDispatch;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Dispatch, Event, Subscriber};
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime as _, SystemTime};
use tracing_subscriber::layer::{Context, Layer};
use tracing_subscriber::registry::LookupSpan;

/// Fields with this prefix are for traces, and of no use in a line.
const TRACE_FIELD_PREFIX: &str = "otel.";

type Fields = BTreeMap<&'static str, Value>;

/// The fields of a span, stored in the span's extensions.
struct SpanFields(Fields);

/// Writes events as lines.
#[derive(Debug)]
pub(super) struct JsonLines<W> {
    writer: W,
    dispatch: std::sync::OnceLock<WeakDispatch>,
}

impl<W> JsonLines<W> {
    pub(super) const fn new(writer: W) -> Self {
        Self { writer, dispatch: std::sync::OnceLock::new() }
    }

    /// The ids of the trace and the span that a line belongs to, if there are any.
    fn trace_of(&self, span: &Id) -> Option<(String, String)> {
        let dispatch = self.dispatch.get()?.upgrade()?;
        let context = tracing_opentelemetry::get_otel_context(span, &dispatch)?;
        let span = context.span();
        let span = span.span_context();
        span.is_valid().then(|| (span.trace_id().to_string(), span.span_id().to_string()))
    }
}

impl<S, W> Layer<S> for JsonLines<W>
where
    S: Subscriber + for<'span> LookupSpan<'span>,
    W: for<'writer> MakeWriter<'writer> + 'static,
{
    fn on_register_dispatch(&self, subscriber: &Dispatch) {
        // There is one dispatcher, and it is registered once.
        self.dispatch.get_or_init(|| subscriber.downgrade());
    }

    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        let mut fields = Fields::new();
        attributes.record(&mut FieldVisitor(&mut fields));
        if let Some(span) = context.span(id) {
            span.extensions_mut().insert(SpanFields(fields));
        }
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, context: Context<'_, S>) {
        if let Some(span) = context.span(id)
            && let Some(SpanFields(fields)) = span.extensions_mut().get_mut()
        {
            values.record(&mut FieldVisitor(fields));
        }
    }

    fn on_event(&self, event: &Event<'_>, context: Context<'_, S>) {
        let mut fields = Fields::new();
        // From the outermost span inwards: the value nearest to the event wins.
        for span in context.event_scope(event).into_iter().flat_map(|scope| scope.from_root()) {
            if let Some(SpanFields(span_fields)) = span.extensions().get() {
                fields.extend(span_fields.iter().map(|(name, value)| (*name, value.clone())));
            }
        }
        event.record(&mut FieldVisitor(&mut fields));
        if let Some((trace_id, span_id)) = context.event_span(event).and_then(|span| self.trace_of(&span.id())) {
            fields.entry("trace_id").or_insert_with(|| trace_id.into());
            fields.entry("span_id").or_insert_with(|| span_id.into());
        }
        let metadata = event.metadata();
        if let Ok(line) = json_line(metadata.level().as_str(), metadata.target(), fields) {
            // A failed write is ignored: a closed stderr has no reader.
            drop(self.writer.make_writer_for(metadata).write_all(&line));
        }
    }
}

fn json_line(level: &str, target: &str, mut fields: Fields) -> serde_json::Result<Vec<u8>> {
    let mut timestamp = String::new();
    SystemTime.format_time(&mut Writer::new(&mut timestamp)).map_err(serde::ser::Error::custom)?;
    let mut line = Vec::with_capacity(256);
    let mut json = serde_json::Serializer::new(&mut line);
    let mut map = json.serialize_map(None)?;
    map.serialize_entry("timestamp", &timestamp)?;
    map.serialize_entry("level", level)?;
    map.serialize_entry("target", target)?;
    if let Some(message) = fields.remove("message") {
        map.serialize_entry("message", &message)?;
    }
    for (name, value) in fields {
        // These names belong to the line itself; `message` was taken out above.
        if !matches!(name, "timestamp" | "level" | "target") {
            map.serialize_entry(name, &value)?;
        }
    }
    map.end()?;
    line.push(b'\n');
    Ok(line)
}

/// Collects fields, except those for traces.
struct FieldVisitor<'a>(&'a mut Fields);

impl FieldVisitor<'_> {
    fn insert_field(&mut self, field: &Field, value: impl Into<Value>) {
        if !field.name().starts_with(TRACE_FIELD_PREFIX) {
            self.0.insert(field.name(), value.into());
        }
    }
}

impl Visit for FieldVisitor<'_> {
    fn record_f64(&mut self, field: &Field, value: f64) {
        self.insert_field(field, value);
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.insert_field(field, value);
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.insert_field(field, value);
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.insert_field(field, value);
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.insert_field(field, value);
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.insert_field(field, format!("{value:?}"));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use serde_json::json;
    use tracing_subscriber::layer::SubscriberExt as _;

    use super::*;

    #[derive(Clone, Default)]
    struct Sink(Arc<Mutex<Vec<u8>>>);

    impl std::io::Write for Sink {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_line_has_the_fields_of_its_spans_beside_its_own() {
        let sink = Sink::default();
        let writer = sink.clone();
        let subscriber = tracing_subscriber::registry().with(JsonLines::new(move || writer.clone()));
        tracing::subscriber::with_default(subscriber, || {
            let outer = tracing::error_span!("request", request_id = "r1", run_id = tracing::field::Empty, level = "x");
            outer.record("run_id", 7);
            let _outer = outer.enter();
            let _inner = tracing::error_span!("run", attempt = 1, otel.kind = "consumer").entered();
            tracing::warn!(attempt = 2, good = true, cause = ?Some("\"it\""), "went {}", "wrong");
        });
        let text = String::from_utf8(sink.0.lock().unwrap().clone()).unwrap();
        let mut line: Value = serde_json::from_str(text.trim_end()).unwrap();
        assert!(text.starts_with("{\"timestamp\":\"20") && text.ends_with("}\n"), "{text}");
        assert!(line.as_object_mut().unwrap().remove("timestamp").is_some());
        let expected = json!({
            "level": "WARN", "target": module_path!(), "message": "went wrong", "request_id": "r1", "run_id": 7, "attempt": 2,
            "good": true, "cause": "Some(\"\\\"it\\\"\")",
        });
        assert_eq!(line, expected);
    }
}
