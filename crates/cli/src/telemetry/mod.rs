//! The program's own telemetry: its log as lines on stderr; in executors also the layer that puts a run's events into
//! its log; and traces, if an endpoint is set.

mod export;
mod json;

use std::io::IsTerminal as _;

use serde::{Deserialize, Serialize};
use tracing::Subscriber;
use tracing_subscriber::filter::{EnvFilter, LevelFilter};
use tracing_subscriber::layer::{Layer, SubscriberExt as _};
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt as _;

pub(crate) use export::{RATIO_DEFAULT, check_endpoint, check_ratio};

use self::export::Export;
use self::json::JsonLines;
use crate::exit::Failure;

/// The format of the lines of the program's own log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
pub(crate) enum LogFormat {
    /// Text
    Text,
    /// One JSON document per line
    Json,
}

/// The settings for the log and the traces: what they contain, and where they are sent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TelemetrySettings<'a> {
    /// A level, or a list of filters.
    pub(crate) filter: &'a str,
    pub(crate) format: LogFormat,
    /// The URL of the collector of traces.
    pub(crate) endpoint: Option<&'a str>,
    /// The share of exported traces among the traces that this program begins, from 0 to 1.
    pub(crate) ratio: f64,
    /// The name of the program in traces.
    pub(crate) service: &'static str,
}

impl<'a> TelemetrySettings<'a> {
    /// Settings for log lines, without traces.
    pub(crate) const fn without_traces(filter: &'a str, format: LogFormat) -> Self {
        Self { filter, format, endpoint: None, ratio: RATIO_DEFAULT, service: "rondel" }
    }
}

/// Hides PostgreSQL's notices, for example that a table already exists: at each start they look like failures. A user's
/// filter that names the target overrides this filter.
const QUIET_FILTER: &str = "sqlx::postgres::notice=warn";

/// The export of traces; `None` if no traces are exported. It must be ended, so that the last traces are sent.
#[derive(Debug)]
pub(crate) struct Telemetry(Option<Export>);

/// Checks that a text is a level or a list of filters. A word that is no level names a part of the program. A list of
/// only such words is refused: it would hide all lines of the other parts, even errors.
pub(crate) fn check_filter(filter: &str) -> Result<(), String> {
    let message = |reason: String| format!("{filter:?} is not a log filter such as info: {reason}");
    EnvFilter::try_new(filter).map_err(|error| message(error.to_string()))?;
    let is_level = |word: &&str| word.parse::<LevelFilter>().is_ok();
    let mut words = filter.split(',').filter(|word| !word.is_empty() && !word.contains(['=', '[', ':']));
    match words.clone().find(|word| !is_level(word)) {
        Some(word) if !words.any(|word| is_level(&word)) => {
            Err(message(format!("{word:?} is no level, the levels are off, error, warn, info, debug and trace")))
        }
        _ => Ok(()),
    }
}

/// Starts telemetry for a program that runs no handlers. It must be called inside a runtime, on which traces are sent.
pub(crate) fn start(settings: TelemetrySettings<'_>) -> Result<Telemetry, Failure> {
    start_exporting(settings, false)
}

/// Starts telemetry for a program with an executor in it.
pub(crate) fn start_with_runs(settings: TelemetrySettings<'_>) -> Result<Telemetry, Failure> {
    start_exporting(settings, true)
}

fn start_exporting(settings: TelemetrySettings<'_>, has_runs: bool) -> Result<Telemetry, Failure> {
    let export = settings
        .endpoint
        .map(|endpoint| Export::to_collector(endpoint, settings.ratio, settings.service))
        .transpose()?;
    // Whatever the filter for stderr is, a run's log has the events of its handler from level `info` up.
    let run_log_layer = has_runs.then(|| rondel::log_layer().with_filter(LevelFilter::INFO));
    let registry =
        tracing_subscriber::registry().with(log_layer(settings.filter, settings.format)?).with(run_log_layer);
    match &export {
        // The layer is added on its own. Inside an `Option` or a list of layers, it would not get its subscriber.
        Some(export) => registry.with(export.layer()).try_init(),
        None => registry.try_init(),
    }
    .map_err(Failure::from)?;
    Ok(Telemetry(export))
}

impl Telemetry {
    /// Sends the remaining traces, within a few seconds at most.
    pub(crate) async fn end(self) {
        if let Some(export) = self.0 {
            export.end().await;
        }
    }
}

fn env_filter(filter: &str) -> Result<EnvFilter, Failure> {
    // Without a setting, only errors are logged.
    let filter = if filter.is_empty() { "error" } else { filter };
    EnvFilter::try_new(format!("{QUIET_FILTER},{filter}")).map_err(|error| Failure::refused(error.to_string()))
}

fn log_layer<S>(filter: &str, format: LogFormat) -> Result<Box<dyn Layer<S> + Send + Sync>, Failure>
where
    S: Subscriber + for<'span> LookupSpan<'span>,
{
    let filter = env_filter(filter)?;
    Ok(match format {
        LogFormat::Text => {
            let is_terminal = std::io::stderr().is_terminal();
            let line_layer = tracing_subscriber::fmt::layer().with_writer(std::io::stderr).with_ansi(is_terminal);
            line_layer.with_filter(filter).boxed()
        }
        LogFormat::Json => JsonLines::new(std::io::stderr).with_filter(filter).boxed(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_that_is_no_level_does_not_hide_all_lines() {
        for filter in ["warn", "INFO", "off", "3", "info,sqlx=debug", "sqlx=debug", "info, h2", "rondel::server", ""] {
            assert_eq!(check_filter(filter), Ok(()), "{filter}");
        }
        for (filter, word) in [("warning", "warning"), ("verbose,sqlx=debug", "verbose"), (" info", " info")] {
            let error = check_filter(filter).unwrap_err();
            assert!(error.contains(&format!("{word:?} is no level")), "{error}");
        }
    }

    #[test]
    fn notices_of_the_driver_are_logged_only_on_request() {
        for (filter, is_quiet) in [("info", true), ("sqlx=debug", true), ("info,sqlx::postgres::notice=info", false)] {
            assert_eq!(env_filter(filter).unwrap().to_string().contains(QUIET_FILTER), is_quiet, "{filter}");
        }
    }
}
