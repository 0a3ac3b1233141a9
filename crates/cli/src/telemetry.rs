//! The program's own log: lines on stderr; in executors also the layer that carries a run's events into its log.

use std::io::IsTerminal as _;

use tracing::Subscriber;
use tracing_subscriber::filter::{EnvFilter, LevelFilter};
use tracing_subscriber::layer::{Layer, SubscriberExt as _};
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt as _;

use crate::config::LogFormat;
use crate::exit::Failure;

/// Says whether a text is a level or a list of filters.
pub(crate) fn check(filter: &str) -> Result<(), String> {
    EnvFilter::try_new(filter)
        .map(drop)
        .map_err(|error| format!("{filter:?} is not a log filter such as info: {error}"))
}

/// Begins to log, for a program that runs no handlers.
pub(crate) fn start(filter: &str, format: LogFormat) -> Result<(), Failure> {
    tracing_subscriber::registry().with(lines(filter, format)?).try_init().map_err(Failure::from)
}

/// Begins to log, for a program with an executor in it.
pub(crate) fn start_with_runs(filter: &str, format: LogFormat) -> Result<(), Failure> {
    let lines = lines(filter, format)?;
    // Whatever stderr shows: a run's log holds what its handler says, and nothing below.
    let runs = rondel::log_layer().with_filter(LevelFilter::INFO);
    tracing_subscriber::registry().with(lines).with(runs).try_init().map_err(Failure::from)
}

fn lines<S>(filter: &str, format: LogFormat) -> Result<Box<dyn Layer<S> + Send + Sync>, Failure>
where
    S: Subscriber + for<'span> LookupSpan<'span>,
{
    let filter = EnvFilter::try_new(filter).map_err(|error| Failure::refused(error.to_string()))?;
    let lines =
        tracing_subscriber::fmt::layer().with_writer(std::io::stderr).with_ansi(std::io::stderr().is_terminal());
    Ok(match format {
        LogFormat::Text => lines.with_filter(filter).boxed(),
        LogFormat::Json => lines.json().with_filter(filter).boxed(),
    })
}
