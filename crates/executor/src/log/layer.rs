//! The `tracing` layer: an event inside a run becomes a line of that run's log.

use std::fmt::{self, Write};

use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;

use crate::run;

/// Routes events inside a run into the run's log; see [`log_layer`].
#[derive(Clone, Copy, Debug, Default)]
pub struct LogLayer;

/// A layer for the program's `tracing` subscriber: each event inside a run becomes a line of that run's log. Events
/// outside runs are ignored. A program without a subscriber does not need it: the executor installs one with this
/// layer, see [`Builder::without_subscriber`](crate::Builder::without_subscriber).
///
/// ```no_run
/// use tracing_subscriber::{filter::LevelFilter, prelude::*};
///
/// tracing_subscriber::registry()
///     .with(tracing_subscriber::fmt::layer().with_filter(LevelFilter::INFO))
///     .with(rondel::log_layer().with_filter(LevelFilter::INFO))
///     .init();
/// ```
///
/// Add a filter, as above: without one, the layer takes the events of every level and of every crate that a handler
/// calls.
#[must_use]
pub fn log_layer() -> LogLayer {
    LogLayer
}

impl<S: Subscriber> Layer<S> for LogLayer {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        run::with_current(|run| {
            let mut text = EventText::default();
            event.record(&mut text);
            run.log_line(level_word(*event.metadata().level()), &text.into_line());
        });
    }
}

fn level_word(level: Level) -> &'static str {
    match level {
        Level::ERROR => "error",
        Level::WARN => "warn",
        Level::INFO => "info",
        Level::DEBUG => "debug",
        Level::TRACE => "trace",
    }
}

/// The message, then the other fields as `name=value`.
#[derive(Default)]
struct EventText {
    message: String,
    fields: String,
}

impl EventText {
    fn add(&mut self, field: &Field, value: fmt::Arguments<'_>) {
        let write_result = match field.name() {
            "message" => self.message.write_fmt(value),
            // A record of the `log` crate carries its target and its place in the code as fields.
            "log.target" | "log.module_path" | "log.file" | "log.line" => Ok(()),
            name => write!(self.fields, " {name}={value}"),
        };
        // Formatting fails only in a value's own `Debug`; the text is cut there.
        if write_result.is_err() {
            self.fields.push_str(" …");
        }
    }

    fn into_line(self) -> String {
        if self.message.is_empty() { self.fields.trim_start().to_owned() } else { self.message + &self.fields }
    }
}

impl Visit for EventText {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.add(field, format_args!("{value:?}"));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.add(field, format_args!("{value}"));
    }

    fn record_error(&mut self, field: &Field, value: &(dyn std::error::Error + 'static)) {
        let line = rondel_core::error_chain::chain(value);
        self.add(field, format_args!("{line}"));
    }
}

#[cfg(test)]
mod tests {
    #[tokio::test]
    async fn the_place_of_a_record_of_the_log_crate_is_left_out() {
        let handler = || async { tracing::info!(log.target = "sqlx", log.line = 7, rows = 3, "done") };
        assert_eq!(crate::TestRun::of(handler).run().await.log(), "info done rows=3\n");
    }

    #[tokio::test]
    async fn a_field_of_the_handlers_own_whose_name_begins_with_log_stays() {
        let handler = || async { tracing::info!(log.bytes = 7, "rotated") };
        assert_eq!(crate::TestRun::of(handler).run().await.log(), "info rotated log.bytes=7\n");
    }
}
