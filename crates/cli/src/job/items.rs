//! `rondel job items`: the items of a pump job, and the groups that hold them.

use std::collections::HashMap;
use std::io::IsTerminal as _;
use std::time::Duration;

use clap::Args;
use rondel_core::Timestamp;
use serde_json::Value;
use tokio::time::Instant;

use crate::client::{Body, Client, text_of, time_text};
use crate::config::DurationText;
use crate::exit::Failure;
use crate::format::{Format, FormatArgs};
use crate::list::{BoundArgs, PAGE_LEN_MAX};
use crate::paint::{Ink, Paint};
use crate::retry::retry_while_unreachable;
use crate::table::Table;
use crate::terminal::harmless_text;
use crate::view::View;
use crate::{clock, output};

/// Clears the terminal, and moves the cursor to its upper left.
const CLEAR_SCREEN: &str = "\u{1b}[H\u{1b}[2J";
const PERIOD_DEFAULT: Duration = Duration::from_secs(2);
const PERIOD_MIN: Duration = Duration::from_millis(500);

#[derive(Debug, Args)]
#[command(
    after_help = "The rows of a job that fetches them itself: docs/PUMPS.md. Counts are of all owners of an item since it was first dealt.\n\nExamples:\n  rondel job items orders.close\n  rondel job items orders.close --watch\n  rondel job items orders.close --state releasing\n  rondel job items orders.close --all -o json"
)]
pub(super) struct ItemsArgs {
    /// The job's name
    #[arg(value_name = "JOB", add = crate::complete::job_names())]
    name: String,
    /// Only items in these states, with commas between them: free, dealt, releasing
    #[arg(long, value_name = "STATES")]
    state: Option<String>,
    /// Refresh the table until Ctrl-C, with the rows per second
    #[arg(long)]
    watch: bool,
    /// How often --watch refreshes; 2s by default
    #[arg(long, value_name = "DURATION", requires = "watch")]
    every: Option<DurationText>,
    #[command(flatten)]
    bounds: BoundArgs,
}

const VIEW: View = View {
    name: "name",
    headers: &[
        "ITEM",
        "STATE",
        "EPOCH",
        "GROUP",
        "EXECUTOR",
        "FETCHES",
        "ROWS",
        "DONE",
        "FAILED",
        "ROWS/MIN",
        "OLDEST ROW",
    ],
    row,
};

impl ItemsArgs {
    pub(super) async fn run(self, client: &Client, format: FormatArgs) -> Result<(), Failure> {
        let is_table = matches!(format.format, Format::Table | Format::Wide);
        if self.watch && !is_table {
            return Err(Failure::refused("--watch shows tables; without it, -o json prints the present state"));
        }
        let period = self.every.as_ref().map_or(PERIOD_DEFAULT, |DurationText(period)| (*period).max(PERIOD_MIN));
        clock::set_display_in_utc(format.utc);
        let mut previous_snapshot = None;
        loop {
            let body = match previous_snapshot {
                None => self.read(client).await?,
                Some(_) => retry_while_unreachable(None, async || self.read(client).await).await?,
            };
            if !is_table {
                return VIEW.print_list(&body, format);
            }
            let snapshot = Snapshot { answer: body.value()?, at: Instant::now() };
            if self.watch && std::io::stdout().is_terminal() {
                output::print_lines(CLEAR_SCREEN)?;
            }
            snapshot.print(previous_snapshot.as_ref(), format)?;
            if !self.watch {
                return Ok(());
            }
            previous_snapshot = Some(snapshot);
            tokio::time::sleep(period).await;
        }
    }

    /// Reads the first page, unchanged. If the caller wants more items, the items of further pages are added to it.
    async fn read(&self, client: &Client) -> Result<Body, Failure> {
        let first_page = self.request_page(client, (0, None)).await?;
        let mut document = first_page.value()?;
        if self.bounds.count_max() <= PAGE_LEN_MAX || document["next_cursor"].is_null() {
            return Ok(first_page);
        }
        let mut items = document["items"].take().as_array().cloned().unwrap_or_default();
        while let Some(cursor) = document["next_cursor"].as_str().filter(|_| items.len() < self.bounds.count_max()) {
            let mut page = self.request_page(client, (items.len(), Some(cursor))).await?.value()?;
            items.extend(page["items"].as_array().into_iter().flatten().cloned());
            document["next_cursor"] = page["next_cursor"].take();
        }
        document["items"] = Value::Array(items);
        Ok(Body::new(document.to_string()))
    }

    async fn request_page(
        &self,
        client: &Client,
        (read_count, cursor): (usize, Option<&str>),
    ) -> Result<Body, Failure> {
        let limit = (self.bounds.count_max() - read_count).min(PAGE_LEN_MAX).to_string();
        let mut query = vec![("limit", limit.as_str())];
        query.extend(self.state.as_deref().map(|states| ("state", states)));
        query.extend(cursor.map(|cursor| ("cursor", cursor)));
        client.get(&["jobs", &self.name, "items"], &query).await
    }
}

/// An answer, and when it arrived.
struct Snapshot {
    answer: Value,
    at: Instant,
}

impl Snapshot {
    fn print(&self, previous_snapshot: Option<&Self>, format: FormatArgs) -> Result<(), Failure> {
        if format.columns.is_none() && !format.no_headers {
            output::print_lines(&format!("{}\n\n", self.summary_lines(previous_snapshot, Paint::of_stdout())))?;
            if self.answer["groups"].as_array().is_some_and(|groups| !groups.is_empty()) {
                output::print_lines(&format!("{}\n\n", self.groups_text()))?;
            }
        }
        let items = self.answer["items"].as_array().cloned().unwrap_or_default();
        match previous_snapshot {
            Some(previous_snapshot) => View { row: watch_row, headers: WATCH_HEADERS, ..VIEW }
                .print_items(&self.with_rates(previous_snapshot), format),
            None => VIEW.print_items(&items, format),
        }?;
        if self.answer["next_cursor"].is_string() {
            output::print_message(&format!("{} items are shown; --all shows the others too", items.len()));
        }
        Ok(())
    }

    /// A summary of the run, the items and the rows in three lines.
    fn summary_lines(&self, previous_snapshot: Option<&Self>, paint: Paint) -> String {
        let totals = &self.answer["totals"];
        let count = |key: &str| totals[key].as_u64().unwrap_or_default();
        let rate = match previous_snapshot.and_then(|previous_snapshot| {
            self.rate_text(&previous_snapshot.answer["totals"], totals, previous_snapshot.at)
        }) {
            Some(rate) => format!("{rate} a second"),
            None => format!("{} in the last minute", count("per_minute")),
        };
        let oldest_text =
            totals["oldest_age_ms"].as_u64().map(|age| format!(", the oldest in work for {}", age_text(age)));
        let failed_text = match count("failed") {
            0 => "0 failed".to_owned(),
            failed_count => paint.ink(Ink::Red, &format!("{failed_count} failed")),
        };
        let title = |text: &str| paint.ink(Ink::Bold, text);
        [
            format!("{}   {}", title("Run"), self.root_run_text()),
            format!(
                "{} {} dealt, {} releasing, {} free; {} dry",
                title("Items"),
                count("dealt"),
                count("releasing"),
                count("free"),
                count("dry")
            ),
            format!(
                "{}  {} done, {failed_text}; {rate}{}",
                title("Rows"),
                count("done"),
                oldest_text.unwrap_or_default()
            ),
        ]
        .join("\n")
    }

    fn root_run_text(&self) -> String {
        let (root, now) = (&self.answer["root"], clock::now());
        if root.is_null() {
            return "none yet".to_owned();
        }
        let reason = root["reason"].as_str().map(|reason| format!(": {reason}")).unwrap_or_default();
        let ending_text = if root["is_ending"] == true { ", ending" } else { "" };
        let end_text = match &root["ends_at"] {
            Value::Null => String::new(),
            at => format!(", ends {}", time_text(at, now)),
        };
        let (run, status) = (text_of(&root["run"]), text_of(&root["status"]));
        harmless_text(&format!(
            "{run} {status}{ending_text}{reason}, planned for {}{end_text}",
            time_text(&root["fire_at"], now)
        ))
        .into_owned()
    }

    fn groups_text(&self) -> String {
        let mut table = Table::new(&["GROUP", "STATUS", "EXECUTOR", "ATTEMPT", "ITEMS", "ROWS/MIN", "STARTED", "RUN"]);
        for group in self.answer["groups"].as_array().into_iter().flatten() {
            let keys = ["status", "executor", "attempt", "item_count", "per_minute"];
            let mut cells = vec![number_of_group(&group["index"])];
            cells.extend(keys.iter().map(|key| text_of(&group[key])));
            cells.push(time_text(&group["started_at"], clock::now()));
            cells.push(text_of(&group["run"]));
            table.add(cells);
        }
        table.render(false)
    }

    /// The items with their rows per second since the previous answer.
    fn with_rates(&self, previous_snapshot: &Self) -> Vec<Value> {
        let items = |answer: &Value| answer["items"].as_array().cloned().unwrap_or_default();
        let previous_items: HashMap<String, Value> =
            items(&previous_snapshot.answer).into_iter().map(|item| (text_of(&item["name"]), item)).collect();
        let mut items = items(&self.answer);
        for item in &mut items {
            let rate = previous_items
                .get(&text_of(&item["name"]))
                .and_then(|previous_item| self.rate_text(previous_item, item, previous_snapshot.at));
            item["rows_per_second"] = rate.into();
        }
        items
    }

    /// Rows done per second between two answers, with one decimal.
    fn rate_text(&self, earlier_item: &Value, later_item: &Value, earlier_at: Instant) -> Option<String> {
        rate_text(earlier_item["done"].as_u64()?, later_item["done"].as_u64()?, self.at.duration_since(earlier_at))
    }
}

fn rate_text(earlier_count: u64, later_count: u64, interval: Duration) -> Option<String> {
    let millis = u64::try_from(interval.as_millis()).ok().filter(|millis| *millis > 0)?;
    let tenths = later_count.saturating_sub(earlier_count).saturating_mul(10_000) / millis;
    Some(format!("{}.{}", tenths / 10, tenths % 10))
}

const WATCH_HEADERS: &[&str] =
    &["ITEM", "STATE", "EPOCH", "GROUP", "EXECUTOR", "FETCHES", "ROWS", "DONE", "FAILED", "ROWS/S", "OLDEST ROW"];

fn row(item: &Value, _now: Timestamp) -> Vec<String> {
    cells(item, &item["per_minute"])
}

fn watch_row(item: &Value, _now: Timestamp) -> Vec<String> {
    cells(item, &item["rows_per_second"])
}

fn cells(item: &Value, rate: &Value) -> Vec<String> {
    let state = match item["state"].as_str() {
        Some("dealt") if item["dry"] == true => "dealt, dry".to_owned(),
        _ => text_of(&item["state"]),
    };
    let mut cells = vec![text_of(&item["name"]), state];
    cells.extend([text_of(&item["epoch"]), number_of_group(&item["group"])]);
    cells.extend(["executor", "fetches", "rows", "done", "failed"].map(|key| text_of(&item[key])));
    cells.push(text_of(rate));
    cells.push(item["oldest_age_ms"].as_u64().map(age_text).unwrap_or_default());
    cells
}

/// The number of a group, counted from 1 as in lists of runs.
fn number_of_group(index: &Value) -> String {
    index.as_i64().map(|index| (index + 1).to_string()).unwrap_or_default()
}

fn age_text(age_ms: u64) -> String {
    clock::rough_text(Duration::from_millis(age_ms))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn groups_are_counted_from_1() {
        let item = json!({"name": "a", "state": "dealt", "epoch": 4, "group": 0, "executor": "w1"});
        assert_eq!(cells(&item, &Value::Null)[..5], ["a", "dealt", "4", "1", "w1"]);
        let free = json!({"name": "b", "state": "free", "epoch": 0, "group": null, "executor": null});
        assert_eq!(cells(&free, &Value::Null)[..5], ["b", "free", "0", "", ""]);
    }

    #[test]
    fn rows_per_second_come_from_two_looks() {
        let seconds = Duration::from_secs;
        assert_eq!(rate_text(100, 125, seconds(2)).as_deref(), Some("12.5"));
        assert_eq!(rate_text(100, 100, seconds(2)).as_deref(), Some("0.0"));
        assert_eq!(rate_text(100, 40, seconds(2)).as_deref(), Some("0.0"), "the item was forgotten and made anew");
        assert_eq!(rate_text(1, 2, Duration::ZERO), None);
    }
}
