//! `rondel run`: runs, with their logs and verdicts.

mod attempts;
pub(crate) mod cells;
mod filter;
mod logs;
mod tree;
mod wait;

use clap::{Args, Subcommand};
use rondel_core::Timestamp;
use rondel_core::route::trace::Trace;
use serde::Deserialize as _;
use serde_json::Value;

use crate::bulk::{self, Bulk, BulkArgs};
use crate::client::{Body, ClientArgs, text_of, time_text};
use crate::exit::Failure;
use crate::format::FormatArgs;
use crate::list;
use crate::terminal::harmless_text;
use crate::view::View;
use crate::{clock, output};
use cells::{duration_text, message_text};
use logs::LogsArgs;
pub(crate) use wait::{WaitArgs, print_or_wait};

#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    #[command(flatten)]
    client: ClientArgs,
    #[command(flatten)]
    format: FormatArgs,
    #[command(subcommand)]
    command: RunCommand,
}

#[derive(Debug, Subcommand)]
enum RunCommand {
    /// List the runs, the newest first
    List(ListArgs),
    /// Show a run
    Get(IdArgs),
    /// Wait for a run's verdict
    Wait(wait::WaitForArgs),
    /// Print the log of a run
    Logs(LogsArgs),
    /// Request the cancellation of a run, or of many runs
    Cancel(CancelArgs),
    /// Run a finished run again, or many runs
    Retry(RetryArgs),
    /// Remove failed runs from the list of failures that need attention (is:dead)
    Ack(AckArgs),
}

#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  rondel run list --filter is:dead\n  rondel run ack 42\n  rondel run ack --filter 'is:dead app:orders' --yes"
)]
struct AckArgs {
    /// The run's id
    #[arg(value_name = "RUN", required_unless_present = "filter", conflicts_with_all = bulk::FLAGS_FOR_MANY)]
    id: Option<String>,
    #[command(flatten)]
    bulk: BulkArgs,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  rondel run list --since 8h --app orders --status failed\n  rondel run list --filter 'duration:>5m -trigger:manual \"refused\"'\n  rondel run list --since yesterday --sort longest --limit 10"
)]
struct ListArgs {
    /// Only runs of this job, or of jobs that match a pattern such as orders.*
    #[arg(long, value_name = "NAME")]
    job: Option<String>,
    /// Only runs with this status; several with commas between them
    #[arg(long, value_name = "STATUS")]
    status: Option<String>,
    #[command(flatten)]
    filter: filter::FilterArgs,
    /// The order: newest, longest, or latest (the most behind their planned instants)
    #[arg(long, value_name = "ORDER", value_parser = ["newest", "longest", "latest"])]
    sort: Option<String>,
    #[command(flatten)]
    bounds: list::BoundArgs,
}

#[derive(Debug, Args)]
struct IdArgs {
    /// The run's id
    #[arg(value_name = "RUN")]
    id: String,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  rondel run cancel 42 --reason \"wrong data\"\n  rondel run cancel --filter 'status:running app:orders' --dry-run"
)]
struct CancelArgs {
    /// The run's id
    #[arg(value_name = "RUN", required_unless_present = "filter", conflicts_with_all = bulk::FLAGS_FOR_MANY)]
    id: Option<String>,
    #[command(flatten)]
    bulk: BulkArgs,
    /// The reason; it becomes part of the run's message
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  rondel run retry 42 --wait\n  rondel run retry 42 --failed-shards\n  rondel run retry --filter 'status:failed app:orders since:8h' --dry-run"
)]
struct RetryArgs {
    /// The run's id
    #[arg(value_name = "RUN", required_unless_present = "filter", conflicts_with_all = bulk::FLAGS_FOR_MANY)]
    id: Option<String>,
    #[command(flatten)]
    bulk: BulkArgs,
    /// Only the shards that did not succeed
    #[arg(long, conflicts_with = "filter")]
    failed_shards: bool,
    #[command(flatten)]
    wait: WaitArgs,
}

pub(crate) const VIEW: View = View {
    name: "id",
    headers: &["RUN", "JOB", "STATUS", "FIRE AT", "TOOK", "SHARD", "EXECUTOR", "TRIGGER", "MESSAGE"],
    row,
};

impl RunArgs {
    pub(crate) async fn run(self) -> Result<(), Failure> {
        let (client, format) = (self.client.client()?, self.format);
        match self.command {
            RunCommand::List(args) => {
                let is_pattern = args.job.as_deref().is_some_and(|job| job.contains('*'));
                let pattern = args.job.as_deref().filter(|_| is_pattern).map(|job| ("job", job));
                let filter = args.filter.text(pattern);
                let job = args.job.as_deref().filter(|_| !is_pattern).map(|job| ("job", job));
                let status = args.status.as_deref().map(|status| ("status", status));
                let filter = filter.as_deref().map(|filter| ("q", filter));
                let sort = args.sort.as_deref().map(|sort| ("sort", sort));
                let query: Vec<_> = job.into_iter().chain(status).chain(filter).chain(sort).collect();
                let runs = list::read(&client, "runs", &query, &args.bounds).await?;
                VIEW.print_list(&runs, format)?;
                report_bounded_search(&runs, args.sort.as_deref())?;
                report_deleted_job(&runs)
            }
            RunCommand::Get(args) => {
                let run = client.get(&["runs", &args.id], &[]).await?;
                VIEW.print_object_with(&run, format, value_text)?;
                attempts::print(&run, format)?;
                tree::print(&client, &args.id, format, clock::now()).await
            }
            RunCommand::Wait(args) => args.run(&client, format).await,
            RunCommand::Logs(args) => logs::print(&client, &args, format).await,
            RunCommand::Cancel(args) => {
                let extra_fields = serde_json::json!({ "reason": args.reason });
                let Some(id) = &args.id else {
                    let bulk = Bulk {
                        collection: "runs",
                        noun: "run",
                        action: "cancel",
                        participle: "asked to end",
                        extra_fields,
                    };
                    return args.bulk.run(&client, &bulk, format).await;
                };
                VIEW.print_row(&client.post(&["runs", id, "cancel"], &extra_fields.to_string()).await?, format)
            }
            RunCommand::Ack(args) => {
                let bulk = Bulk {
                    collection: "runs",
                    noun: "run",
                    action: "acknowledge",
                    participle: "acknowledged",
                    extra_fields: Value::Null,
                };
                match &args.id {
                    Some(id) => bulk.apply_to_one(&client, id, format).await,
                    None => args.bulk.run(&client, &bulk, format).await,
                }
            }
            RunCommand::Retry(args) => {
                let Some(id) = &args.id else {
                    if args.wait.is_given() {
                        let message =
                            "--wait, --watch and --wait-timeout are for one run: leave them out with --filter";
                        return Err(Failure::refused(message));
                    }
                    let bulk = Bulk {
                        collection: "runs",
                        noun: "run",
                        action: "retry",
                        participle: "retried",
                        extra_fields: Value::Null,
                    };
                    return args.bulk.run(&client, &bulk, format).await;
                };
                let body = if args.failed_shards { r#"{"only": "failed"}"# } else { "{}" };
                let answer = client.post(&["runs", id, "retry"], body).await?;
                print_or_wait(&client, answer, &args.wait, format).await
            }
        }
    }
}

/// Reports on stderr if older runs were not searched. A list of the newest runs continues until enough runs are found;
/// in another order, the server compares only the newest runs of the period.
fn report_bounded_search(runs: &Body, sort: Option<&str>) -> Result<(), Failure> {
    let page = runs.page()?;
    let has_other_order = sort.is_some_and(|sort| sort != "newest");
    if let Some(searched_to) = page.searched_to.filter(|_| has_other_order || page.next_cursor.is_none()) {
        output::print_message(&format!(
            "runs from before {searched_to} were not searched; --until with this instant searches among older ones"
        ));
    }
    Ok(())
}

/// Reports on stderr if the job of the first listed run has been deleted.
fn report_deleted_job(runs: &Body) -> Result<(), Failure> {
    let Some(first_run) = runs.page()?.items.into_iter().next() else { return Ok(()) };
    let first_run: Value = serde_json::from_str(first_run.get())?;
    if let Some(at) = first_run["job_deleted_at"].as_str() {
        let job = text_of(&first_run["job"]);
        output::print_message(&format!(
            "job {} was deleted at {at}; its runs are kept until their retention ends",
            harmless_text(&job)
        ));
    }
    Ok(())
}

/// The text for a value that is not printed field by field, such as how the run came to its executor; `None` for other
/// values. For attempts, children and shards, the text is only their number, because they are listed below the run.
fn value_text(key: &str, value: &Value) -> Option<String> {
    match key {
        "trace" => Trace::deserialize(value).ok().map(|trace| trace.to_string()),
        "why" => value.get("en").map(text_of),
        "rows" => {
            let count = |key: &str| value[key].as_i64().unwrap_or(0);
            Some(format!("{} fetched, {} done, {} failed", count("fetched"), count("done"), count("failed")))
        }
        "attempts" | "children" | "shards" => value.as_array().map(|items| items.len().to_string()),
        _ => None,
    }
}

fn row(run: &Value, now: Timestamp) -> Vec<String> {
    vec![
        text_of(&run["id"]),
        text_of(&run["job"]),
        status_text(run),
        time_text(&run["fire_at"], now),
        duration_text(run, now),
        shard_text(run),
        text_of(&run["executor"]),
        text_of(&run["trigger"]),
        message_text(run),
    ]
}

/// The status with the reason or the attempt: `skipped: no_executor`, `failed (attempt 2)`.
fn status_text(run: &Value) -> String {
    let (status, reason) = (text_of(&run["status"]), text_of(&run["reason"]));
    let attempt = run["attempt"].as_i64().filter(|attempt| *attempt > 1);
    let attempt_text = attempt.map(|attempt| format!(" (attempt {attempt})")).unwrap_or_default();
    if reason.is_empty() { format!("{status}{attempt_text}") } else { format!("{status}: {reason}{attempt_text}") }
}

/// The shard or the part of a run, counted from 1 as on the pages of the console: `1 of 2`, `all 2`, `group 1 of 2`, `root of 2`; empty
/// if the fire has only one run.
fn shard_text(run: &Value) -> String {
    let part = run["part"].as_str().filter(|part| ["root", "group"].contains(part));
    match (run["shard_index"].as_i64(), run["shard_total"].as_i64()) {
        (_, total) if part == Some("root") => {
            format!("root{}", total.map(|total| format!(" of {total}")).unwrap_or_default())
        }
        (Some(index), Some(total)) if part == Some("group") => format!("group {} of {total}", index + 1),
        (Some(index), Some(total)) if total > 1 && index >= 0 => format!("{} of {total}", index + 1),
        (Some(index), Some(total)) if index < 0 => format!("all {total}"),
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn cells_of_a_run() {
        let now = Timestamp::from_secs(100);
        let run = json!({
            "id": "1", "job": "a", "status": "skipped", "reason": "no_executor", "attempt": 2, "shard_index": 1,
            "shard_total": 3, "started_at": "1970-01-01T00:00:10Z", "finished_at": "1970-01-01T00:00:10.250Z",
            "message": "é".repeat(100),
        });
        assert_eq!(status_text(&run), "skipped: no_executor (attempt 2)");
        assert_eq!(duration_text(&run, now), "250ms");
        assert_eq!(duration_text(&json!({"started_at": "1970-01-01T00:00:10Z", "finished_at": null}), now), "1m30s");
        assert_eq!(shard_text(&run), "2 of 3");
        assert_eq!(shard_text(&json!({"shard_index": 0, "shard_total": 1})), "");
        assert_eq!(shard_text(&json!({"shard_index": 0, "shard_total": 1, "part": "group"})), "group 1 of 1");
        assert_eq!(shard_text(&json!({"shard_index": null, "shard_total": 4, "part": "root"})), "root of 4");
        assert_eq!(shard_text(&json!({"shard_index": 1, "shard_total": 4, "part": "shard"})), "2 of 4");
        assert_eq!(value_text("trace", &json!({"route": "lru", "of": ["a"]})).as_deref(), Some("lru; only a eligible"));
        assert_eq!(value_text("trace", &Value::Null), None);
        assert_eq!(value_text("children", &json!([{"id": "1"}])).as_deref(), Some("1"));
        assert_eq!(message_text(&run).chars().count(), cells::MESSAGE_LEN_MAX + 1);
        let waits = json!({"status": "pending", "attempt": 1, "reason": null, "message": null,
            "detail": {"waits_for": "executor", "app": "ghost"}});
        assert_eq!(message_text(&waits), "Waits for an executor of app ghost (none online).");
        let skipped = json!({"status": "skipped", "attempt": 1, "reason": "no_executor", "message": null,
            "detail": {"app": "work", "waited_ms": 300_000}});
        assert_eq!(message_text(&skipped), "no executor of app work was online for 5 min");
        assert_eq!(message_text(&json!({"status": "succeeded", "attempt": 1, "reason": null, "message": null})), "");
    }
}
