//! `rondel stats` and `rondel fires`: counts of runs over time, and what fires next across jobs.

use std::time::Duration;

use clap::Args;
use serde_json::Value;

use crate::client::{Client, ClientArgs, text_of, time_text};
use crate::exit::Failure;
use crate::format::{Format, FormatArgs};
use crate::table::Table;
use crate::terminal::harmless_text;
use crate::{clock, output};

/// How runs ended over time, with how long they took and how late they began.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  rondel stats\n  rondel stats --step 1h --group app\n  rondel stats --job orders.close,orders.verify --group job --step 1d --from 2026-11-01T00:00:00Z"
)]
pub(crate) struct StatsArgs {
    #[command(flatten)]
    client: ClientArgs,
    /// The first instant, RFC 3339; by default a day before the end
    #[arg(long, value_name = "INSTANT")]
    from: Option<String>,
    /// The end, RFC 3339; by default now
    #[arg(long, value_name = "INSTANT")]
    to: Option<String>,
    /// The length of a bucket: 1m, 15m or 1h, and with --job 1h or 1d; by default one that fits the range
    #[arg(long, value_name = "STEP")]
    step: Option<String>,
    /// Only runs of this app
    #[arg(long, value_name = "NAME")]
    app: Option<String>,
    /// Only runs of these jobs, with commas between them
    #[arg(long, value_name = "NAMES")]
    job: Option<String>,
    /// A series for each `app`, or for each `job` that --job names
    #[arg(long, value_name = "WHAT")]
    group: Option<String>,
    #[command(flatten)]
    format: FormatArgs,
}

/// What fires in the next 24 hours, across all jobs.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  rondel fires\n  rondel fires --limit 1000 -o json")]
pub(crate) struct FiresArgs {
    #[command(flatten)]
    client: ClientArgs,
    /// The end, RFC 3339; by default in 24 hours
    #[arg(long, value_name = "INSTANT")]
    to: Option<String>,
    /// Maximum number of fires; the first fires are shown
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    limit: u32,
    #[command(flatten)]
    format: FormatArgs,
}

impl StatsArgs {
    pub(crate) async fn run(self) -> Result<(), Failure> {
        let client: Client = self.client.client()?;
        let pairs = [
            ("from", &self.from),
            ("to", &self.to),
            ("step", &self.step),
            ("app", &self.app),
            ("job", &self.job),
            ("group", &self.group),
        ];
        let query: Vec<(&str, &str)> =
            pairs.into_iter().filter_map(|(key, value)| Some((key, value.as_deref()?))).collect();
        let body = client.get(&["stats"], &query).await?.value()?;
        clock::set_display_in_utc(self.format.utc);
        match self.format.format {
            Format::Table | Format::Wide => output::print_lines(&stats_table(&body, self.format.no_headers)),
            Format::Name => output::print_names(items(&body["series"]).iter().map(|series| text_of(&series["name"]))),
            form @ (Format::Json | Format::Jsonl | Format::Yaml) => output::print_document(&body.to_string(), form),
        }
    }
}

impl FiresArgs {
    pub(crate) async fn run(self) -> Result<(), Failure> {
        let client: Client = self.client.client()?;
        let limit = self.limit.to_string();
        let to_parameter = self.to.as_deref().map(|to_parameter| ("to", to_parameter));
        let query: Vec<(&str, &str)> = [("limit", limit.as_str())].into_iter().chain(to_parameter).collect();
        let body = client.get(&["fires"], &query).await?.value()?;
        clock::set_display_in_utc(self.format.utc);
        match self.format.format {
            Format::Table | Format::Wide => output::print_lines(&fires_table(&body, self.format.no_headers)),
            Format::Name => output::print_names(items(&body["items"]).iter().map(|fire| text_of(&fire["job"]))),
            form @ (Format::Json | Format::Jsonl | Format::Yaml) => output::print_document(&body.to_string(), form),
        }
    }
}

fn items(list: &Value) -> &[Value] {
    list.as_array().map(Vec::as_slice).unwrap_or_default()
}

fn stats_table(body: &Value, no_headers: bool) -> String {
    let mut table = Table::new(&["BUCKET", "NAME", "RUNS", "SUCCEEDED", "FAILED", "OTHER", "P50", "P95", "LATE P99"]);
    for series in items(&body["series"]) {
        let name = series["name"].as_str().map_or_else(|| "-".to_owned(), |name| harmless_text(name).into_owned());
        for bucket in items(&series["buckets"]) {
            table.add(bucket_row(bucket, time_text(&bucket["at"], clock::now()), name.clone()));
        }
        table.add(bucket_row(&series["total"], "total".to_owned(), name));
    }
    table.render(no_headers)
}

fn bucket_row(bucket: &Value, start_text: String, name: String) -> Vec<String> {
    let count = |count_name: &str| bucket["counts"][count_name].as_u64().unwrap_or(0);
    let run_count = bucket["run_count"].as_u64().unwrap_or(0);
    let (succeeded_count, failed_count) = (count("succeeded"), count("failed"));
    let other_count = run_count.saturating_sub(succeeded_count + failed_count);
    let length =
        |value: &Value| value.as_u64().map_or_else(|| "-".to_owned(), |ms| quantile_text(Duration::from_millis(ms)));
    let (durations, latenesses) = (&bucket["duration_ms"], &bucket["lateness_ms"]);
    let counts = [run_count, succeeded_count, failed_count, other_count].map(|count| count.to_string());
    let lengths = [length(&durations["p50"]), length(&durations["p95"]), length(&latenesses["p99"])];
    [start_text, name].into_iter().chain(counts).chain(lengths).collect()
}

/// A quantile of durations: `850ms`, `6.9s`, `3m5s`.
fn quantile_text(length: Duration) -> String {
    match length.as_secs() {
        1..60 => format!("{:.1}s", length.as_secs_f64()),
        _ => clock::rough_text(length),
    }
}

fn fires_table(body: &Value, no_headers: bool) -> String {
    let mut table = Table::new(&["AT", "JOB", "APP"]);
    for fire in items(&body["items"]) {
        let plain_text = |value: &Value| harmless_text(&text_of(value)).into_owned();
        let (job, app) = (plain_text(&fire["job"]), plain_text(&fire["app"]));
        table.add(vec![time_text(&fire["at"], clock::now()), job, app]);
    }
    let count = body["count"].as_u64().unwrap_or(0);
    let peak_text = match body["peak"]["count"].as_u64() {
        Some(peak_count) if peak_count > 1 => {
            format!("; {peak_count} at once at {}", time_text(&body["peak"]["at"], clock::now()))
        }
        _ => String::new(),
    };
    let noun = if count == 1 { "fire" } else { "fires" };
    let cut_text = if body["is_cut"].as_bool().unwrap_or(false) { " or more" } else { "" };
    format!("{}\n{count}{cut_text} {noun}{peak_text}", table.render(no_headers).trim_end())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn stats_have_headings_and_a_total() {
        let bucket = json!({
            "at": "2026-03-08T02:00:00Z", "run_count": 10, "counts": {"succeeded": 7, "failed": 2},
            "duration_ms": {"p50": 6, "p95": 6_912}, "lateness_ms": {"p99": 185_000},
        });
        let body = json!({"series": [{"name": null, "buckets": [bucket], "total": bucket}]});
        let text = stats_table(&body, false);
        let lines: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(lines[0][..6], ["BUCKET", "NAME", "RUNS", "SUCCEEDED", "FAILED", "OTHER"], "{text}");
        assert_eq!(lines[2], ["total", "-", "10", "7", "2", "1", "6ms", "6.9s", "3m5s"], "{text}");
        assert_eq!(stats_table(&body, true).lines().count(), 2);
    }

    #[test]
    fn fires_have_headings_and_a_count() {
        let fire = json!({"at": "2026-03-08T02:00:00Z", "job": "nightly", "app": "billing"});
        let body =
            json!({"items": [fire], "count": 1, "is_cut": false, "peak": {"at": "2026-03-08T02:00:00Z", "count": 1}});
        let text = fires_table(&body, false);
        assert!(text.starts_with("AT ") && text.contains("nightly") && text.ends_with("\n1 fire"), "{text}");
        assert!(!fires_table(&body, true).contains("JOB"));
    }
}
