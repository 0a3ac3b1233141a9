//! `rondel status`: the cluster in one screen.

use std::collections::BTreeMap;
use std::time::Duration;

use clap::Args;
use rondel_core::Timestamp;
use serde_json::{Value, json};

use crate::client::{Client, ClientArgs, text_of, time_text};
use crate::exit::Failure;
use crate::format::{Format, FormatArgs};
use crate::list::{OVERVIEW_PAGES_MAX, all_items, items};
use crate::node::status_text;
use crate::paint::{Ink, Paint};
use crate::run::cells;
use crate::server_clock::server_now;
use crate::table::Table;
use crate::terminal::harmless_text;
use crate::{clock, output};

/// The number of runs that are requested per page.
const PAGE_LEN: &str = "200";
/// The number of runs up to which each kind is counted.
const COUNT_MAX: usize = 200 * OVERVIEW_PAGES_MAX;
/// A run that has been due for longer than this and was not sent is overdue.
const OVERDUE_AFTER: Duration = Duration::from_secs(3);
/// How many failed runs, and how many skipped runs, are shown.
const SHOWN_RUNS_MAX: usize = 5;
/// Runs that were skipped longer ago than this are not listed.
const SKIP_AGE_MAX: Duration = Duration::from_secs(24 * 3600);
/// Reasons for skipping a run that should have run; other reasons follow from its job's definition.
const SKIPPED_REASONS: [&str; 4] = ["no_executor", "misfire", "expired", "stopped"];

/// The cluster in one screen.
#[derive(Debug, Args)]
#[command(
    after_help = "Shows the servers, the executors of each app, what runs and waits, and what failed or was skipped last.\nWith -o json all of it is one document."
)]
pub(crate) struct StatusArgs {
    #[command(flatten)]
    client: ClientArgs,
    #[command(flatten)]
    format: FormatArgs,
}

/// The data for the screen.
#[derive(Default)]
struct StatusData {
    nodes: Vec<Value>,
    executors: Vec<Value>,
    running_runs: Vec<Value>,
    waiting_runs: Vec<Value>,
    /// Runs that are due, but were not sent to an executor in time.
    overdue_runs: Vec<Value>,
    failed_runs: Vec<Value>,
    /// The instant back to which failed runs were searched for; `None` if older runs were not left out.
    failures_searched_to: Option<Timestamp>,
    /// Runs that were skipped for lack of an executor or a server, because of their app's switch, or after too long a
    /// wait; the newest first.
    skipped_runs: Vec<Value>,
    /// Whether there were too many recently skipped runs to read them all.
    is_skipped_cut: bool,
}

impl StatusArgs {
    pub(crate) async fn run(self) -> Result<(), Failure> {
        let client = self.client.client()?;
        let runs = async |status: &str| items(&client, &["runs"], &[("status", status), ("limit", PAGE_LEN)]).await;
        let skipped_runs = runs("skipped").await?;
        // What is overdue, and what ended recently, depends on the time of the server.
        let now = server_now(&client).await;
        let is_skipped_cut = is_cut(&skipped_runs, now);
        let (failed_runs, failures_searched_to) = newest_runs(&client, "failed,timed_out,unknown").await?;
        let data = StatusData {
            nodes: items(&client, &["nodes"], &[]).await?,
            executors: all_items(&client, &["executors"]).await?,
            running_runs: runs("running").await?,
            waiting_runs: runs("waiting").await?,
            overdue_runs: pending_runs_until(&client, now)
                .await?
                .into_iter()
                .filter(|run| is_overdue(run, now))
                .collect(),
            failed_runs,
            failures_searched_to,
            skipped_runs: skipped_runs.into_iter().filter(|run| is_recent_skip(run, now)).collect(),
            is_skipped_cut,
        };
        clock::set_display_in_utc(self.format.utc);
        match self.format.format {
            Format::Table | Format::Wide => output::print_lines(&data.screen(&client, Paint::of_stdout())),
            Format::Name => output::print_names(data.nodes.iter().map(|node| text_of(&node["name"]))),
            form @ (Format::Json | Format::Jsonl | Format::Yaml) => {
                let StatusData {
                    nodes,
                    executors,
                    running_runs,
                    waiting_runs,
                    overdue_runs,
                    failed_runs,
                    skipped_runs,
                    ..
                } = data;
                let document = json!({
                    "server": client.server_url(), "nodes": nodes, "executors": executors, "running": running_runs,
                    "waiting": waiting_runs, "overdue": overdue_runs, "failed": failed_runs,
                    "skipped": skipped_runs,
                });
                output::print_document(&document.to_string(), form)
            }
        }
    }
}

/// The newest runs with one of these verdicts, and the instant back to which they were searched for, if older runs were
/// left out. A page is empty if many newer runs have other verdicts; then the next page is read.
async fn newest_runs(client: &Client, statuses: &str) -> Result<(Vec<Value>, Option<Timestamp>), Failure> {
    let (mut searched_to, mut cursor) = (None, None::<String>);
    for _ in 0..OVERVIEW_PAGES_MAX {
        let mut query = vec![("status", statuses), ("limit", PAGE_LEN)];
        query.extend(cursor.as_deref().map(|cursor| ("cursor", cursor)));
        let page = client.get(&["runs"], &query).await?.value()?;
        searched_to = page["searched_to"].as_str().and_then(|text| text.parse::<Timestamp>().ok());
        let runs = page["items"].as_array().cloned().unwrap_or_default();
        cursor = page["next_cursor"].as_str().map(str::to_owned);
        if !runs.is_empty() || cursor.is_none() {
            return Ok((runs, searched_to));
        }
    }
    Ok((Vec::new(), searched_to))
}

/// The pending runs of fires up to this instant. Later runs are left out: servers claim fires ahead, so there may be many of
/// them.
pub(crate) async fn pending_runs_until(client: &Client, at: Timestamp) -> Result<Vec<Value>, Failure> {
    let fire_filter = format!("until:{at}");
    items(client, &["runs"], &[("status", "pending"), ("q", &fire_filter), ("limit", PAGE_LEN)]).await
}

/// Whether a pending run should have been sent by now.
pub(crate) fn is_overdue(run: &Value, now: Timestamp) -> bool {
    let due_at = run["due_at"].as_str().or_else(|| run["fire_at"].as_str());
    let due_at = due_at.and_then(|text| text.parse::<Timestamp>().ok());
    due_at.is_some_and(|due_at| due_at + OVERDUE_AFTER < now)
}

/// Whether the run was recently skipped although it should have run.
fn is_recent_skip(run: &Value, now: Timestamp) -> bool {
    let has_listed_reason = run["reason"].as_str().is_some_and(|reason| SKIPPED_REASONS.contains(&reason));
    // The overlap policy let the run wait behind an earlier run, which did not end within the queue timeout.
    let has_waited_for_run = run["reason"] == "overlap" && run["detail"]["waits_for"] == "run";
    (has_listed_reason || has_waited_for_run) && has_recently_ended(run, now)
}

fn has_recently_ended(run: &Value, now: Timestamp) -> bool {
    let finished_at = run["finished_at"].as_str().and_then(|text| text.parse::<Timestamp>().ok());
    finished_at.is_some_and(|at| at + SKIP_AGE_MAX > now)
}

/// Whether the list of these runs, newest first, may end before other runs that also ended recently.
fn is_cut(runs: &[Value], now: Timestamp) -> bool {
    runs.len() >= COUNT_MAX && runs.last().is_some_and(|oldest_run| has_recently_ended(oldest_run, now))
}

/// How many fires these runs stand for: one row may stand for several.
fn fire_count(runs: &[Value]) -> u64 {
    runs.iter().map(|run| run["span_count"].as_u64().unwrap_or(1)).sum()
}

impl StatusData {
    fn screen(&self, client: &Client, paint: Paint) -> String {
        let title = |text: &str| paint.ink(Ink::Bold, text);
        let mut sections = vec![format!("{} {}", title("Server"), client.server_url())];
        sections.push(format!("{}\n{}", title("Nodes"), self.node_lines()));
        sections.push(format!("{}\n{}", title("Executors"), self.executor_lines()));
        let count = |runs: &[Value]| match runs.len() {
            COUNT_MAX.. => format!("{COUNT_MAX} or more"),
            count => count.to_string(),
        };
        let (running_count, waiting_count) = (count(&self.running_runs), count(&self.waiting_runs));
        let overdue_text = match self.overdue_runs.len() {
            0 => "0 overdue".to_owned(),
            _ => paint.ink(Ink::Red, &format!("{} overdue; see rondel doctor", count(&self.overdue_runs))),
        };
        sections.push(format!("{} {running_count} running, {waiting_count} waiting, {overdue_text}", title("Runs")));
        sections.push(match (self.failed_runs.is_empty(), self.failures_searched_to) {
            (true, None) => format!("{} none", title("Failed lately")),
            (true, Some(at)) => format!("{} none since {}", title("Failed lately"), clock::local_text(at)),
            (false, _) => format!("{}\n{}", title("Failed lately"), self.failed_lines()),
        });
        let count_text =
            if self.is_skipped_cut { format!("among the newest {COUNT_MAX} skipped runs") } else { String::new() };
        sections.push(match fire_count(&self.skipped_runs) {
            0 => format!("{} none {count_text}", title("Skipped lately")).trim_end().to_owned(),
            count => {
                let span_text = if self.is_skipped_cut { count_text.as_str() } else { "in the last 24 h" };
                let count = paint.ink(Ink::Red, &format!("{count} {span_text}"));
                format!("{} {count}\n{}", title("Skipped lately"), self.skipped_lines())
            }
        });
        sections.join("\n\n")
    }

    fn node_lines(&self) -> String {
        let mut table = Table::new(&["  NAME", "STATUS", "VERSION", "STARTED"]);
        for node in &self.nodes {
            let started_text = time_text(&node["started_at"], clock::now());
            let name = format!("  {}", harmless_text(&text_of(&node["name"])));
            table.add(vec![name, status_text(node), text_of(&node["server_version"]), started_text]);
        }
        table.render(false)
    }

    /// One line for each app.
    fn executor_lines(&self) -> String {
        if self.executors.is_empty() {
            return "  none: start one with rondel agent --server URL --app NAME, or from the SDK".to_owned();
        }
        let mut counts_by_app: BTreeMap<String, [u64; 5]> = BTreeMap::new();
        for executor in &self.executors {
            let counts = counts_by_app.entry(text_of(&executor["app"])).or_default();
            let status_index = match executor["status"].as_str() {
                Some("online") => 0,
                Some("draining") => 1,
                _ => 2,
            };
            counts[status_index] += 1;
            if status_index < 2 {
                // `running` is null for an executor without a stream to the server that answers.
                counts[3] += executor["run_count"].as_u64().unwrap_or_default();
                counts[4] += executor["slots"].as_u64().unwrap_or_default();
            }
        }
        let mut table = Table::new(&["  APP", "ONLINE", "DRAINING", "OFFLINE", "BUSY"]);
        for (app, [online_count, draining_count, offline_count, busy_slots, slots]) in counts_by_app {
            let cells = [
                online_count.to_string(),
                draining_count.to_string(),
                offline_count.to_string(),
                format!("{busy_slots} of {slots}"),
            ];
            table.add(std::iter::once(format!("  {}", harmless_text(&app))).chain(cells).collect());
        }
        table.render(false)
    }

    fn failed_lines(&self) -> String {
        let mut table = Table::new(&["  RUN", "JOB", "STATUS", "FINISHED", "MESSAGE"]);
        for run in self.failed_runs.iter().take(SHOWN_RUNS_MAX) {
            let finished_text = time_text(&run["finished_at"], clock::now());
            let id = format!("  {}", text_of(&run["id"]));
            table.add(vec![id, text_of(&run["job"]), text_of(&run["status"]), finished_text, cells::message_text(run)]);
        }
        table.render(false)
    }

    fn skipped_lines(&self) -> String {
        let mut table = Table::new(&["  RUN", "JOB", "FIRE AT", "REASON", "MESSAGE"]);
        for run in self.skipped_runs.iter().take(SHOWN_RUNS_MAX) {
            let fire_text = time_text(&run["fire_at"], clock::now());
            let id = format!("  {}", text_of(&run["id"]));
            table.add(vec![id, text_of(&run["job"]), fire_text, text_of(&run["reason"]), cells::message_text(run)]);
        }
        table.render(false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_of_executors_on_other_servers_are_counted() {
        let executor = |running: Value, run_count: u64| json!({"app": "a", "status": "online", "slots": 16, "running": running, "run_count": run_count});
        let executors = vec![executor(json!(2), 2), executor(Value::Null, 3)];
        let data = StatusData { executors, ..StatusData::default() };
        assert!(data.executor_lines().contains("5 of 32"), "{}", data.executor_lines());
    }

    #[test]
    fn runs_skipped_against_the_will_of_their_jobs_are_counted() {
        let now: Timestamp = "2026-03-08T12:00:00Z".parse().unwrap();
        let run = |reason: &str, at: &str, span: u64| json!({"reason": reason, "finished_at": at, "span_count": span});
        let (today, before) = ("2026-03-08T02:00:00Z", "2026-03-07T11:59:59Z");
        for reason in SKIPPED_REASONS {
            assert!(is_recent_skip(&run(reason, today, 1), now), "{reason}");
            assert!(!is_recent_skip(&run(reason, before, 1), now), "{reason}");
        }
        for reason in ["overlap", "paused", "handler", "covered"] {
            assert!(!is_recent_skip(&run(reason, today, 1), now), "{reason}");
        }
        let many = vec![run("overlap", today, 1); COUNT_MAX];
        assert!(is_cut(&many, now) && !is_cut(&many[1..], now));
        assert!(!is_cut(&[&many[1..], &[run("overlap", before, 1)]].concat(), now));
        let mut behind = run("overlap", today, 1);
        behind["detail"] = json!({"waits_for": "run", "waited_ms": 3_600_000});
        assert!(is_recent_skip(&behind, now));
        assert_eq!(fire_count(&[run("misfire", today, 40), json!({"reason": "expired"})]), 41);
    }
}
