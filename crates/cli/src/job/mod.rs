//! `rondel job`: definitions of jobs.

mod apply;
mod definition;
mod edit;
mod export;
mod files;
mod fires;
mod items;
mod json_text;
mod planned;
mod pump;
mod versions;

use clap::{Args, Subcommand};
use definition::DefinitionArgs;
use fires::FiresArgs;
use rondel_core::Timestamp;
use rondel_core::words::counted;
use serde_json::Value;

use crate::bulk::{self, Bulk, BulkArgs};
use crate::client::{Body, Client, ClientArgs, text_of, time_text};
use crate::delete::delete;
use crate::exit::{Exit, Failure};
use crate::format::{Format, FormatArgs};
use crate::run::{self, WaitArgs};
use crate::terminal::harmless_text;
use crate::view::View;
use crate::{input, list, output};

#[derive(Debug, Args)]
pub(crate) struct JobArgs {
    #[command(flatten)]
    client: ClientArgs,
    #[command(flatten)]
    format: FormatArgs,
    #[command(subcommand)]
    command: JobCommand,
}

#[derive(Debug, Subcommand)]
enum JobCommand {
    /// Create a job from a file, or from flags
    Create(Box<DefinitionArgs>),
    /// Show what applying files of jobs would change, and which fires vanish and appear
    Plan(apply::PlanArgs),
    /// Create and change jobs as their files define them
    Apply(apply::ApplyArgs),
    /// Print jobs as a file for rondel job apply
    Export(export::ExportArgs),
    /// Change a job's definition in an editor
    Edit(edit::EditArgs),
    /// List the jobs by name
    List(ListArgs),
    /// Show a job
    Get(NameArgs),
    /// List the versions of a job's definition, the newest first
    Versions(versions::VersionsArgs),
    /// Show what an edit of a job changed; scripts are compared line by line
    Diff(versions::DiffArgs),
    /// Restore an earlier version; the job keeps its name, and stays enabled or disabled
    Restore(versions::RestoreArgs),
    /// Make a run of a job, due now
    Trigger(TriggerArgs),
    /// Request the cancellation of a job's open runs, or of the runs of one fire
    Cancel(CancelArgs),
    /// Switch off the schedule of a job, or of many jobs; the jobs can still be triggered
    Pause(PauseArgs),
    /// Switch on the schedule of a job, or of many jobs
    Resume(ResumeArgs),
    /// Make a run, due now, of each job that passes a filter
    Run(FilterArgs),
    /// Add a label to each job that passes a filter, or remove it
    Label(LabelArgs),
    /// Restore the definition that code declares
    Reset(NameArgs),
    /// Delete a job, or many; their runs stay
    Delete(DeleteArgs),
    /// Show the result of each planned fire, and the fires to come
    Fires(FiresArgs),
    /// Show the items of a pump job, the groups that own them, and the counts of their rows
    Items(items::ItemsArgs),
}

#[derive(Debug, Args)]
struct NameArgs {
    /// The job's name
    #[arg(value_name = "JOB", add = crate::complete::job_names())]
    name: String,
}

/// One job, or all that pass a filter.
#[derive(Debug, Args)]
struct OneOrManyArgs {
    /// The job's name
    #[arg(
        value_name = "JOB", required_unless_present = "filter", conflicts_with_all = bulk::FLAGS_FOR_MANY,
        add = crate::complete::job_names()
    )]
    name: Option<String>,
    #[command(flatten)]
    bulk: BulkArgs,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  rondel job pause report.daily\n  rondel job pause --filter 'app:orders' --dry-run\n  rondel job pause --filter 'is:failing label:team=pay' --yes"
)]
struct PauseArgs {
    #[command(flatten)]
    jobs: OneOrManyArgs,
    /// What happens to its queued runs: `run` or `drop`; by default, the runs of its schedule are skipped
    #[arg(long, value_name = "WHAT", conflicts_with = "filter")]
    queued: Option<String>,
}

#[derive(Debug, Args)]
struct ResumeArgs {
    #[command(flatten)]
    jobs: OneOrManyArgs,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  rondel job run --filter 'label:team=pay' --dry-run\n  rondel job run --filter 'app:orders is:failing' --yes\n\nOne job is started by rondel job trigger."
)]
struct FilterArgs {
    #[command(flatten)]
    bulk: BulkArgs,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  rondel job label team=pay --filter 'app:orders'\n  rondel job label team- --filter 'label:team=pay' --yes"
)]
struct LabelArgs {
    /// KEY=VALUE; KEY- removes the label
    #[arg(value_name = "LABEL")]
    label: String,
    #[command(flatten)]
    bulk: BulkArgs,
}

#[derive(Debug, Args)]
struct DeleteArgs {
    #[command(flatten)]
    jobs: OneOrManyArgs,
    /// Delete the job even if other jobs follow from it
    #[arg(long, conflicts_with = "filter")]
    force: bool,
    /// What happens to its queued runs: `run` or `drop`; by default, they are skipped
    #[arg(long, value_name = "WHAT", conflicts_with = "filter")]
    queued: Option<String>,
}

impl OneOrManyArgs {
    /// The job's name, if it is given. Otherwise applies the action to all jobs that pass the filter, and returns
    /// `None`.
    async fn name_or_run_bulk(
        &self,
        client: &Client,
        (action, participle): (&str, &str),
        format: FormatArgs,
    ) -> Result<Option<&str>, Failure> {
        let Some(name) = &self.name else {
            run_bulk(&self.bulk, client, (action, participle, Value::Null), format).await?;
            return Ok(None);
        };
        Ok(Some(name))
    }
}

/// Applies an action to all jobs that pass a filter.
async fn run_bulk(
    bulk: &BulkArgs,
    client: &Client,
    (action, participle, extra_fields): (&str, &str, Value),
    format: FormatArgs,
) -> Result<(), Failure> {
    if bulk.filter.is_none() {
        return Err(Failure::refused(format!("which jobs are to be {participle}? name them by --filter 'app:orders'")));
    }
    bulk.run(client, &Bulk { collection: "jobs", noun: "job", action, participle, extra_fields }, format).await
}

#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  rondel job list --app billing\n  rondel job list --filter 'is:failing label:team=pay'\n  rondel job list --all -o name\n  rondel job list --columns name,next_fire,retry.max"
)]
struct ListArgs {
    /// Only jobs of this app
    #[arg(long, value_name = "NAME", add = crate::complete::app_names())]
    app: Option<String>,
    /// A filter as in the console, such as 'is:failing,late label:team=pay'; other words are parts of names
    #[arg(long, value_name = "FILTER")]
    filter: Option<String>,
    #[command(flatten)]
    bounds: list::BoundArgs,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  rondel job trigger report.daily\n  rondel job trigger report.daily --params '{\"day\": \"2026-03-08\"}' --wait\n  rondel job trigger report.daily --executor worker-2\n  rondel job trigger report.daily --at +10m --key 2026-03-08 --if-open keep\n  rondel run logs -f $(rondel job trigger report.daily -o name)"
)]
struct TriggerArgs {
    /// The job's name
    #[arg(value_name = "JOB", add = crate::complete::job_names())]
    name: String,
    /// Parameters of this run alone, as JSON
    #[arg(long, value_name = "JSON")]
    params: Option<String>,
    /// The executor that the run goes to, whatever the job's route; while it is offline, the run is queued
    #[arg(long, value_name = "NAME", add = crate::complete::executor_names())]
    executor: Option<String>,
    /// When the run is due: an instant such as 2026-03-08T07:00:00Z, or a time from now such as +10m
    #[arg(long, value_name = "TIME")]
    at: Option<String>,
    /// A key that at most one open run of the job has
    #[arg(long, value_name = "KEY")]
    key: Option<String>,
    /// What happens if an open run of the job has the key: refuse (the default), keep the open run, or replace it
    #[arg(long, value_name = "HOW", requires = "key", value_parser = ["refuse", "keep", "replace"])]
    if_open: Option<String>,
    #[command(flatten)]
    wait: WaitArgs,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  rondel job cancel report.daily --reason \"wrong data\"\n  rondel job cancel report.daily --fire-at 2026-03-08T02:30:00Z"
)]
struct CancelArgs {
    /// The job's name
    #[arg(value_name = "JOB", add = crate::complete::job_names())]
    name: String,
    /// Only the runs of this planned instant, such as 2026-03-08T07:00:00Z
    #[arg(long, value_name = "TIME")]
    fire_at: Option<String>,
    /// The reason; it becomes part of the runs' messages
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
}

const VIEW: View =
    View { name: "name", headers: &["NAME", "APP", "HANDLER", "SCHEDULE", "STATE", "ENABLED", "NEXT FIRE"], row };

impl JobArgs {
    pub(crate) async fn run(self) -> Result<(), Failure> {
        let (client, format) = (self.client.client()?, self.format);
        match self.command {
            JobCommand::Create(args) => {
                let document = args.document()?;
                let answer = client
                    .post(&["jobs"], &document)
                    .await
                    .map_err(|failure| with_existing_job_hint(failure, &document))?;
                print_saved(&answer, format)
            }
            JobCommand::Plan(args) => args.run(&client, format).await,
            JobCommand::Apply(args) => args.run(&client, format).await,
            JobCommand::Export(args) => args.run(&client, format).await,
            JobCommand::Edit(args) => args.run(&client, format).await,
            JobCommand::List(args) => {
                let app = args.app.as_deref().map(|app| ("app", app));
                let filter = args.filter.as_deref().map(|filter| ("q", filter));
                let query: Vec<_> = app.into_iter().chain(filter).collect();
                VIEW.print_list(&list::read(&client, "jobs", &query, &args.bounds).await?, format)
            }
            JobCommand::Get(args) => {
                let job = client.get(&["jobs", &args.name], &[]).await?;
                VIEW.print_object_with(&job, format, |key, value| pump::summary_text(value).filter(|_| key == "pump"))
            }
            JobCommand::Versions(args) => versions::list(&client, &args, format).await,
            JobCommand::Diff(args) => versions::diff(&client, &args, format).await,
            JobCommand::Restore(args) => print_saved(&versions::restore(&client, &args).await?, format),
            JobCommand::Trigger(args) => trigger(&client, &args, format).await,
            JobCommand::Cancel(args) => cancel(&client, &args, format).await,
            JobCommand::Pause(args) => match args.jobs.name_or_run_bulk(&client, ("pause", "paused"), format).await? {
                Some(name) => pause(&client, name, args.queued.as_deref(), format).await,
                None => Ok(()),
            },
            JobCommand::Resume(args) => {
                match args.jobs.name_or_run_bulk(&client, ("resume", "resumed"), format).await? {
                    Some(name) => VIEW.print_row(&client.post(&["jobs", name, "resume"], "{}").await?, format),
                    None => Ok(()),
                }
            }
            JobCommand::Run(args) => run_bulk(&args.bulk, &client, ("run", "started", Value::Null), format).await,
            JobCommand::Label(args) => args.run(&client, format).await,
            JobCommand::Reset(args) => print_saved(&client.post(&["jobs", &args.name, "reset"], "{}").await?, format),
            JobCommand::Delete(args) => {
                let Some(name) = args.jobs.name_or_run_bulk(&client, ("delete", "deleted"), format).await? else {
                    return Ok(());
                };
                let mut query: Vec<(&str, &str)> =
                    args.queued.as_deref().map(|handling| ("queued", handling)).into_iter().collect();
                query.extend(args.force.then_some(("force", "true")));
                delete(&client, &["jobs", name], &query, &format!("deleted {name}"), format).await
            }
            JobCommand::Fires(args) => args.run(&client, format).await,
            JobCommand::Items(args) => args.run(&client, format).await,
        }
    }
}

impl LabelArgs {
    async fn run(&self, client: &Client, format: FormatArgs) -> Result<(), Failure> {
        let (action, participle, label) = label_change(&self.label);
        run_bulk(&self.bulk, client, (action, participle, serde_json::json!({ "label": label })), format).await
    }
}

/// The action of the API, its participle for messages, and the label or key to send. `KEY-` removes a label; in
/// `KEY=VALUE-`, the `-` belongs to the value.
fn label_change(label: &str) -> (&str, &str, &str) {
    match label.strip_suffix('-').filter(|key| !key.contains('=')) {
        Some(key) => ("unlabel", "changed", key),
        None => ("label", "labelled", label),
    }
}

async fn pause(client: &Client, name: &str, queued: Option<&str>, format: FormatArgs) -> Result<(), Failure> {
    let query: Vec<(&str, &str)> = queued.map(|handling| ("queued", handling)).into_iter().collect();
    let job = client.post_with_query(&["jobs", name, "pause"], &query, "{}").await?;
    let queued = &job.value()?["queued"];
    if let Some(sentence) = queued_sentence(queued) {
        output::print_message(&sentence);
    }
    VIEW.print_row(&job, format)
}

/// How many open runs of a paused or deleted job were skipped or continue; `None` if none was open.
pub(crate) fn queued_sentence(queued: &Value) -> Option<String> {
    let count = |field: &str| queued[field].as_u64().unwrap_or_default();
    let field_texts = [("dropped", "skipped"), ("kept", "still queued"), ("running", "still running")];
    let count_texts: Vec<String> = field_texts
        .into_iter()
        .filter(|(field, _)| count(field) > 0)
        .map(|(field, words)| format!("{} {words}", counted(count(field), "run")))
        .collect();
    (!count_texts.is_empty()).then(|| count_texts.join(", "))
}

/// Prints a saved job, with the warnings for its author.
fn print_saved(job: &Body, format: FormatArgs) -> Result<(), Failure> {
    for warning in job.value()?["warnings"].as_array().into_iter().flatten().filter_map(Value::as_str) {
        output::print_message(&format!("warning: {}", harmless_text(warning)));
    }
    VIEW.print_row(job, format)
}

/// If the job exists already, adds a hint to the failure: the job's name, and the commands that change it.
fn with_existing_job_hint(failure: Failure, document: &str) -> Failure {
    let name = serde_json::from_str::<Value>(document).map(|job| text_of(&job["name"])).unwrap_or_default();
    if failure.exit() != Exit::Conflict {
        return failure;
    }
    let hint = format!(": {name}; to change it: rondel job edit {name}, or rondel job apply -f FILE");
    failure.with_hint(&harmless_text(&hint))
}

async fn trigger(client: &Client, args: &TriggerArgs, format: FormatArgs) -> Result<(), Failure> {
    let mut body = serde_json::Map::new();
    if let Some(text) = &args.params {
        body.insert("params".to_owned(), input::parse_json_flag("--params", text)?);
    }
    let optional_fields =
        [("executor", &args.executor), ("at", &args.at), ("key", &args.key), ("if_open", &args.if_open)];
    for (name, value) in optional_fields {
        if let Some(value) = value {
            body.insert(name.to_owned(), value.as_str().into());
        }
    }
    let run_body = client.post(&["jobs", &args.name, "runs"], &Value::Object(body).to_string()).await?;
    run::print_or_wait(client, run_body, &args.wait, format).await
}

async fn cancel(client: &Client, args: &CancelArgs, format: FormatArgs) -> Result<(), Failure> {
    let body = serde_json::json!({ "fire_at": args.fire_at, "reason": args.reason }).to_string();
    let cancel_result = client.post(&["jobs", &args.name, "cancel"], &body).await?;
    match format.format {
        Format::Json | Format::Jsonl | Format::Yaml => output::print_document(cancel_result.text(), format.format),
        Format::Name => output::print_lines(&args.name),
        Format::Table | Format::Wide => {
            let answer = cancel_result.value()?;
            let more_text = if answer["has_more"] == true { "; more are open: repeat the command" } else { "" };
            let asked_count = answer["asked"].as_u64().unwrap_or_default();
            output::print_message(&format!("asked {} of {} to end{more_text}", counted(asked_count, "run"), args.name));
            Ok(())
        }
    }
}

fn row(job: &Value, now: Timestamp) -> Vec<String> {
    vec![
        text_of(&job["name"]),
        text_of(&job["app"]),
        text_of(&job["handler"]),
        pump::schedule_text(&job["pump"], schedule_text(&job["schedule"])),
        text_of(&job["state"]),
        enabled_text(job),
        time_text(&job["next_fire_at"], now),
    ]
}

/// Whether the job's schedule fires, and in which mode.
fn enabled_text(job: &Value) -> String {
    let is_shadow = job["mode"] == "shadow";
    if is_shadow && job["enabled"] == true { "shadow".to_owned() } else { text_of(&job["enabled"]) }
}

/// A schedule in short form: `0/10 * * * * ? Asia/Shanghai`, `every 5s`.
fn schedule_text(value: &Value) -> String {
    let single_text = |schedule: &Value| {
        let text = |value: &Value| match value {
            Value::Array(names) => names.iter().map(text_of).collect::<Vec<_>>().join(", "),
            other_value => text_of(other_value),
        };
        let with_key = |key: &str| schedule.get(key).filter(|value| !value.is_null()).map(text);
        match (with_key("cron"), with_key("time_zone")) {
            (Some(cron), Some(zone)) => format!("{cron} {zone}"),
            (Some(cron), None) => cron,
            (None, _) => {
                let interval =
                    ["every", "delay", "at", "after"].into_iter().find_map(|key| Some((key, with_key(key)?)));
                interval.map(|(key, value)| format!("{key} {value}")).unwrap_or_default()
            }
        }
    };
    match value {
        Value::Array(schedules) => schedules.iter().map(single_text).collect::<Vec<_>>().join(", "),
        schedule => single_text(schedule),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_label_is_taken_away_by_its_key_alone() {
        assert_eq!(label_change("team-"), ("unlabel", "changed", "team"));
        for label in ["team=pay", "note=todo-"] {
            assert_eq!(label_change(label), ("label", "labelled", label));
        }
    }

    #[test]
    fn schedules_in_few_words() {
        for (value, text) in [
            (json!(null), ""),
            (json!({"after": ["b", "c"], "on": "end"}), "after b, c"),
            (json!({"cron": "0 0 2 * * ?", "time_zone": "Asia/Shanghai"}), "0 0 2 * * ? Asia/Shanghai"),
            (json!({"cron": null, "every": "5s"}), "every 5s"),
            (json!([{"cron": "@daily"}, {"at": "2026-01-01T00:00:00Z"}]), "@daily, at 2026-01-01T00:00:00Z"),
        ] {
            assert_eq!(schedule_text(&value), text);
        }
    }
}
