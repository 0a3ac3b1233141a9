//! Exported metrics: families of samples, and their text in the format that Prometheus reads.

use std::borrow::Cow;
use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{
    DescriptorEncoder, EncodeLabelKey, EncodeLabelSet, EncodeLabelValue, LabelSetEncoder, MetricEncoder, text,
};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::exemplar::Exemplar;
use prometheus_client::registry::Registry;

use crate::metrics::HistogramSnapshot;

/// A metric with all its samples.
#[derive(Debug)]
pub(crate) struct Family {
    /// The metric's name, without the suffix `_total` of counters.
    name: &'static str,
    help: &'static str,
    kind: MetricType,
    samples: Vec<(Labels, Value)>,
}

#[derive(Clone, Debug, PartialEq)]
enum Value {
    Counter(u64),
    /// A counter of seconds.
    Seconds(f64),
    Gauge(f64),
    Histogram(HistogramSnapshot),
}

#[derive(Debug)]
struct Labels(Vec<Label>);

/// Name and value of one label.
pub(crate) type Label = (Cow<'static, str>, String);

pub(crate) fn label(name: impl Into<Cow<'static, str>>, value: impl Into<String>) -> Label {
    (name.into(), value.into())
}

impl Family {
    pub(crate) fn counters(
        name: &'static str,
        help: &'static str,
        samples: impl IntoIterator<Item = (Vec<Label>, u64)>,
    ) -> Self {
        let samples = samples.into_iter().map(|(labels, count)| (Labels(labels), Value::Counter(count)));
        Self { name, help, kind: MetricType::Counter, samples: samples.collect() }
    }

    pub(crate) fn counter(name: &'static str, help: &'static str, count: u64) -> Self {
        Self::counters(name, help, [(Vec::new(), count)])
    }

    pub(crate) fn seconds(name: &'static str, help: &'static str, seconds: f64) -> Self {
        Self { name, help, kind: MetricType::Counter, samples: vec![(Labels(Vec::new()), Value::Seconds(seconds))] }
    }

    pub(crate) fn gauges(
        name: &'static str,
        help: &'static str,
        samples: impl IntoIterator<Item = (Vec<Label>, f64)>,
    ) -> Self {
        let samples = samples.into_iter().map(|(labels, value)| (Labels(labels), Value::Gauge(value)));
        Self { name, help, kind: MetricType::Gauge, samples: samples.collect() }
    }

    pub(crate) fn gauge(name: &'static str, help: &'static str, value: f64) -> Self {
        Self::gauges(name, help, [(Vec::new(), value)])
    }

    pub(crate) fn histograms(
        name: &'static str,
        help: &'static str,
        samples: impl IntoIterator<Item = (Vec<Label>, HistogramSnapshot)>,
    ) -> Self {
        let samples = samples.into_iter().map(|(labels, observed)| (Labels(labels), Value::Histogram(observed)));
        Self { name, help, kind: MetricType::Histogram, samples: samples.collect() }
    }

    pub(crate) fn histogram(name: &'static str, help: &'static str, snapshot: HistogramSnapshot) -> Self {
        Self::histograms(name, help, [(Vec::new(), snapshot)])
    }
}

/// The media type of the text that [`encode_text`] returns.
pub const MEDIA_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Encodes the families as text, in their order.
pub(crate) fn encode_text(families: Vec<Family>) -> Result<String, fmt::Error> {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(ExportedFamilies(families)));
    let mut text = String::new();
    text::encode(&mut text, &registry)?;
    Ok(text)
}

#[derive(Debug)]
struct ExportedFamilies(Vec<Family>);

impl Collector for ExportedFamilies {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        for Family { name, help, kind, samples } in &self.0 {
            let mut metric = encoder.encode_descriptor(name, help, None, *kind)?;
            for (labels, value) in samples {
                // An empty set would be written as {}.
                if labels.0.is_empty() {
                    value.encode(&mut metric)?;
                } else {
                    value.encode(&mut metric.encode_family(labels)?)?;
                }
            }
        }
        Ok(())
    }
}

impl Value {
    fn encode(&self, metric: &mut MetricEncoder<'_>) -> fmt::Result {
        type NoExemplar<'a> = Option<&'a Exemplar<Labels, f64>>;
        match self {
            Self::Counter(count) => metric.encode_counter(count, NoExemplar::None),
            Self::Seconds(seconds) => metric.encode_counter(seconds, NoExemplar::None),
            Self::Gauge(value) => metric.encode_gauge(value),
            Self::Histogram(HistogramSnapshot { buckets, sum_seconds, count }) => {
                metric.encode_histogram::<Labels>(*sum_seconds, *count, buckets, None)
            }
        }
    }
}

impl EncodeLabelSet for Labels {
    fn encode(&self, encoder: &mut LabelSetEncoder<'_>) -> fmt::Result {
        for (name, value) in &self.0 {
            let mut label_encoder = encoder.encode_label();
            let mut key_encoder = label_encoder.encode_label_key()?;
            EncodeLabelKey::encode(name, &mut key_encoder)?;
            let mut value_encoder = key_encoder.encode_label_value()?;
            EncodeLabelValue::encode(value, &mut value_encoder)?;
            value_encoder.finish()?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::Histogram;

    #[test]
    fn families_are_written_in_the_text_format() {
        let histogram = Histogram::new(&[1, 10]);
        histogram.observe(std::time::Duration::from_millis(5));
        let text = encode_text(vec![
            Family::counters("a", "Counted", [(vec![label("x", "a \"hi\"\n")], 2)]),
            Family::gauge("b_seconds", "A length", 0.5),
            Family::histogram("c_seconds", "Lengths", histogram.read()),
            Family::gauges("d", "Nothing yet", []),
        ]);
        let expected = "# HELP a Counted\n# TYPE a counter\na_total{x=\"a \\\"hi\\\"\\n\"} 2\n\
            # HELP b_seconds A length\n# TYPE b_seconds gauge\nb_seconds 0.5\n\
            # HELP c_seconds Lengths\n# TYPE c_seconds histogram\nc_seconds_sum 0.005\nc_seconds_count 1\n\
            c_seconds_bucket{le=\"0.001\"} 0\nc_seconds_bucket{le=\"0.01\"} 1\nc_seconds_bucket{le=\"+Inf\"} 1\n\
            # HELP d Nothing yet\n# TYPE d gauge\n# EOF\n";
        assert_eq!(text.unwrap(), expected);
    }
}
