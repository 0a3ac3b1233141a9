//! Finds the incident to which a fire belongs, for a link from the fire to its alert.

use rondel_core::alert::IncidentState;
use rondel_core::alert::judge::{self, UnsuccessfulFire};
use rondel_core::fires::{FireVerdict, Why};
use rondel_core::{IncidentId, JobId, Run, RunId, RunStatus};
use rondel_store::alerts::IncidentQuery;
use schemars::JsonSchema;
use serde::Serialize;

use crate::call::Call;
use crate::problem::Problem;

/// How many of the newest incidents of a job are searched.
const SEARCHED_INCIDENT_COUNT: u32 = 50;

/// An incident that a fire is part of.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[schemars(rename = "PartOfIncident")]
pub(crate) struct IncidentRef {
    pub(crate) id: IncidentId,
    /// The rule, or `expect:` and the name of the job's expectation.
    pub(crate) rule: String,
    pub(crate) standing: IncidentState,
}

/// The newest incident to which a run belongs; `None` if there is none, or if the run succeeded or was cancelled.
pub(crate) async fn incident_of_run<Q>(call: &Call<Q>, run: &Run) -> Result<Option<IncidentRef>, Problem> {
    match run.status {
        RunStatus::Succeeded | RunStatus::Cancelled => Ok(None),
        status => {
            let is_failure = status != RunStatus::Skipped;
            let fire = UnsuccessfulFire { at: run.fire_at, is_failure, reason: run.reason };
            find(call, run.job, (status.is_terminal().then_some(fire), Some(run.id))).await
        }
    }
}

/// The newest incident to which the fire of a "why" answer belongs. The fire may have no run.
pub(crate) async fn incident_of_answer<Q>(
    call: &Call<Q>,
    job: JobId,
    why: &Why,
) -> Result<Option<IncidentRef>, Problem> {
    let skipped_fire = |reason| UnsuccessfulFire { at: why.at, is_failure: false, reason };
    let (fire, run) = match why.entry.as_ref().map(|entry| &entry.verdict) {
        Some(FireVerdict::Row { status: RunStatus::Succeeded | RunStatus::Cancelled, .. }) => return Ok(None),
        Some(FireVerdict::Row { run, status, reason, .. }) => {
            let fire = UnsuccessfulFire { is_failure: *status != RunStatus::Skipped, ..skipped_fire(*reason) };
            (status.is_terminal().then_some(fire), Some(*run))
        }
        Some(FireVerdict::Span { run, reason, .. }) => (Some(skipped_fire(*reason)), Some(*run)),
        Some(FireVerdict::Paused | FireVerdict::Undecided | FireVerdict::Missing) => (Some(skipped_fire(None)), None),
        None
        | Some(
            FireVerdict::Calendar { .. }
            | FireVerdict::Maintenance { .. }
            | FireVerdict::Planned
            | FireVerdict::Removed,
        ) => {
            return Ok(None);
        }
    };
    find(call, job, (fire, run)).await
}

async fn find<Q>(
    call: &Call<Q>,
    job: JobId,
    fire_and_run: (Option<UnsuccessfulFire>, Option<RunId>),
) -> Result<Option<IncidentRef>, Problem> {
    let namespace = call.namespace.id;
    // An incident from the time when the job belonged to another app stays hidden from callers who may not see that app.
    let visible_app_names = call.visible_app_names().await?;
    let visible_app_names = visible_app_names.as_deref();
    let query = IncidentQuery {
        namespace,
        is_open: None,
        job: Some(job),
        before: None,
        within: visible_app_names,
        limit: SEARCHED_INCIDENT_COUNT,
    };
    let incidents = Problem::unless_unreadable(call.engine().store().incidents(query).await)?;
    let incident = incidents.into_iter().find(|record| judge::is_part_of(&record.spec, &record.incident, fire_and_run));
    Ok(incident.map(|record| IncidentRef {
        id: record.incident.id,
        rule: record.spec.name,
        standing: record.incident.state,
    }))
}
