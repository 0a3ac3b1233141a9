//! `rondel stats` and `rondel fires`: counts of runs over time, and what fires next across jobs.

use clap::Args;
use serde_json::Value;

use crate::client::{Client, ClientArgs, text_of, time_of};
use crate::exit::Failure;
use crate::format::{Format, FormatArgs};
use crate::table::Table;
use crate::terminal::harmless;
use crate::{clock, output};

/// How runs ended over time, with how long they took and how late they began.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  rondel stats\n  rondel stats --step 1h --group app\n  rondel stats --job orders.close,orders.verify --group job --step 1d --from 2026-11-01T00:00:00Z"
)]
pub(crate) struct StatsArgs {
    #[command(flatten)]
    client: ClientArgs,
    /// The first instant, RFC 3339; a day before the end if left out
    #[arg(long, value_name = "INSTANT")]
    from: Option<String>,
    /// The end, RFC 3339; now if left out
    #[arg(long, value_name = "INSTANT")]
    to: Option<String>,
    /// The length of a bucket: 1m, 15m, 1h or 1d
    #[arg(long, value_name = "STEP")]
    step: Option<String>,
    /// Only runs of this app
    #[arg(long, value_name = "NAME")]
    app: Option<String>,
    /// Only runs of these jobs, with commas between them
    #[arg(long, value_name = "NAMES")]
    job: Option<String>,
    /// A series for each app, or for each of the jobs
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
    /// The end, RFC 3339; in 24 hours if left out
    #[arg(long, value_name = "INSTANT")]
    to: Option<String>,
    /// At most so many fires, the first ones
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    limit: u32,
    #[command(flatten)]
    format: FormatArgs,
}

impl StatsArgs {
    /// Runs the command.
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
        clock::show_utc(self.format.utc);
        match self.format.format {
            Format::Table | Format::Wide => output::data(&stats_table(&body)),
            Format::Name => output::names(items(&body["series"]).iter().map(|series| text_of(&series["name"]))),
            form @ (Format::Json | Format::Jsonl | Format::Yaml) => output::document(&body.to_string(), form),
        }
    }
}

impl FiresArgs {
    /// Runs the command.
    pub(crate) async fn run(self) -> Result<(), Failure> {
        let client: Client = self.client.client()?;
        let limit = self.limit.to_string();
        let to = self.to.as_deref().map(|to| ("to", to));
        let query: Vec<(&str, &str)> = [("limit", limit.as_str())].into_iter().chain(to).collect();
        let body = client.get(&["fires"], &query).await?.value()?;
        clock::show_utc(self.format.utc);
        match self.format.format {
            Format::Table | Format::Wide => output::data(&fires_table(&body)),
            Format::Name => output::names(items(&body["items"]).iter().map(|fire| text_of(&fire["job"]))),
            form @ (Format::Json | Format::Jsonl | Format::Yaml) => output::document(&body.to_string(), form),
        }
    }
}

fn items(list: &Value) -> &[Value] {
    list.as_array().map(Vec::as_slice).unwrap_or_default()
}

fn stats_table(body: &Value) -> String {
    let mut table = Table::new(&["BUCKET", "NAME", "RUNS", "SUCCEEDED", "FAILED", "OTHER", "P50", "P95", "LATE P99"]);
    for series in items(&body["series"]) {
        let name = series["name"].as_str().map_or_else(|| "-".to_owned(), |name| harmless(name).into_owned());
        for bucket in items(&series["buckets"]) {
            table.add(bucket_row(bucket, time_of(&bucket["at"], clock::now()), name.clone()));
        }
        table.add(bucket_row(&series["total"], "total".to_owned(), name));
    }
    table.render(true)
}

fn bucket_row(bucket: &Value, at: String, name: String) -> Vec<String> {
    let count = |word: &str| bucket["counts"][word].as_u64().unwrap_or(0);
    let runs = bucket["run_count"].as_u64().unwrap_or(0);
    let (succeeded, failed) = (count("succeeded"), count("failed"));
    let other = runs.saturating_sub(succeeded + failed);
    let millis = |value: &Value| value.as_u64().map_or_else(|| "-".to_owned(), |millis| format!("{millis}ms"));
    let (took, late) = (&bucket["duration_ms"], &bucket["lateness_ms"]);
    let counts = [runs, succeeded, failed, other].map(|count| count.to_string());
    let lengths = [millis(&took["p50"]), millis(&took["p95"]), millis(&late["p99"])];
    [at, name].into_iter().chain(counts).chain(lengths).collect()
}

fn fires_table(body: &Value) -> String {
    let mut table = Table::new(&["AT", "JOB", "APP"]);
    for fire in items(&body["items"]) {
        let plain = |value: &Value| harmless(&text_of(value)).into_owned();
        let (job, app) = (plain(&fire["job"]), plain(&fire["app"]));
        table.add(vec![time_of(&fire["at"], clock::now()), job, app]);
    }
    let count = body["count"].as_u64().unwrap_or(0);
    let peak = match body["peak"]["count"].as_u64() {
        Some(most) if most > 1 => format!("; {most} at once at {}", time_of(&body["peak"]["at"], clock::now())),
        _ => String::new(),
    };
    let cut = if body["is_cut"].as_bool().unwrap_or(false) { " or more" } else { "" };
    format!("{}\n{count}{cut} fires{peak}", table.render(true).trim_end())
}
