//! `rondel report`: how runs went over days and months, and the schedule of the weekly report.

use chrono::{Months, NaiveDate};
use clap::builder::PossibleValuesParser;
use clap::{Args, Subcommand};
use rondel_core::Timestamp;
use serde_json::{Value, json};

use crate::client::{Body, Client, ClientArgs, text_of, time_text};
use crate::delete::delete;
use crate::exit::Failure;
use crate::format::{Format, FormatArgs};
use crate::table::Table;
use crate::terminal::harmless_text;
use crate::view::View;
use crate::{clock, output};

#[derive(Debug, Args)]
pub(crate) struct ReportArgs {
    #[command(flatten)]
    client: ClientArgs,
    #[command(flatten)]
    format: FormatArgs,
    #[command(subcommand)]
    command: ReportCommand,
}

#[derive(Debug, Subcommand)]
enum ReportCommand {
    /// Show how many runs there were, how many succeeded and began on time, and what failed most
    Show(Box<ShowArgs>),
    /// Show, save and delete when the weekly report of the namespace is sent
    Schedule(ScheduleArgs),
}

#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  rondel report show --days 30\n  rondel report show --by job --app billing --month 2026-10 --csv > october.csv\n  rondel report show --by label --label team --period month --from 2026-01-01T00:00:00Z\n\nRuns are counted by the instant for which they were planned; days and months are those of UTC."
)]
struct ShowArgs {
    /// What each row is about
    #[arg(long, value_name = "WHAT", default_value = "app", value_parser = PossibleValuesParser::new(["namespace", "app", "job", "label"]))]
    by: String,
    /// Only runs of this app
    #[arg(long, value_name = "APP")]
    app: Option<String>,
    /// Only runs of this job; implies --by job
    #[arg(long, value_name = "JOB", conflicts_with = "label")]
    job: Option<String>,
    /// The key of a label whose values are the rows, or KEY=VALUE; implies --by label
    #[arg(long, value_name = "KEY")]
    label: Option<String>,
    /// The last N days, including today
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=400), conflicts_with_all = ["from", "to", "month"])]
    days: Option<u32>,
    /// A month, such as 2026-10
    #[arg(long, value_name = "MONTH", value_parser = parse_month, conflicts_with_all = ["from", "to"])]
    month: Option<NaiveDate>,
    /// The beginning, RFC 3339; by default seven days before the end
    #[arg(long, value_name = "INSTANT")]
    from: Option<String>,
    /// The end, RFC 3339; by default now
    #[arg(long, value_name = "INSTANT")]
    to: Option<String>,
    /// A row for the whole range (the default), or one for each day or month
    #[arg(long, value_name = "PERIOD", value_parser = PossibleValuesParser::new(["total", "day", "month"]))]
    period: Option<String>,
    /// A scheduled fire that begins no later than this is on time; 10s by default
    #[arg(long, value_name = "DURATION")]
    on_time: Option<String>,
    /// Maximum number of jobs, with --by job; 100 by default, and all with --csv
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=500))]
    limit: Option<u32>,
    /// Print the rows as CSV
    #[arg(long)]
    csv: bool,
}

#[derive(Debug, Args)]
struct ScheduleArgs {
    #[command(subcommand)]
    command: ScheduleCommand,
}

#[derive(Debug, Subcommand)]
enum ScheduleCommand {
    /// Show when the weekly report is sent, and where
    Show,
    /// Send a report each week
    #[command(
        after_help = "Example:\n  rondel report schedule set --weekday mon --time 08:00 --time-zone Europe/Berlin --channel ops"
    )]
    Set {
        /// The day of the week
        #[arg(long, value_name = "DAY", value_parser = PossibleValuesParser::new(["mon", "tue", "wed", "thu", "fri", "sat", "sun"]))]
        weekday: String,
        /// The time of day, HH:MM
        #[arg(long, value_name = "TIME")]
        time: String,
        /// The zone of the time and of the days that the report covers
        #[arg(long = "time-zone", alias = "zone", value_name = "ZONE", default_value = "UTC")]
        zone: String,
        /// The channel to which the report is sent
        #[arg(long, value_name = "CHANNEL")]
        channel: String,
    },
    /// Send the report of the seven days before today now; the schedule stays as it is
    Send,
    /// Stop sending the weekly report
    Delete,
}

const VIEW: View = View {
    name: "name",
    headers: &[
        "NAME",
        "APP",
        "FROM",
        "RUNS",
        "FAILED",
        "SKIPPED",
        "SUCCEEDED %",
        "ON TIME %",
        "P50",
        "P95",
        "LATE P99",
    ],
    row,
};
const SCHEDULE_VIEW: View =
    View { name: "channel", headers: &["WEEKDAY", "TIME", "ZONE", "CHANNEL", "NEXT", "SENT"], row: schedule_row };

const SENT_VIEW: View = View { name: "channel", headers: &["SENT TO"], row: |sent, _| vec![text_of(&sent["channel"])] };

fn parse_month(text: &str) -> Result<NaiveDate, String> {
    NaiveDate::parse_from_str(&format!("{text}-01"), "%Y-%m-%d")
        .map_err(|_| format!("{text:?} is not a month: expected YYYY-MM"))
}

impl ReportArgs {
    pub(crate) async fn run(self) -> Result<(), Failure> {
        let (client, format) = (self.client.client()?, self.format);
        match self.command {
            ReportCommand::Show(args) => args.run(&client, format).await,
            ReportCommand::Schedule(args) => args.run(&client, format).await,
        }
    }
}

impl ShowArgs {
    async fn run(self, client: &Client, format: FormatArgs) -> Result<(), Failure> {
        let query = self.query(clock::now());
        let query: Vec<(&str, &str)> = query.iter().map(|(name, value)| (*name, value.as_str())).collect();
        let body = client.get(&["reports"], &query).await?;
        if self.csv {
            return output::print_lines(body.text().trim_end());
        }
        match format.format {
            Format::Json | Format::Yaml | Format::Jsonl | Format::Name => VIEW.print_list(&body, format),
            Format::Table | Format::Wide => print_report(&body, format),
        }
    }

    fn query(&self, now: Timestamp) -> Vec<(&'static str, String)> {
        let grouping = match (&self.job, &self.label) {
            (Some(_), _) => "job",
            (None, Some(_)) => "label",
            (None, None) => &self.by,
        };
        let mut query = vec![("by", grouping.to_owned())];
        let (mut from, mut to) = (self.from.clone(), self.to.clone());
        if let Some(days) = self.days {
            let today = now.to_utc().map(|now| now.date_naive()).unwrap_or_default();
            let first_day = today.checked_sub_days(chrono::Days::new(u64::from(days) - 1));
            from = first_day.map(midnight);
        }
        if let Some(month) = self.month {
            let end = month.checked_add_months(Months::new(1)).map(midnight);
            (from, to) = (Some(midnight(month)), end.filter(|end| *end < now.to_string()));
        }
        let parameters = [
            ("app", self.app.clone()),
            ("job", self.job.clone()),
            ("label", self.label.clone()),
            ("from", from),
            ("to", to),
            ("period", self.period.clone()),
            ("on_time", self.on_time.clone()),
            ("limit", self.limit.map(|limit| limit.to_string())),
            ("format", self.csv.then(|| "csv".to_owned())),
        ];
        query.extend(parameters.into_iter().filter_map(|(name, value)| Some((name, value?))));
        query
    }
}

fn midnight(day: NaiveDate) -> String {
    format!("{day}T00:00:00Z")
}

/// Prints the rows with their sum below, and then the most frequent failures.
fn print_report(body: &Body, format: FormatArgs) -> Result<(), Failure> {
    let report = body.value()?;
    let mut items: Vec<Value> = report["items"].as_array().cloned().unwrap_or_default();
    let mut total_row = report["total"].clone();
    total_row["name"] = json!("(total)");
    items.push(total_row);
    VIEW.print_items(&items, format)?;
    let failures = report["failures"].as_array().map(Vec::as_slice).unwrap_or_default();
    if !failures.is_empty() {
        let mut table = Table::new(&["RUNS", "JOBS", "FAILED WITH", "MOST OF"]);
        for failure in failures {
            let message = text_of(&failure["message"]);
            let message =
                if message.is_empty() { "(other messages)".to_owned() } else { harmless_text(&message).into_owned() };
            let jobs = failure["jobs"].as_array().map(Vec::as_slice).unwrap_or_default();
            let jobs: Vec<String> = jobs.iter().map(text_of).collect();
            table.add(vec![text_of(&failure["run_count"]), text_of(&failure["job_count"]), message, jobs.join(", ")]);
        }
        output::print_lines(&format!("\n{}", table.render(format.no_headers)))?;
    }
    if report["is_cut"] == true {
        output::print_message("not all apps or jobs could be counted: give a shorter range, or --app");
    }
    if report["next_cursor"].is_string() {
        output::print_message("there are more jobs: give --limit, up to 500, or --app");
    }
    Ok(())
}

impl ScheduleArgs {
    async fn run(self, client: &Client, format: FormatArgs) -> Result<(), Failure> {
        let path = ["reports", "schedule"];
        match self.command {
            ScheduleCommand::Show => SCHEDULE_VIEW.print_object(&client.get(&path, &[]).await?, format),
            ScheduleCommand::Set { weekday, time, zone, channel } => {
                let body = json!({"weekday": weekday, "time": time, "zone": zone, "channel": channel});
                SCHEDULE_VIEW.print_row(&client.put(&path, &body.to_string()).await?, format)
            }
            ScheduleCommand::Send => {
                let answer = client.post(&["reports", "schedule", "send"], "{}").await?;
                SENT_VIEW.print_row(&answer, format)
            }
            ScheduleCommand::Delete => delete(client, &path, &[], "no weekly report is sent any more", format).await,
        }
    }
}

fn row(item: &Value, now: Timestamp) -> Vec<String> {
    let count = |status: &str| item["counts"][status].as_u64().unwrap_or(0);
    let length = |value: &Value| {
        value.as_u64().map(|millis| clock::rough_text(std::time::Duration::from_millis(millis))).unwrap_or_default()
    };
    vec![
        text_of(&item["name"]),
        text_of(&item["app"]),
        time_text(&item["at"], now),
        text_of(&item["run_count"]),
        (count("failed") + count("timed_out") + count("unknown")).to_string(),
        count("skipped").to_string(),
        text_of(&item["succeeded_percent"]),
        text_of(&item["on_time_percent"]),
        length(&item["duration_ms"]["p50"]),
        length(&item["duration_ms"]["p95"]),
        length(&item["lateness_ms"]["p99"]),
    ]
}

fn schedule_row(schedule: &Value, now: Timestamp) -> Vec<String> {
    vec![
        text_of(&schedule["weekday"]),
        text_of(&schedule["time"]),
        text_of(&schedule["zone"]),
        text_of(&schedule["channel"]),
        time_text(&schedule["next_at"], now),
        time_text(&schedule["sent_at"], now),
    ]
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Show {
        #[command(flatten)]
        args: ShowArgs,
    }

    fn query(arguments: &[&str]) -> Result<String, String> {
        let parsed =
            Show::try_parse_from([["show"].as_slice(), arguments].concat()).map_err(|error| error.to_string())?;
        let now = "2026-11-22T10:00:00Z".parse::<Timestamp>().unwrap();
        let pairs = parsed.args.query(now);
        Ok(pairs.iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join("&"))
    }

    #[test]
    fn ranges_are_given_as_days_months_or_instants() {
        for (arguments, asked) in [
            (&["--days", "1"][..], "by=app&from=2026-11-22T00:00:00Z"),
            (&["--days", "30"], "by=app&from=2026-10-24T00:00:00Z"),
            (&["--month", "2026-10"], "by=app&from=2026-10-01T00:00:00Z&to=2026-11-01T00:00:00Z"),
            // The month has not ended, so the request names no end.
            (&["--month", "2026-11"], "by=app&from=2026-11-01T00:00:00Z"),
            (&["--label", "team"], "by=label&label=team"),
            (&["--job", "close", "--period", "day", "--csv"], "by=job&job=close&period=day&format=csv"),
        ] {
            assert_eq!(query(arguments).as_deref(), Ok(asked), "{arguments:?}");
        }
        assert!(query(&["--month", "October"]).unwrap_err().contains("YYYY-MM"));
        assert!(query(&["--days", "401"]).is_err() && query(&["--by", "color"]).unwrap_err().contains("label"));
        assert!(query(&["--days", "3", "--month", "2026-10"]).is_err());
    }
}
