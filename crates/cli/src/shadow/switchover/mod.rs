//! Switches jobs over at an instant, the seam: fires before the seam belong to one scheduler, fires at the seam and after it
//! to the other.
//!
//! The side that gives a job up does so first, durably, and then the other side takes it over. Between the two steps the job
//! fires on neither side, never on both. The same command, run again, completes the switch. In every case each job has an
//! outcome that names where it runs.

mod demote;
mod job;
mod outcome;
mod promote;
mod quiet;
mod ready;
mod relatives;
mod save;
mod select;

use std::collections::BTreeMap;
use std::time::Duration;

use clap::Args;
use rondel_core::error_chain::chain_in_one_line;
use rondel_core::{Timestamp, glue};
use serde_json::{Value, json};

use self::job::{Direction, Job, Switchover, instant_of_millis};
use self::outcome::{Outcome, Outcomes};
use self::save::Pace;
use super::jobs;
use crate::client::{Client, text_of};
use crate::exit::Failure;
use crate::format::{Format, FormatArgs};
use crate::output;
use crate::view::View;

#[derive(Debug, Args)]
pub(super) struct SwitchoverArgs {
    /// The jobs
    #[arg(value_name = "JOB", required_unless_present = "app")]
    jobs: Vec<String>,
    /// All jobs of this app that are from XXL-JOB, with their parents and children
    #[arg(long, value_name = "APP")]
    app: Option<String>,
    /// The database of XXL-JOB; the user may read and write `xxl_job_info` and lock the row of `xxl_job_lock`
    #[arg(long, value_name = "URL", env = "RONDEL_SHADOW_SOURCE", hide_env_values = true)]
    source: String,
    /// Switch the jobs; without this flag, the command only shows what it would do
    #[arg(long)]
    yes: bool,
    /// How long to wait for XXL-JOB to take up fires that are too near
    #[arg(long, value_name = "DURATION", default_value = "1m", value_parser = rondel_core::time::parse_duration)]
    wait: Duration,
}

#[derive(Debug, Args)]
pub(super) struct PromoteArgs {
    #[command(flatten)]
    switch: SwitchoverArgs,
    /// Promote jobs even if no online executor can run them, or if XXL-JOB has a job with another handler under their number
    #[arg(long)]
    force: bool,
}

impl PromoteArgs {
    pub(super) async fn run(self, client: &Client, format: FormatArgs) -> Result<(), Failure> {
        self.switch.run(Direction::Promote, self.force, client, format).await
    }
}

impl SwitchoverArgs {
    pub(super) async fn demote(self, client: &Client, format: FormatArgs) -> Result<(), Failure> {
        self.run(Direction::Demote, false, client, format).await
    }

    async fn run(
        self,
        direction: Direction,
        is_forced: bool,
        client: &Client,
        format: FormatArgs,
    ) -> Result<(), Failure> {
        let mut pace = Pace::default();
        let jobs = select::read_jobs(client, &self.jobs, self.app.as_deref(), &mut pace).await?;
        let mut database = jobs::open_database(&self.source).await?;
        let rights_failure = database.xxl_check_rights().await.err().map(|error| chain_in_one_line(&error));
        let numbers: Vec<i64> = jobs.iter().map(|job| job.number).collect();
        let xxl_status = database.xxl_jobs(&numbers).await.map_err(|error| jobs::database_failure(&error))?;
        let relatives = relatives::read(client, &jobs).await?;
        let switch = Switchover { client, jobs, relatives, xxl_status };
        let mut refusals = relatives::refusals(direction, &switch);
        if direction == Direction::Promote && !is_forced {
            ready::refuse_unready(&switch, &mut database, &mut refusals).await?;
            relatives::propagate_refusals(direction, &switch.jobs, &mut refusals);
        }
        let outcomes = if self.yes {
            for job in switch.jobs.iter().filter(|_| rights_failure.is_some()) {
                let reason = rights_failure.as_deref().unwrap_or_default();
                refusals.entry(job.name.clone()).or_insert_with(|| format!("nothing was changed: {reason}"));
            }
            match direction {
                Direction::Promote => promote::promote(&switch, &mut database, refusals, (pace, self.wait)).await,
                Direction::Demote => demote::demote(&switch, &mut database, &refusals, pace).await,
            }
        } else {
            plan_outcomes(direction, &switch, &refusals)
        };
        print_outcomes(&switch, &outcomes, (self.yes, format))?;
        if !self.yes {
            let reason = rights_failure.map(|reason| format!("; it would be refused: {reason}")).unwrap_or_default();
            return Err(Failure::refused(format!("nothing was done: add --yes to switch them{reason}")));
        }
        outcome::command_result(&outcomes)
    }
}

fn print_outcomes(
    switch: &Switchover<'_>,
    outcomes: &Outcomes,
    (is_done, format): (bool, FormatArgs),
) -> Result<(), Failure> {
    let outcome_json = |job: &Job| {
        let outcome = outcomes.get(&job.name)?;
        Some(json!({
            "job": job.name, "seam": outcome.seam, "runs": outcome.run_location.as_str(), "result": outcome.result,
            "done": outcome.is_done, "gap": outcome.has_gap,
        }))
    };
    let items: Vec<Value> = switch.jobs.iter().filter_map(outcome_json).collect();
    match format.format {
        Format::Json | Format::Jsonl | Format::Yaml => {
            output::print_document(&json!({"items": items}).to_string(), format.format)
        }
        Format::Name | Format::Table | Format::Wide if is_done => VIEW.print_items(&items, format),
        Format::Name | Format::Table | Format::Wide => PLAN_VIEW.print_items(&items, format),
    }
}

/// The view of a plan: where each job runs now, and what the command would do.
const PLAN_VIEW: View = View { name: "job", headers: &["JOB", "RUNS NOW", "RESULT"], row: planned_row };
const VIEW: View = View { name: "job", headers: &["JOB", "SEAM", "RUNS", "RESULT"], row };

fn row(outcome: &Value, _: Timestamp) -> Vec<String> {
    ["job", "seam", "runs", "result"].iter().map(|key| text_of(&outcome[*key])).collect()
}

fn planned_row(outcome: &Value, _: Timestamp) -> Vec<String> {
    ["job", "runs", "result"].iter().map(|key| text_of(&outcome[*key])).collect()
}

/// Describes what the command would do.
fn plan_outcomes(direction: Direction, switch: &Switchover<'_>, refusals: &BTreeMap<String, String>) -> Outcomes {
    let mut outcomes = Outcomes::new();
    for job in &switch.jobs {
        let status = switch.xxl_status.get(&job.number);
        let is_running = status.is_some_and(|status| status.is_running);
        let next_fire = instant_of_millis(status.map_or(0, |status| status.next_ms));
        let mut result = match (refusals.get(&job.name), direction) {
            (Some(reason), _) => format!("would be refused: {reason}"),
            (None, Direction::Promote) if !job.is_shadow && !is_running => "was switched before".to_owned(),
            (None, Direction::Demote) if job.is_shadow && (is_running || !job.is_firing()) => {
                "was switched before".to_owned()
            }
            (None, Direction::Promote) if job.is_follower() => "would run here after its parents".to_owned(),
            (None, Direction::Demote) if job.is_follower() => "would run in XXL-JOB after its parents".to_owned(),
            (None, Direction::Promote) if is_running => {
                format!(
                    "runs in XXL-JOB, and has its fires before {next_fire} there: would run here from its next one on"
                )
            }
            (None, Direction::Promote) if !job.is_enabled => "would be switched, and stay paused here".to_owned(),
            (None, Direction::Promote) if !job.has_schedule => {
                "has no schedule: would run here when it is triggered".to_owned()
            }
            (None, Direction::Promote) => "does not run in XXL-JOB: would run here only".to_owned(),
            (None, Direction::Demote) if !job.is_enabled => {
                "would be switched, and start nothing in XXL-JOB".to_owned()
            }
            (None, Direction::Demote) if !job.has_schedule => {
                "would run in XXL-JOB when it is triggered there".to_owned()
            }
            (None, Direction::Demote) if is_running => "runs in XXL-JOB: would run there only".to_owned(),
            (None, Direction::Demote) if switch.was_stopped_in_xxl_job(job) => {
                "does not run here, and would stay stopped in XXL-JOB".to_owned()
            }
            (None, Direction::Demote) => {
                "does not run in XXL-JOB: would be started there, and run there only".to_owned()
            }
        };
        let is_to_switch = direction == Direction::Promote && job.is_shadow && !refusals.contains_key(&job.name);
        if is_to_switch && glue::is_script_handler(&job.handler) {
            result.push_str("; its script needs an executor in Java: check that one is online");
        }
        outcomes.insert(job.name.clone(), Outcome::unchanged(switch.run_location(job), result));
    }
    outcomes
}
