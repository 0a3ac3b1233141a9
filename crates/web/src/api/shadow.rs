//! Compares the fires observed in another scheduler with those that jobs in shadow mode would have had.

use std::collections::BTreeMap;
use std::time::Duration;

use axum::response::Response;
use http::StatusCode;
use rondel_admin::shadow::{DUE_DISTANCE_MAX, ShadowReport, ShadowRequest, ShadowRow, report};
use rondel_core::access::Permission::{Operate, View};
use rondel_core::shadow::compare::{Comparison, OldFire, OldOutcome, Range};
use rondel_core::time::parse_duration;
use rondel_core::{JobId, Timestamp, name};
use rondel_store::shadow::{SHADOW_BATCH_MAX, SHADOW_EXECUTOR_LEN_MAX, SHADOW_SOURCE_LEN_MAX, ShadowFire};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::jobs::{find, parse_instant};
use crate::answer::json_response;
use crate::body::{JsonBody, refuse_value};
use crate::call::{Call, forbidden_problem, quoted_input};
use crate::openapi::Doc;
use crate::parameter::Parameter;
use crate::problem::{Code, Complaint, Problem};
use crate::query::{FromQuery, Reader};
use crate::routes::Routes;

/// The source of fires if the request names none.
pub(crate) const SOURCE_DEFAULT: &str = "xxl-job";
const DAY: Duration = Duration::from_secs(24 * 3_600);
/// Maximum range of a report, in days.
const DAYS_MAX: u32 = 31;
const JOB_COUNT_DEFAULT: u32 = 50;
const JOB_COUNT_MAX: u32 = 200;
/// The default of `tolerance`: with a delay up to this, a fire of the other scheduler still matches a planned fire.
pub(crate) const TOLERANCE_DEFAULT: Duration = Duration::from_secs(30);
/// The default of `late`: a fire with at least this delay counts as late.
pub(crate) const LATE_DEFAULT: Duration = Duration::from_secs(3);
/// Maximum of `tolerance` and of `late`.
const DELAY_MAX: Duration = Duration::from_secs(3_600);

/// Observed fires.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "ShadowFires")]
struct NewFires {
    /// The other scheduler; `xxl-job` if left out.
    #[serde(default = "default_source")]
    #[schemars(length(max = 64))]
    source: String,
    /// At most 1,000.
    #[schemars(length(max = 1000))]
    fires: Vec<NewFire>,
}

fn default_source() -> String {
    SOURCE_DEFAULT.to_owned()
}

/// An observed fire.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "ShadowFire")]
struct NewFire {
    /// The job in Rondel.
    job: String,
    /// The scheduler's own id of the fire. A fire with a known id is ignored.
    #[schemars(range(min = 0))]
    source_id: i64,
    /// The planned instant, if it is known.
    #[serde(default)]
    due_at: Option<Timestamp>,
    /// When it was sent.
    started_at: Timestamp,
    /// The executor; empty if no executor had it.
    #[serde(default)]
    #[schemars(length(max = 255))]
    executor: String,
    /// How it ended, as far as known; `started` if left out.
    #[serde(default = "default_outcome")]
    outcome: OldOutcome,
}

const fn default_outcome() -> OldOutcome {
    OldOutcome::Started
}

/// What was stored.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "ShadowStored")]
struct StoredJson {
    /// Fires that were not known before.
    stored: u64,
}

/// The observed range of a scheduler.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "ShadowSource")]
struct SourceJson {
    source: String,
    /// When the first observed fire was sent; null if none was observed.
    first_at: Option<Timestamp>,
    /// When the last observed fire was sent.
    last_at: Option<Timestamp>,
    /// The highest `source_id`.
    last_id: Option<i64>,
}

#[derive(Debug)]
pub(super) struct SourceQuery {
    source: String,
}

impl FromQuery for SourceQuery {
    fn from_query(reader: &mut Reader) -> Self {
        Self { source: source_parameter(reader) }
    }
}

#[derive(Clone, Debug)]
pub(crate) struct ShadowReportQuery {
    pub(crate) source: String,
    pub(crate) from: Option<Timestamp>,
    pub(crate) to: Option<Timestamp>,
    pub(crate) job: Option<String>,
    pub(crate) tolerance: Duration,
    pub(crate) late: Duration,
    pub(crate) limit: u32,
    pub(crate) cursor: Option<String>,
}

impl FromQuery for ShadowReportQuery {
    fn from_query(reader: &mut Reader) -> Self {
        Self {
            source: source_parameter(reader),
            from: reader.parsed(
                Parameter::instant("from").about("The first instant; seven days before `to` if left out."),
                parse_instant,
            ),
            to: reader
                .parsed(Parameter::instant("to").about("The end, now if left out; at most 31 days after `from`."), parse_instant),
            job: reader.single(Parameter::name("job").about("Only this job.")),
            tolerance: reader
                .parsed(
                    Parameter::text("tolerance")
                        .about("A fire of the other scheduler matches a planned instant if it was at most this much later; `30s` \
                             if left out."),
                    parse_delay,
                )
                .unwrap_or(TOLERANCE_DEFAULT),
            late: reader
                .parsed(
                    Parameter::text("late").about("A fire that was at least this much later than planned is late; `3s` if left out."),
                    parse_delay,
                )
                .unwrap_or(LATE_DEFAULT),
            limit: reader.limit(JOB_COUNT_DEFAULT, JOB_COUNT_MAX),
            cursor: reader.parsed(Parameter::cursor(), |text| name::check(text).map(|()| text.to_owned())),
        }
    }
}

fn source_parameter(reader: &mut Reader) -> String {
    let parameter = Parameter::text("source").about("The other scheduler; `xxl-job` if left out.");
    reader.parsed(parameter, |text| check_source(text).map(|()| text.to_owned())).unwrap_or_else(default_source)
}

fn check_source(text: &str) -> Result<(), String> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    let is_valid = !text.is_empty() && text.len() <= SHADOW_SOURCE_LEN_MAX && text.chars().all(is_plain);
    let complaint = || {
        format!(
            "{} is not the name of a source: 1 to {SHADOW_SOURCE_LEN_MAX} of a-z, A-Z, 0-9, '.', '_' and '-'",
            quoted_input(text)
        )
    };
    if is_valid { Ok(()) } else { Err(complaint()) }
}

fn parse_delay(text: &str) -> Result<Duration, String> {
    let delay = parse_duration(text).map_err(|error| error.to_string())?;
    let is_valid = (Duration::from_secs(1)..=DELAY_MAX).contains(&delay);
    if is_valid { Ok(delay) } else { Err(format!("{} is not from 1s to 1h", quoted_input(text))) }
}

/// A report, or a page of it.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "ShadowReport")]
struct ReportJson {
    source: String,
    from: Timestamp,
    to: Timestamp,
    /// When the first observed fire was sent. Fires outside the observed range are not compared.
    first_at: Option<Timestamp>,
    last_at: Option<Timestamp>,
    /// By job and day in UTC; days without fires are left out.
    items: Vec<RowJson>,
    /// For `?cursor=`; null on the last page.
    next_cursor: Option<String>,
}

/// A job on one day.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "ShadowDay")]
struct RowJson {
    job: String,
    app: String,
    /// The beginning of the day.
    day: Timestamp,
    #[serde(flatten)]
    comparison: Comparison,
    /// Whether the day has more than the 100,000 fires that are compared.
    is_cut: bool,
}

impl From<ShadowRow> for RowJson {
    fn from(row: ShadowRow) -> Self {
        Self { job: row.name, app: row.app, day: row.day, comparison: row.comparison, is_cut: row.is_cut }
    }
}

pub(super) fn routes() -> Routes {
    Routes::new()
        .post(
            "/api/v1/shadow/fires",
            Operate,
            add,
            Doc::new(
                "Report fires of another scheduler",
                "Stores the fires for the comparison with jobs in shadow mode. A fire that is reported again changes nothing. \
                 Fires are kept as long as runs. Needs the role for the whole namespace: all apps share the ids of a source.",
            )
            .json::<StoredJson>(200, "The fires are stored.")
            .refuses(&[Code::JobNotFound])
            .example(json!({"fires": [{
                "job": "report-17", "source_id": 4711, "started_at": "2026-11-23T02:30:00Z",
                "executor": "http://10.0.0.5:9999/", "outcome": "succeeded",
            }]})),
        )
        .get(
            "/api/v1/shadow/fires",
            View,
            get_observed_range,
            Doc::new(
                "Get the observed range of another scheduler",
                "When the first and the last of its reported fires were sent.",
            )
            .json::<SourceJson>(200, "The range."),
        )
        .get(
            "/api/v1/shadow/report",
            View,
            get_report,
            Doc::new(
                "Compare jobs in shadow mode with another scheduler",
                "Compares by job and day: the fires that both schedulers had, those that only one of them had, how late each \
                 was, and how often they chose different executors. Covers only jobs that are, or were up to an instant, in \
                 shadow mode, and ends at the last observed fire.",
            )
            .json::<ReportJson>(200, "The report.")
            .refuses(&[Code::JobNotFound]),
        )
}

async fn add(call: Call, body: JsonBody<NewFires>) -> Result<Response, Problem> {
    // A role for one app is not enough. The fires of that app could take the ids of other apps' fires, so that the latter would be ignored,
    // and could change the observed range of the source.
    call.check(None, forbidden_problem)?;
    let NewFires { source, fires } = body.read()?;
    check_source(&source).map_err(|message| refuse_value("/source", message))?;
    if fires.len() > SHADOW_BATCH_MAX {
        let message = format!("has {} fires; at most {SHADOW_BATCH_MAX} are accepted in one request", fires.len());
        return Err(refuse_value("/fires", message));
    }
    let jobs = jobs_of_fires(&call, &fires).await?;
    let mut observed_fires = Vec::with_capacity(fires.len());
    for (index, fire) in fires.into_iter().enumerate() {
        observed_fires.push(checked_fire(&call, index, fire, &jobs)?);
    }
    let stored_count = call.engine().store().add_shadow_fires(call.namespace.id, &source, &observed_fires).await?;
    json_response(StatusCode::OK, &StoredJson { stored: stored_count })
}

async fn jobs_of_fires(call: &Call, fires: &[NewFire]) -> Result<BTreeMap<String, JobId>, Problem> {
    let mut names: Vec<&str> =
        fires.iter().map(|fire| fire.job.as_str()).filter(|job| name::check(job).is_ok()).collect();
    names.sort_unstable();
    names.dedup();
    let jobs = call.engine().store().jobs_named(call.namespace.id, &names).await?;
    Ok(jobs.into_iter().map(|job| (job.spec.name, job.id)).collect())
}

fn checked_fire(
    call: &Call,
    index: usize,
    fire: NewFire,
    jobs: &BTreeMap<String, JobId>,
) -> Result<ShadowFire, Problem> {
    let not_found = || {
        let detail = format!(
            "fire {index} is of the job {}, which namespace {} does not have",
            quoted_input(&fire.job),
            call.namespace.name
        );
        Problem::new(Code::JobNotFound, detail)
    };
    let job = *jobs.get(&fire.job).ok_or_else(not_found)?;
    if fire.source_id < 0 {
        let message = format!("{} is negative", fire.source_id);
        return Err(refuse_value(&format!("/fires/{index}/source_id"), message));
    }
    if fire.executor.chars().count() > SHADOW_EXECUTOR_LEN_MAX {
        let message = format!("is longer than {SHADOW_EXECUTOR_LEN_MAX} characters");
        return Err(refuse_value(&format!("/fires/{index}/executor"), message));
    }
    let NewFire { source_id, due_at, started_at, executor, outcome, .. } = fire;
    if let Some(due) = due_at.filter(|due| due.since(started_at).max(started_at.since(*due)) > DUE_DISTANCE_MAX) {
        let message = format!("{due} is more than an hour from started_at, {started_at}; leave it out");
        return Err(refuse_value(&format!("/fires/{index}/due_at"), message));
    }
    Ok(ShadowFire { job, fire: OldFire { source_id, due_at, started_at, executor, outcome } })
}

async fn get_observed_range(call: Call<SourceQuery>) -> Result<Response, Problem> {
    let source = call.query.source.clone();
    let span = call.engine().store().shadow_span(call.namespace.id, &source).await?;
    let source_json = SourceJson {
        source,
        first_at: span.map(|span| span.first_at),
        last_at: span.map(|span| span.last_at),
        last_id: span.map(|span| span.last_id),
    };
    json_response(StatusCode::OK, &source_json)
}

async fn get_report(call: Call<ShadowReportQuery>) -> Result<Response, Problem> {
    let (range, report) = read_shadow_report(&call, &call.query).await?;
    let report_json = ReportJson {
        source: call.query.source.clone(),
        from: range.from,
        to: range.to,
        first_at: report.span.map(|span| span.first_at),
        last_at: report.span.map(|span| span.last_at),
        items: report.rows.into_iter().map(RowJson::from).collect(),
        next_cursor: report.next,
    };
    json_response(StatusCode::OK, &report_json)
}

/// The report for a query, limited to jobs that the caller may see.
pub(crate) async fn read_shadow_report<Q>(
    call: &Call<Q>,
    query: &ShadowReportQuery,
) -> Result<(Range, ShadowReport), Problem> {
    let to = query.to.unwrap_or_else(|| call.engine().now());
    let from = query.from.unwrap_or(to.saturating_sub(DAY * 7));
    if from >= to || to.since(from) > DAY * DAYS_MAX {
        let message = format!("{from} to {to} is not a range of up to {DAYS_MAX} days");
        return Err(Problem::of_complaints(
            Code::InvalidQuery,
            vec![Complaint::query("from", "invalid_value", message)],
        ));
    }
    let job = match &query.job {
        Some(name) => Some(find(call, name).await?),
        None => None,
    };
    let range = Range { from, to, tolerance: query.tolerance, late_from: query.late };
    let visible_apps = call.visible_apps();
    let board = call.web.boards.board(call.engine(), call.namespace.id).await?;
    let shadow_names = board.shadow_names(visible_apps.as_deref());
    let request = ShadowRequest {
        namespace: call.namespace.id,
        source: &query.source,
        range,
        visible_apps,
        job,
        shadow_names,
        after_name: query.cursor.clone(),
        job_count_max: usize::try_from(query.limit).unwrap_or(1),
    };
    Ok((range, report(call.engine().node(), &request).await?))
}
