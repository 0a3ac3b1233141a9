//! Sends traces to a collector, by OTLP over gRPC.

use std::time::Duration;

use opentelemetry::trace::{SpanId, TraceId, TracerProvider as _};
use opentelemetry::{KeyValue, global};
use opentelemetry_otlp::tonic_types::transport::ClientTlsConfig;
use opentelemetry_otlp::{SpanExporter, WithExportConfig as _, WithTonicConfig as _};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{IdGenerator, RandomIdGenerator, Sampler, SdkTracerProvider};
use tracing::{Level, Metadata, Subscriber};
use tracing_subscriber::filter::{LevelFilter, filter_fn};
use tracing_subscriber::layer::Layer;
use tracing_subscriber::registry::LookupSpan;

use crate::exit::Failure;

/// The default share of traces to export: all of them.
pub(crate) const RATIO_DEFAULT: f64 = 1.0;
/// How long the end of the program waits for traces that are being sent.
const END_TIMEOUT: Duration = Duration::from_secs(3);
const SERVICE_NAME: &str = "OTEL_SERVICE_NAME";

/// Makes traces and sends them.
#[derive(Debug)]
pub(super) struct Export(SdkTracerProvider);

/// Checks that a text is an http or https URL with a host.
pub(crate) fn check_endpoint(url: &str) -> Result<(), String> {
    match reqwest::Url::parse(url) {
        Ok(parsed_url) if matches!(parsed_url.scheme(), "http" | "https") && parsed_url.has_host() => Ok(()),
        _ => Err(format!(
            "{url:?} is not the URL of a collector that takes OTLP over gRPC, such as http://127.0.0.1:4317"
        )),
    }
}

fn is_https(endpoint: &str) -> bool {
    reqwest::Url::parse(endpoint).is_ok_and(|url| url.scheme() == "https")
}

/// Checks that the ratio is between 0 and 1.
pub(crate) fn check_ratio(ratio: f64) -> Result<(), String> {
    if (0.0..=1.0).contains(&ratio) { Ok(()) } else { Err(format!("{ratio} is not a share: 0 for none, 1 for all")) }
}

impl Export {
    /// Exports traces to this collector. For a trace that another program began, the decision of that program holds.
    pub(super) fn to_collector(endpoint: &str, ratio: f64, service: &'static str) -> Result<Self, Failure> {
        let mut exporter = SpanExporter::builder().with_tonic().with_endpoint(endpoint);
        // With its default settings for https, the exporter trusts no certificate authority, and so reaches no collector.
        if is_https(endpoint) {
            exporter = exporter.with_tls_config(ClientTlsConfig::new().with_enabled_roots());
        }
        let exporter =
            exporter.build().map_err(|error| Failure::of(format!("cannot send traces to {endpoint}"), &error))?;
        let mut resource =
            Resource::builder().with_attribute(KeyValue::new("service.version", env!("CARGO_PKG_VERSION")));
        if std::env::var_os(SERVICE_NAME).is_none() {
            resource = resource.with_service_name(service);
        }
        let provider = SdkTracerProvider::builder()
            .with_batch_exporter(exporter)
            .with_sampler(Sampler::ParentBased(Box::new(Sampler::TraceIdRatioBased(ratio))))
            .with_id_generator(OtelIds::default())
            .with_resource(resource.build())
            .build();
        global::set_tracer_provider(provider.clone());
        Ok(Self(provider))
    }

    /// A layer that exports the spans of the program's own code from level `info` up, but not the spans of libraries.
    pub(super) fn layer<S>(&self) -> Box<dyn Layer<S> + Send + Sync>
    where
        S: Subscriber + Send + Sync + for<'span> LookupSpan<'span>,
    {
        let is_own_span = |metadata: &Metadata<'_>| {
            let target = metadata.target();
            *metadata.level() <= Level::INFO && (target.starts_with("rondel") || target == "http")
        };
        let span_layer = tracing_opentelemetry::layer().with_tracer(self.0.tracer("rondel")).with_location(false);
        let span_layer = span_layer.with_threads(false).with_tracked_inactivity(false);
        span_layer.with_filter(filter_fn(is_own_span).with_max_level_hint(LevelFilter::INFO)).boxed()
    }

    pub(super) async fn end(self) {
        let result = tokio::task::spawn_blocking(move || self.0.shutdown_with_timeout(END_TIMEOUT)).await;
        match result {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::warn!(%error, "traces were not exported"),
            Err(error) => tracing::warn!(%error, "traces were not exported"),
        }
    }
}

/// Gives traces of fires the ids that belong to their runs, and all others random ids.
#[derive(Debug, Default)]
struct OtelIds(RandomIdGenerator);

impl IdGenerator for OtelIds {
    fn new_trace_id(&self) -> TraceId {
        rondel_admin::trace::take_next_trace().map_or_else(|| self.0.new_trace_id(), TraceId::from)
    }

    fn new_span_id(&self) -> SpanId {
        self.0.new_span_id()
    }
}
