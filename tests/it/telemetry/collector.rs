//! A minimal collector of traces: it receives OTLP over gRPC, and stores the spans.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use opentelemetry_proto::tonic::collector::trace::v1::trace_service_server::{TraceService, TraceServiceServer};
use opentelemetry_proto::tonic::collector::trace::v1::{ExportTraceServiceRequest, ExportTraceServiceResponse};
use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue, any_value};
use rondel_tests::wait_until;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::transport::Server;
use tonic::{Request, Response, Status};

/// Longer than an exporter collects spans before it sends them.
const LIMIT: Duration = Duration::from_secs(30);

/// An exported span.
#[derive(Clone, Debug)]
pub(super) struct Span {
    /// The program that exported it.
    pub(super) service: String,
    pub(super) name: String,
    pub(super) kind: i32,
    pub(super) trace_id: String,
    pub(super) span_id: String,
    /// Empty for the first span of a trace.
    pub(super) parent: String,
    pub(super) attributes: BTreeMap<String, String>,
    pub(super) is_error: bool,
}

#[derive(Clone, Debug, Default)]
struct Spans(Arc<Mutex<Vec<Span>>>);

/// The collector listens until it is dropped.
#[derive(Debug)]
pub(super) struct Collector {
    url: String,
    spans: Spans,
    server: JoinHandle<()>,
}

impl Collector {
    pub(super) async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("listen");
        let url = format!("http://{}", listener.local_addr().expect("an address"));
        let spans = Spans::default();
        let service = TraceServiceServer::new(spans.clone());
        let server = async move {
            let served = Server::builder().add_service(service).serve_with_incoming(TcpListenerStream::new(listener));
            served.await.expect("the collector goes on");
        };
        #[expect(clippy::disallowed_methods, reason = "it is aborted when the collector is dropped")]
        let server = tokio::spawn(server);
        Self { url, spans, server }
    }

    pub(super) fn url(&self) -> &str {
        &self.url
    }

    /// Waits until a trace has this many spans of each name, and returns the spans of the trace.
    pub(super) async fn spans(&self, trace_id: &str, names: &[(&str, usize)]) -> Vec<Span> {
        wait_until(LIMIT, "the spans of the trace are there", async || {
            let all_spans = self.spans.0.lock().expect("no panic").clone();
            let of_trace: Vec<Span> = all_spans.iter().filter(|span| span.trace_id == trace_id).cloned().collect();
            let count = |name: &str| of_trace.iter().filter(|span| span.name == name).count();
            if names.iter().all(|(name, count_wanted)| count(name) == *count_wanted) {
                Ok(of_trace)
            } else {
                Err(all_spans)
            }
        })
        .await
    }

    /// Waits for the first span of this name, in any trace.
    pub(super) async fn wait_for_first(&self, name: &str) -> Span {
        wait_until(LIMIT, &format!("there is a span {name}"), async || {
            let all_spans = self.spans.0.lock().expect("no panic").clone();
            all_spans.iter().find(|span| span.name == name).cloned().ok_or(all_spans)
        })
        .await
    }
}

impl Drop for Collector {
    fn drop(&mut self) {
        self.server.abort();
    }
}

#[tonic::async_trait]
impl TraceService for Spans {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        let mut spans = self.0.lock().expect("no panic");
        for resource_spans in request.into_inner().resource_spans {
            let resource = texts(resource_spans.resource.map(|resource| resource.attributes).unwrap_or_default());
            let service = resource.get("service.name").cloned().unwrap_or_default();
            for span in resource_spans.scope_spans.into_iter().flat_map(|scope| scope.spans) {
                spans.push(Span {
                    service: service.clone(),
                    name: span.name,
                    kind: span.kind,
                    trace_id: hex(&span.trace_id),
                    span_id: hex(&span.span_id),
                    parent: hex(&span.parent_span_id),
                    attributes: texts(span.attributes),
                    is_error: span.status.is_some_and(|status| status.code == 2),
                });
            }
        }
        Ok(Response::new(ExportTraceServiceResponse::default()))
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn texts(attributes: Vec<KeyValue>) -> BTreeMap<String, String> {
    let text = |value: Option<AnyValue>| match value.and_then(|value| value.value) {
        Some(any_value::Value::StringValue(text)) => text,
        other_value => format!("{other_value:?}"),
    };
    attributes.into_iter().map(|attribute| (attribute.key, text(attribute.value))).collect()
}
