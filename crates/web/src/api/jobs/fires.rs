//! The fires of a job with their outcomes, the reason why a job did or did not run, and the versions of its definition.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use axum::response::Response;
use http::StatusCode;
use rondel_core::access::Permission;
use rondel_core::access::Permission::View;
use rondel_core::disclosure::for_viewer;
use rondel_core::fires::{self, Entry, FireVerdict, Range};
use rondel_core::reason::ReasonDetail;
use rondel_core::{JobId, JobSpec, Reason, RunId, Timestamp};
use rondel_store::catalog::VersionRecord;
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;

use super::find::find;
use crate::answer::json_response;
use crate::api::page::Page;
use crate::api::page_builder::PageBuilder;
use crate::api::schedules::Sentence;
use crate::call::Call;
use crate::cursor::{Listing, invalid_cursor_problem};
use crate::incident_of_fire::{self, IncidentRef};
use crate::openapi::Doc;
use crate::parameter::Parameter;
use crate::path::{self, Named};
use crate::problem::{Code, Complaint, Problem};
use crate::query::{FromQuery, Reader};
use crate::routes::Routes;

const DAY: Duration = Duration::from_secs(24 * 3600);
const LIMIT_DEFAULT: u32 = 200;
const LIMIT_MAX: u32 = 1_000;
const VERSION_LIMIT_DEFAULT: u32 = 20;
/// Maximum number of versions on a page. It is small, since a version can have parameters and a calendar of some hundred kilobytes.
const VERSION_LIMIT_MAX: u32 = 50;
/// Maximum number of versions read to find those before a given one: many may have been saved at the same instant.
const READ_VERSION_COUNT_MAX: usize = 1_000;

/// The range of a list of fires.
#[derive(Debug)]
pub(super) struct FiresQuery {
    from: Option<Timestamp>,
    to: Option<Timestamp>,
    limit: u32,
    cursor: Option<String>,
}

impl FromQuery for FiresQuery {
    fn from_query(reader: &mut Reader) -> Self {
        Self {
            from: reader.parsed(
                Parameter::instant("from").about("The beginning of the range; a day ago if both ends are left out."),
                parse_instant,
            ),
            to: reader.parsed(
                Parameter::instant("to").about(
                    "The end of the range, at most 366 days after `from`. If one end is left out, the range is two days long.",
                ),
                parse_instant,
            ),
            limit: reader.limit(LIMIT_DEFAULT, LIMIT_MAX),
            cursor: reader.single(Parameter::cursor()),
        }
    }
}

/// The query parameters of a "why" question: the instant or the run that it is about.
#[derive(Debug)]
pub(super) struct WhyQuery {
    at: Option<Timestamp>,
    run: Option<RunId>,
}

impl FromQuery for WhyQuery {
    fn from_query(reader: &mut Reader) -> Self {
        Self {
            at: reader.parsed(
                Parameter::instant("at").about(
                    "The instant to explain; if left out, the job's open run, its last fire or its next one is explained.",
                ),
                parse_instant,
            ),
            run: reader.parsed(
                Parameter::id("run").about("The run of the job to explain, instead of an instant."),
                parse_run_id,
            ),
        }
    }
}

fn parse_run_id(text: &str) -> Result<RunId, String> {
    let id = text.parse::<RunId>().ok().filter(|id| id.get() > 0);
    id.ok_or_else(|| format!("{text:?} is not the id of a run"))
}

/// The query parameters for the list of versions.
#[derive(Debug)]
pub(super) struct VersionsQuery {
    limit: u32,
    cursor: Option<String>,
}

impl FromQuery for VersionsQuery {
    fn from_query(reader: &mut Reader) -> Self {
        Self {
            limit: reader.limit(VERSION_LIMIT_DEFAULT, VERSION_LIMIT_MAX),
            cursor: reader.single(Parameter::cursor()),
        }
    }
}

/// Parses an instant of the years 1970 to 2199.
pub(crate) fn parse_instant(text: &str) -> Result<Timestamp, String> {
    let instant: Timestamp = text.parse().map_err(|error: rondel_core::TimeError| error.to_string())?;
    let latest = Timestamp::from_secs(7_258_118_400);
    if (Timestamp::EPOCH..latest).contains(&instant) {
        Ok(instant)
    } else {
        Err(format!("{instant} is outside the years 1970 to 2199"))
    }
}

/// A fire, or several in a row with the same verdict.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Fire")]
pub(super) struct EntryJson {
    fire_at: Timestamp,
    /// The last of several fires: a long stretch with one verdict is one entry.
    #[serde(skip_serializing_if = "Option::is_none")]
    last_fire_at: Option<Timestamp>,
    count: u64,
    /// The status of the fire's run or, without a run, why there is none.
    #[schemars(extend("enum" = FireVerdict::codes().collect::<Vec<_>>()))]
    verdict: &'static str,
    run: Option<RunId>,
    reason: Option<Reason>,
    /// The parameters of the reason, and what the run waits or waited for.
    #[serde(skip_serializing_if = "Option::is_none")]
    detail: Option<Arc<ReasonDetail>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    calendar: Option<CalendarJson>,
    /// False for a run whose instant was not planned by the definition of that time.
    is_planned: bool,
}

/// What a calendar did to a fire.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "FireCalendar")]
struct CalendarJson {
    name: String,
    day: Option<String>,
    moved_to: Option<Timestamp>,
}

impl From<Entry> for EntryJson {
    fn from(entry: Entry) -> Self {
        let verdict = entry.verdict.code();
        let (mut run, mut reason, mut detail, mut calendar, mut is_planned) = (None, None, None, None, true);
        match entry.verdict {
            FireVerdict::Row { run: id, reason: why, detail: reason_detail, is_planned: planned, .. } => {
                (run, reason, detail, is_planned) = (Some(id), why, reason_detail, planned);
            }
            FireVerdict::Span { run: id, reason: why, detail: reason_detail } => {
                (run, reason, detail) = (Some(id), why, reason_detail)
            }
            FireVerdict::Calendar { calendar: name, day, moved_to } => {
                calendar = Some(CalendarJson { name, day, moved_to });
            }
            FireVerdict::Maintenance { .. }
            | FireVerdict::Paused
            | FireVerdict::Undecided
            | FireVerdict::Planned
            | FireVerdict::Removed
            | FireVerdict::Missing => {}
        }
        let last_fire_at = (entry.last != entry.first).then_some(entry.last);
        Self {
            fire_at: entry.first,
            last_fire_at,
            count: entry.count,
            verdict,
            run,
            reason,
            detail,
            calendar,
            is_planned,
        }
    }
}

pub(super) fn routes() -> Routes {
    Routes::new()
        .get(
            "/api/v1/jobs/{name}/fires",
            View,
            list,
            Doc::new(
                "List the outcomes of a job's fires",
                "Each planned fire of the range in order, with the run or the reason why there is none. A long stretch with one verdict is one item.",
            )
            .json::<Page<EntryJson>>(200, "A page of fires."),
        )
        .get(
            "/api/v1/jobs/{name}/why",
            View,
            explain,
            Doc::new(
                "Explain why a job ran or did not run",
                "The answer as a sentence, the fire if one was planned, and the fires before and after it.",
            )
            .json::<WhyJson>(200, "The answer."),
        )
        .get(
            "/api/v1/jobs/{name}/versions",
            View,
            list_versions,
            Doc::new("List a job's versions", "Its definitions, newest first; `limit` is at most 50.")
                .json::<Page<VersionJson>>(200, "A page of versions."),
        )
}

async fn list(call: Call<FiresQuery>, Named(name, ..): Named<path::Job>) -> Result<Response, Problem> {
    // Reads the job before its fires: a fire that is claimed in between has a run and is listed with it.
    let record = find(&call, &name).await?;
    let query = &call.query;
    let listing = Listing::new("fires", (record.id, query.from, query.to));
    let (from, to) = match &query.cursor {
        Some(cursor) => {
            let (from, to) = listing.position::<(i64, i64)>(cursor)?;
            let (from, to) = (Timestamp::from_millis(from), Timestamp::from_millis(to));
            // A caller can compose a cursor, so the range in it is limited like that of a query.
            if parse_instant(&from.to_string()).is_err() || to.since(from) > fires::RANGE_MAX {
                return Err(invalid_cursor_problem("does not hold a range of fires"));
            }
            (from, to)
        }
        None => query_range(query, call.engine().now())?,
    };
    let limit = usize::try_from(query.limit).unwrap_or(usize::MAX);
    let history = call.engine().fires(&record, Range { from, to, limit }, call.visible_apps().as_deref()).await?;
    let cursor = |next: Timestamp| listing.cursor((next.as_millis(), to.as_millis()));
    let mut page = PageBuilder::new(query.limit);
    for entry in history.entries {
        let first_fire = entry.first;
        if !page.add(&EntryJson::from(entry))? {
            return page.answer(Some(cursor(first_fire)));
        }
    }
    page.answer(history.next.filter(|next| *next <= to).map(cursor))
}

/// The range of a query. The default is one day before and after now. If only one end is given, the range is two days long.
fn query_range(query: &FiresQuery, now: Timestamp) -> Result<(Timestamp, Timestamp), Problem> {
    let (from, to) = match (query.from, query.to) {
        (None, None) => (now - DAY, now + DAY),
        (Some(from), None) => (from, from + 2 * DAY),
        (None, Some(to)) => (to.saturating_sub(2 * DAY).max(Timestamp::EPOCH), to),
        (Some(from), Some(to)) => (from, to),
    };
    let detail = if to < from {
        format!("{to} is before from, which is {from}")
    } else if to.since(from) > fires::RANGE_MAX {
        format!("{to} is more than 366 days after from, which is {from}")
    } else {
        return Ok((from, to));
    };
    Err(Problem::of_complaints(Code::InvalidQuery, vec![Complaint::query("to", "invalid_value", detail)]))
}

/// Why a job ran or did not run.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Why")]
pub(super) struct WhyJson {
    /// The instant that the answer is about.
    at: Timestamp,
    /// The sentence in each language.
    answer: Sentence,
    fire: Option<EntryJson>,
    previous_fire_at: Option<Timestamp>,
    next_fire_at: Option<Timestamp>,
    /// The newest incident of the job that the fire is part of.
    incident: Option<IncidentRef>,
}

async fn explain(call: Call<WhyQuery>, Named(name, ..): Named<path::Job>) -> Result<Response, Problem> {
    let record = find(&call, &name).await?;
    let visible_apps = call.visible_apps();
    let answer = match (call.query.at, call.query.run) {
        (Some(_), Some(_)) => return Err(invalid_run_problem("is given together with at")),
        (Some(at), None) => call.engine().why(&record, at, visible_apps.as_deref()).await?,
        (None, Some(id)) => {
            let shown_run = call.engine().store().runs(&[id]).await?.pop();
            let shown_run = shown_run.filter(|run| run.job == record.id && call.may_view(run.app));
            let run = shown_run.ok_or_else(|| {
                invalid_run_problem(format!(
                    "run {id} does not belong to the job that is named {} now",
                    record.spec.name
                ))
            })?;
            call.engine().why_run(&record, &run, visible_apps.as_deref()).await?
        }
        (None, None) => call.engine().why_now(&record, visible_apps.as_deref()).await?,
    };
    let body = WhyJson {
        incident: incident_of_fire::incident_of_answer(&call, record.id, &answer).await?,
        at: answer.at,
        answer: Sentence { en: answer.en, zh: answer.zh },
        fire: answer.entry.map(EntryJson::from),
        previous_fire_at: answer.before,
        next_fire_at: answer.after,
    };
    json_response(StatusCode::OK, &body)
}

fn invalid_run_problem(reason: impl Into<String>) -> Problem {
    Problem::of_complaints(Code::InvalidQuery, vec![Complaint::query("run", "invalid_value", reason)])
}

/// A definition that a job has or had.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "JobVersion")]
pub(crate) struct VersionJson {
    pub(crate) version: i64,
    pub(crate) author: String,
    /// Since when this definition applies.
    pub(crate) created_at: Timestamp,
    #[schemars(with = "JobSpec")]
    pub(crate) definition: Value,
}

/// The versions before `before_version`, the newest first. Versions that the caller may not see are left out.
pub(crate) async fn versions_before<Q>(
    call: &Call<Q>,
    job: JobId,
    before_version: i64,
    count: usize,
) -> Result<Vec<VersionJson>, Problem> {
    let to = match before_version {
        i64::MAX => Timestamp::MAX,
        _ => call.engine().now(),
    };
    let records = older_versions(call, job, (before_version, to), count).await?;
    Ok(versions_for_caller(call, records).await?.into_iter().filter_map(|(_, version)| version).collect())
}

async fn list_versions(call: Call<VersionsQuery>, Named(name, ..): Named<path::Job>) -> Result<Response, Problem> {
    let record = find(&call, &name).await?;
    let listing = Listing::new("versions", record.id);
    // The last version of the previous page, and when it was saved.
    let after_version =
        call.query.cursor.as_deref().map(|cursor| listing.position::<(i64, i64)>(cursor)).transpose()?;
    let (before_version, to) =
        after_version.map_or((i64::MAX, Timestamp::MAX), |(version, at)| (version, Timestamp::from_millis(at)));
    let (mut page, mut last_position) = (PageBuilder::new(call.query.limit), (before_version, to));
    let mut is_first = call.query.cursor.is_none();
    while let Some(count) = page.next_row_count() {
        let count = usize::try_from(count).unwrap_or(usize::MAX);
        let mut records = older_versions(&call, record.id, last_position, count + 1).await?;
        let has_more = records.len() > count;
        records.truncate(count);
        let versions = versions_for_caller(&call, records).await?;
        for (position, version) in versions {
            if let Some(version) = version
                && !page.add(&version)?
            {
                return page
                    .answer((!is_first).then(|| listing.cursor((last_position.0, last_position.1.as_millis()))));
            }
            (last_position, is_first) = (position, false);
        }
        if !has_more {
            return page.answer(None);
        }
    }
    page.answer(Some(listing.cursor((last_position.0, last_position.1.as_millis()))))
}

/// The newest `count` versions before the version `before_version`, the newest first. The store selects versions by when they were saved, so it
/// can also return the version `before_version` and later ones. If these leave too few, more versions are read.
async fn older_versions<Q>(
    call: &Call<Q>,
    job: JobId,
    (before_version, to): (i64, Timestamp),
    count: usize,
) -> Result<Vec<VersionRecord>, Problem> {
    let mut read_count = count + 1;
    loop {
        let limit = u32::try_from(read_count).unwrap_or(u32::MAX);
        let mut records = call.engine().store().versions(job, Timestamp::EPOCH, to, limit).await?;
        let is_last_page = records.len() < read_count;
        records.retain(|version| version.version < before_version);
        if is_last_page || records.len() >= count || read_count >= READ_VERSION_COUNT_MAX {
            records.truncate(count);
            return Ok(records);
        }
        read_count *= 2;
    }
}

/// Versions with their positions in the list; `None` for versions that the caller may not see. A version that was saved while the job
/// belonged to another app is shown to callers who may see that app. Old versions may contain secrets that were removed later, so likely
/// secrets are shown only to callers who may edit the app.
async fn versions_for_caller<Q>(
    call: &Call<Q>,
    records: Vec<VersionRecord>,
) -> Result<Vec<((i64, Timestamp), Option<VersionJson>)>, Problem> {
    let apps: BTreeSet<String> = records.iter().map(|version| version.spec.app.clone()).collect();
    let (hidden_apps, uneditable_apps) =
        (call.hidden_apps(apps.clone()).await?, call.apps_without(Permission::Edit, apps).await?);
    let version_for_caller = |version: VersionRecord| {
        let position = (version.version, version.created_at);
        if hidden_apps.contains(&version.spec.app) {
            return (position, None);
        }
        let definition = serde_json::to_value(&version.spec).unwrap_or_default();
        let definition = if uneditable_apps.contains(&version.spec.app) { for_viewer(definition) } else { definition };
        let VersionRecord { version, author, created_at, .. } = version;
        (position, Some(VersionJson { version, author, created_at, definition }))
    };
    Ok(records.into_iter().map(version_for_caller).collect())
}
