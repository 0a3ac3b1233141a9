//! The neighbours of a run: the previous and the next fire of its job, and a comparison with the last run that succeeded.

use std::cmp::Reverse;
use std::time::Duration;

use rondel_core::{Run, RunId, RunStatus, Timestamp};
use rondel_store::ledger::RunQuery;
use serde_json::Value;

use super::job::pretty_json;
use super::moment::{Moment, length_text};
use super::shell::Page;
use super::texts::Texts;
use crate::problem::Problem;
use crate::shown_runs::run_params;

/// How many earlier runs are searched for the last one that succeeded.
const SEARCHED_RUN_COUNT: u32 = 100;
/// How many earlier broadcasts are read if the shards of one broadcast fill a page of runs.
const BROADCAST_COUNT: u32 = 10;

/// The neighbours of a run, and its comparison with a successful one.
#[derive(Default)]
pub(super) struct Neighbours {
    pub(super) previous_fire: Option<Neighbour>,
    pub(super) next_fire: Option<Neighbour>,
    pub(super) comparison: Option<Comparison>,
}

/// The previous or the next fire of a run's job.
pub(super) struct Neighbour {
    pub(super) id: String,
    pub(super) at: Moment,
}

/// The comparison of a run with the last one that succeeded.
pub(super) struct Comparison {
    /// The run that succeeded.
    pub(super) id: String,
    pub(super) at: Moment,
    /// The facts that differ.
    pub(super) differences: Vec<Difference>,
    /// The names of the facts that are the same, in one line.
    pub(super) same_names: String,
    /// The parameters of the two runs, if they differ.
    pub(super) params: Option<(String, String)>,
}

/// A fact that differs between the two runs.
pub(super) struct Difference {
    pub(super) name: &'static str,
    /// The value in the run that the page shows.
    pub(super) own_value: String,
    /// The value in the run that succeeded.
    pub(super) success_value: String,
}

impl Neighbours {
    /// Reads the neighbours of a run. A shard has none; they are shown on the page of its broadcast.
    pub(super) async fn read<Q>(page: &Page<Q>, run: &Run) -> Result<Self, Problem> {
        if run.is_shard() {
            return Ok(Self::default());
        }
        let (store, now) = (page.engine().store(), page.engine().now());
        let query = RunQuery {
            job: Some(run.job),
            within: page.call.visible_apps(),
            after: Some(run.id),
            limit: SEARCHED_RUN_COUNT,
            ..RunQuery::default()
        };
        let mut earlier_runs = store.list_runs(run.namespace, &query).await?;
        let is_full = earlier_runs.len() >= usize::try_from(SEARCHED_RUN_COUNT).unwrap_or(usize::MAX);
        earlier_runs.retain(|earlier_run| !earlier_run.is_shard() && earlier_run.id != run.id);
        if earlier_runs.is_empty() && is_full {
            earlier_runs = broadcasts_before(page, run).await?;
        }
        page.call.conceal(&mut earlier_runs).await?;
        let next_run = store.next_fire_after(run).await?.filter(|next_run| page.call.may_view(next_run.app));
        let neighbour = |other_run: &Run| Neighbour {
            id: other_run.id.to_string(),
            at: Moment::new(other_run.fire_at, now, page.t),
        };
        let last_success = earlier_runs.iter().find(|earlier_run| earlier_run.status == RunStatus::Succeeded).cloned();
        let comparison = match last_success.filter(|_| run.status.is_terminal()) {
            Some(last_success) => Some(Comparison::read(page, run, last_success.for_reader()).await?),
            None => None,
        };
        Ok(Self {
            previous_fire: earlier_runs.first().map(neighbour),
            next_fire: next_run.as_ref().map(neighbour),
            comparison,
        })
    }
}

/// The broadcasts of a job before one of its runs, the newest first. Used if the shards of a single broadcast fill a page of runs.
async fn broadcasts_before<Q>(page: &Page<Q>, run: &Run) -> Result<Vec<Run>, Problem> {
    let store = page.engine().store();
    let after_fire = run.fire_at + Duration::from_millis(1);
    let chart_runs = store.chart_runs(&[run.job], Timestamp::EPOCH, after_fire, BROADCAST_COUNT).await?;
    let ids: Vec<RunId> = chart_runs.iter().filter(|run| page.call.may_view(run.app)).map(|run| run.id).collect();
    let mut runs = store.runs(&ids).await?;
    runs.retain(|broadcast| broadcast.is_root() && (broadcast.fire_at, broadcast.cause) < (run.fire_at, run.cause));
    runs.sort_by_key(|broadcast| Reverse((broadcast.fire_at, broadcast.cause)));
    Ok(runs)
}

impl Comparison {
    async fn read<Q>(page: &Page<Q>, run: &Run, last_success: Run) -> Result<Self, Problem> {
        let (t, now) = (page.t, page.engine().now());
        let params_of_runs = (run_params(&page.call, run).await?, run_params(&page.call, &last_success).await?);
        let has_same_params = parse_json(params_of_runs.0.as_deref()) == parse_json(params_of_runs.1.as_deref());
        let facts = [
            Difference {
                name: t.run_version,
                own_value: format!("v{}", run.job_version),
                success_value: format!("v{}", last_success.job_version),
            },
            Difference {
                name: t.col_executor,
                own_value: executor_text(run),
                success_value: executor_text(&last_success),
            },
            Difference {
                name: t.run_attempts,
                own_value: run.attempt.to_string(),
                success_value: last_success.attempt.to_string(),
            },
        ];
        let (mut differences, same_names): (Vec<_>, Vec<_>) =
            facts.into_iter().partition(|fact| fact.own_value != fact.success_value);
        let mut same_names: Vec<&str> = same_names.iter().map(|fact| fact.name).collect();
        if has_same_params {
            same_names.push(t.run_params);
        }
        differences.push(Difference {
            name: t.col_duration,
            own_value: run_length_text(run, t),
            success_value: run_length_text(&last_success, t),
        });
        let readable_text = |text: Option<String>| text.map_or_else(|| "–".to_owned(), |text| pretty_text(&text));
        Ok(Self {
            id: last_success.id.to_string(),
            at: Moment::new(last_success.fire_at, now, t),
            differences,
            same_names: same_names.join(t.list_comma),
            params: (!has_same_params).then(|| (readable_text(params_of_runs.0), readable_text(params_of_runs.1))),
        })
    }
}

fn parse_json(text: Option<&str>) -> Value {
    text.and_then(|text| serde_json::from_str(text).ok()).unwrap_or(Value::Null)
}

fn pretty_text(text: &str) -> String {
    serde_json::from_str::<Value>(text).map_or_else(|_| text.to_owned(), |value| pretty_json(&value))
}

fn executor_text(run: &Run) -> String {
    run.executor.clone().unwrap_or_else(|| "–".to_owned())
}

fn run_length_text(run: &Run, t: &Texts) -> String {
    let run_length = |start: Timestamp| run.finished_at.map(|end| length_text(end.since(start), t));
    run.started_at.and_then(run_length).unwrap_or_else(|| "–".to_owned())
}
