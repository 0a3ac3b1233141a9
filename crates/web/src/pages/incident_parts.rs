//! The open incidents of pages, and two parts of an incident's page: its messages, and the runs in the time in which the job should have
//! succeeded.

use std::time::Duration;

use rondel_core::JobId;
use rondel_core::alert::{Condition, SubjectKind};
use rondel_store::alerts::{IncidentQuery, IncidentRecord};
use rondel_store::rollups::ChartRun;

use super::channels::notice_name;
use super::moment::Moment;
use super::sentences::localized;
use super::shell::Page;
use crate::call::Call;
use crate::cursor::cut_to_page;
use crate::problem::Problem;
use crate::redirect::query_pair;

/// Maximum number of open incidents on a page.
pub(super) const OPEN_INCIDENT_COUNT: u32 = 100;
/// How many messages the page shows.
const MESSAGE_COUNT: u32 = 30;
/// How many runs the page shows.
const RUN_COUNT: u32 = 10;
/// How far back runs are searched for an incident about a missed deadline.
const DAY: Duration = Duration::from_secs(24 * 3_600);
/// How far back runs are searched at most, for an incident about a job that has had no success for some time.
const LOOK_BACK_MAX: Duration = Duration::from_secs(31 * 24 * 3_600);

/// A message about an incident.
pub(super) struct MessageRow {
    pub(super) channel: String,
    pub(super) kind: &'static str,
    /// The CSS class and the word for its state.
    pub(super) class: &'static str,
    pub(super) word: &'static str,
    pub(super) try_count: i32,
    pub(super) written_at: Moment,
    /// When it is tried next, or was tried last.
    pub(super) at: Moment,
    pub(super) error: Option<String>,
}

/// The runs in the time in which the job should have succeeded.
pub(super) struct RunsInWindow {
    pub(super) runs: Vec<RunInWindow>,
    /// The URL of the fires in that time, which also shows fires without a run.
    pub(super) fires_url: String,
}

/// A run in the time in which the job should have succeeded.
pub(super) struct RunInWindow {
    pub(super) id: String,
    pub(super) fire_at: Moment,
    pub(super) class: &'static str,
    pub(super) word: &'static str,
}

/// Selects as many open incidents as a page shows, and one more, by which the page detects that there are others.
pub(super) fn open_incident_query<'a, Q>(call: &Call<Q>, within: Option<&'a [String]>) -> IncidentQuery<'a> {
    let namespace = call.namespace.id;
    IncidentQuery { namespace, is_open: Some(true), job: None, before: None, within, limit: OPEN_INCIDENT_COUNT + 1 }
}

/// Open incidents, except those that the page of a group shows. Callers who see only some apps see no groups, so they get every incident.
pub(super) async fn open_incidents<Q>(
    call: &Call<Q>,
    query: IncidentQuery<'_>,
) -> Result<Vec<IncidentRecord>, Problem> {
    let store = call.engine().store();
    Ok(if query.within.is_none() { store.ungrouped_incidents(query).await? } else { store.incidents(query).await? })
}

/// The number of open incidents, limited to as many as their page shows, and whether there are more.
pub(super) async fn open_incident_count<Q>(call: &Call<Q>) -> Result<(usize, bool), Problem> {
    let app_names = call.visible_app_names().await?;
    let query = open_incident_query(call, app_names.as_deref());
    let mut records = Problem::unless_unreadable(open_incidents(call, query).await)?;
    let has_more = cut_to_page(&mut records, OPEN_INCIDENT_COUNT).is_some();
    Ok((records.len(), has_more))
}

/// The latest messages about an incident.
pub(super) async fn messages<Q>(page: &Page<Q>, record: &IncidentRecord) -> Result<Vec<MessageRow>, Problem> {
    let (t, now) = (page.t, page.engine().now());
    let messages = page.engine().store().incident_messages(record.incident.id, MESSAGE_COUNT).await?;
    let row = |message: rondel_store::channels::IncidentMessage| {
        let (class, word) = match message.state.as_str() {
            "sent" => ("succeeded", t.channels_sent),
            "given_up" => ("failed", t.channels_given_up),
            _ if message.try_count > 0 => ("waiting", t.channels_retry),
            _ => ("waiting", t.channels_waits),
        };
        MessageRow {
            channel: message.channel,
            kind: notice_name(message.kind, t),
            class,
            word,
            try_count: message.try_count,
            written_at: Moment::new(message.created_at, now, t),
            at: Moment::new(message.at, now, t),
            error: message.error.map(|error| localized(t.lang(), &error).into_owned()),
        }
    };
    Ok(messages.into_iter().map(row).collect())
}

/// The runs in the time in which the job should have succeeded; `None` for incidents of other kinds.
pub(super) async fn runs_in_window<Q>(
    page: &Page<Q>,
    record: &IncidentRecord,
) -> Result<Option<RunsInWindow>, Problem> {
    let (incident, t, now) = (&record.incident, page.t, page.engine().now());
    let window_length = match &record.spec.condition {
        Condition::NotSucceededBy { .. } => DAY,
        Condition::NoSuccessFor { length } => (*length).min(LOOK_BACK_MAX),
        _ => return Ok(None),
    };
    if incident.subject.kind != SubjectKind::Job {
        return Ok(None);
    }
    let window_end = incident.resolved_at.unwrap_or(now);
    let from = incident.started_at.saturating_sub(window_length);
    let job = JobId::new(incident.subject.id);
    let chart_runs = page.engine().store().chart_runs(&[job], from, window_end, RUN_COUNT).await?;
    let row = |run: ChartRun| RunInWindow {
        id: run.id.to_string(),
        fire_at: Moment::new(run.fire_at, now, t),
        class: run.status.as_str(),
        word: t.status(run.status),
    };
    let fires_url = format!("/jobs/{}/fires", incident.subject.name);
    let fires_url = match incident.resolved_at {
        Some(resolved_at) => format!("{fires_url}?{}", query_pair("to", &resolved_at.to_string())),
        None => fires_url,
    };
    let visible_runs = chart_runs.into_iter().filter(|run| page.call.may_view(run.app));
    Ok(Some(RunsInWindow { runs: visible_runs.map(row).collect(), fires_url }))
}
