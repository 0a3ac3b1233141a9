//! Reports over days and months, and the schedule of the weekly report.

use std::collections::BTreeMap;

use axum::response::{IntoResponse as _, Response};
use http::StatusCode;
use http::header::{CONTENT_DISPOSITION, CONTENT_TYPE, ETAG};
use rondel_admin::reports::{Failure, Period, Row, ScheduleError, SendNowResult, save_schedule, send_now};
use rondel_core::access::Permission::{Admin, View};
use rondel_core::report::ReportSchedule;
use rondel_core::sketch::Sketch;
use rondel_core::{RunId, Timestamp};
use rondel_store::reports::{ReportDeleted, ScheduledReport};
use rondel_store::rollups::Verdicts;
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::json;

use crate::answer::json_response;
use crate::body::JsonBody;
use crate::call::{Call, forbidden_problem, quoted_input};
use crate::etag::{IfMatch, mismatch_problem, version_tag};
use crate::openapi::Doc;
use crate::parameter::Parameter;
use crate::problem::{Code, Complaint, Problem};
use crate::query::{FromQuery, Reader};
use crate::report::{GroupBy, Report, ReportQuery, csv, report, whole_csv};
use crate::routes::Routes;

const FORMAT_WORDS: [&str; 2] = ["json", "csv"];
/// The last line of a CSV file if apps or jobs had to be left out.
const CUT_LINE: &str = "Not all apps or jobs could be counted: choose a shorter range, or one app.";

/// The query parameters for a report, and its format.
#[derive(Debug)]
pub(super) struct FormattedReportQuery {
    query: ReportQuery,
    is_csv: bool,
    /// Whether the query asks for a single page of the jobs.
    wants_page: bool,
}

impl FromQuery for FormattedReportQuery {
    fn from_query(reader: &mut Reader) -> Self {
        let query = ReportQuery::from_query(reader);
        let format = |word: &str| match FORMAT_WORDS.contains(&word) {
            true => Ok(word == "csv"),
            false => Err(format!("{word:?} is none of {}", FORMAT_WORDS.join(", "))),
        };
        let parameter =
            Parameter::word("format", &FORMAT_WORDS).about("`csv` for the rows as a file; `json` if left out.");
        let wants_page = ["limit", "cursor"].iter().any(|name| reader.has(name));
        Self { query, is_csv: reader.parsed(parameter, format).unwrap_or_default(), wants_page }
    }
}

/// A report.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Report")]
struct ReportJson {
    namespace: String,
    #[schemars(extend("enum" = GroupBy::WORDS))]
    by: &'static str,
    from: Timestamp,
    to: Timestamp,
    #[schemars(extend("enum" = Period::WORDS))]
    period: &'static str,
    /// A scheduled fire that began no later than this after its planned instant is on time.
    on_time_ms: u64,
    /// The total over all runs that the query selects.
    total: RowJson,
    /// By name and time. If the range is divided into periods, those without runs are left out.
    items: Vec<RowJson>,
    /// The most frequent messages of failed runs, at most 20.
    failures: Vec<FailureJson>,
    /// Whether the counts leave out apps or jobs: choose a shorter range, or one app.
    is_cut: bool,
    /// For `?cursor=`, of `by=job`; null on the last page.
    next_cursor: Option<String>,
}

/// The outcomes of the runs of one group in one period.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "ReportRow")]
struct RowJson {
    /// The namespace, app, job or value of the label.
    name: String,
    /// The app of a job.
    app: Option<String>,
    /// When the period begins.
    at: Timestamp,
    run_count: u64,
    /// The number of runs by verdict.
    counts: BTreeMap<&'static str, u64>,
    /// The percentage that succeeded, rounded down to a tenth, of all runs that were not cancelled, skipped fires included. Null without
    /// any.
    succeeded_percent: Option<f64>,
    /// The percentage of scheduled fires that began on time; fires that were skipped before they began count as late. Null without any.
    on_time_percent: Option<f64>,
    duration_ms: QuantilesJson,
    lateness_ms: QuantilesJson,
}

/// The 50th, 95th and 99th percentile, exact to within 6 %; null where nothing was measured.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "ReportQuantiles")]
struct QuantilesJson {
    p50: Option<u64>,
    p95: Option<u64>,
    p99: Option<u64>,
}

/// Runs that failed with the same message.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "ReportFailure")]
struct FailureJson {
    /// The message, with `#` in place of each number, id and instant. Empty for runs with a message beyond the
    /// ten that are counted for a job and day.
    message: String,
    run_count: u64,
    job_count: u64,
    /// The jobs with the most of them.
    jobs: Vec<String>,
    /// The newest of the runs; it may have been removed since.
    newest_run: Option<RunId>,
}

/// When the weekly report of a namespace is sent.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "SavedReportSchedule")]
struct ScheduleJson<'a> {
    #[serde(flatten)]
    spec: &'a ReportSchedule,
    namespace: &'a str,
    version: i64,
    author: &'a str,
    updated_at: Timestamp,
    /// When the next report is due.
    next_at: Option<Timestamp>,
    /// When the last report was written.
    sent_at: Option<Timestamp>,
}

/// A report that was written just now.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "SentReport")]
struct SentReportJson {
    /// The channel that it is sent to; its deliveries show the outcome.
    channel: String,
}

impl From<&Sketch> for QuantilesJson {
    fn from(sketch: &Sketch) -> Self {
        let quantile =
            |per_mille| sketch.quantile(per_mille).and_then(|duration| u64::try_from(duration.as_millis()).ok());
        Self { p50: quantile(500), p95: quantile(950), p99: quantile(990) }
    }
}

impl From<Row> for RowJson {
    fn from(row: Row) -> Self {
        let Verdicts { succeeded, failed, timed_out, cancelled, unknown, skipped } = row.verdicts;
        let counts = [
            ("succeeded", succeeded),
            ("failed", failed),
            ("timed_out", timed_out),
            ("cancelled", cancelled),
            ("unknown", unknown),
            ("skipped", skipped),
        ];
        let percent = |share: Option<u32>| share.map(|share| f64::from(share) / 10.0);
        Self {
            at: row.at,
            run_count: row.verdicts.total(),
            counts: counts.into_iter().filter(|(_, count)| *count > 0).collect(),
            succeeded_percent: percent(row.shares.succeeded),
            on_time_percent: percent(row.shares.on_time),
            duration_ms: QuantilesJson::from(&row.durations),
            lateness_ms: QuantilesJson::from(&row.lateness),
            name: row.name,
            app: row.app,
        }
    }
}

impl From<Failure> for FailureJson {
    fn from(failure: Failure) -> Self {
        let Failure { message, count, job_count, jobs, newest } = failure;
        Self { message, run_count: count, job_count, jobs, newest_run: newest }
    }
}

pub(super) fn routes() -> Routes {
    Routes::new()
        .get(
            "/api/v1/reports",
            View,
            get,
            Doc::new(
                "Report the outcomes of runs over days and months",
                "Counts by verdict, how many runs succeeded and began on time, how long they took, and the most frequent failures. Counted \
                 once a minute, by the instant for which runs were planned, and kept for 400 days.",
            )
            .json::<ReportJson>(200, "The report.")
            .text("text/csv")
            .refuses(&[Code::AppNotFound, Code::JobNotFound, Code::InvalidCursor]),
        )
        .get(
            "/api/v1/reports/schedule",
            View,
            get_schedule,
            Doc::new("Get the schedule of the weekly report", "The schedule of the namespace.")
                .json::<ScheduleJson<'static>>(200, "The schedule.")
                .with("ETag")
                .refuses(&[Code::ReportScheduleNotFound]),
        )
        .put(
            "/api/v1/reports/schedule",
            Admin,
            put_schedule,
            Doc::new(
                "Set the schedule of the weekly report",
                "Each report is sent once, through a channel of the namespace, and covers the seven days before the day on \
                 which it is sent.",
            )
            .json::<ScheduleJson<'static>>(200, "The changed schedule.")
            .with("ETag")
            .json::<ScheduleJson<'static>>(201, "The new schedule.")
            .with("ETag")
            .example(json!({"weekday": "mon", "time": "08:00", "zone": "Europe/Berlin", "channel": "team-mail"})),
        )
        .post(
            "/api/v1/reports/schedule/send",
            Admin,
            send,
            Doc::new(
                "Send the weekly report now",
                "The report covers the seven days before today, and is sent through the channel of the schedule. The schedule \
                 does not change.",
            )
            .json::<SentReportJson>(200, "The report was written, and will be sent.")
            .refuses(&[Code::ReportScheduleNotFound, Code::ChannelNotFound]),
        )
        .delete(
            "/api/v1/reports/schedule",
            Admin,
            delete_schedule,
            Doc::new("Stop the weekly report", "Reports that are already written are still sent.")
                .empty("No more reports are sent.")
                .refuses(&[Code::ReportScheduleNotFound]),
        )
}

async fn get(call: Call<FormattedReportQuery>) -> Result<Response, Problem> {
    let FormattedReportQuery { query, is_csv, wants_page } = &call.query;
    if *is_csv {
        // A CSV file has no cursor to continue from, so it contains the rows of all pages unless the query asks for one page.
        let text = match wants_page {
            true => csv(&report(&call, query).await?, CUT_LINE),
            false => whole_csv(&call, query.clone(), CUT_LINE).await?,
        };
        let headers = [
            (CONTENT_TYPE, "text/csv; charset=utf-8".to_owned()),
            (CONTENT_DISPOSITION, "attachment; filename=\"report.csv\"".to_owned()),
        ];
        return Ok((headers, text).into_response());
    }
    let report_of_query = report(&call, query).await?;
    let Report { range, total, rows, failures, is_cut, next_cursor } = report_of_query;
    let body = ReportJson {
        namespace: call.namespace.name.clone(),
        by: query.group_by.as_str(),
        from: range.from,
        to: range.to,
        period: range.period.as_str(),
        on_time_ms: u64::try_from(range.on_time_within.as_millis()).unwrap_or(u64::MAX),
        total: total.into(),
        items: rows.into_iter().map(RowJson::from).collect(),
        failures: failures.into_iter().map(FailureJson::from).collect(),
        is_cut,
        next_cursor,
    };
    json_response(StatusCode::OK, &body)
}

async fn get_schedule(call: Call) -> Result<Response, Problem> {
    let schedule =
        call.engine().store().report_schedule(call.namespace.id).await?.ok_or_else(|| no_schedule_problem(&call))?;
    schedule_response(&call, StatusCode::OK, &schedule)
}

async fn put_schedule(call: Call, if_match: IfMatch, body: JsonBody<ReportSchedule>) -> Result<Response, Problem> {
    let spec = body.read()?;
    call.check(None, forbidden_problem)?;
    let schedule_before = call.engine().store().report_schedule(call.namespace.id).await?;
    let expected_version = match &schedule_before {
        Some(schedule_before) => if_match.expected_version(schedule_before.version)?,
        None if if_match.is_given() => return Err(mismatch_problem(0)),
        None => None,
    };
    if let Some(schedule_before) = &schedule_before {
        call.note.before(&schedule_before.spec);
    }
    let (schedule, is_new) =
        save_schedule(call.engine(), call.namespace.id, (&spec, expected_version), call.caller.name()).await?;
    call.note.changed_to(&schedule.spec);
    schedule_response(&call, if is_new { StatusCode::CREATED } else { StatusCode::OK }, &schedule)
}

async fn delete_schedule(call: Call, if_match: IfMatch) -> Result<Response, Problem> {
    call.check(None, forbidden_problem)?;
    let schedule_before =
        call.engine().store().report_schedule(call.namespace.id).await?.ok_or_else(|| no_schedule_problem(&call))?;
    let expected_version = if_match.expected_version(schedule_before.version)?;
    call.note.before(&schedule_before.spec);
    match call.engine().store().delete_report_schedule(call.namespace.id, expected_version).await? {
        ReportDeleted::Deleted => Ok(StatusCode::NO_CONTENT.into_response()),
        ReportDeleted::Conflict(version) => Err(mismatch_problem(version)),
        ReportDeleted::NotFound => Err(no_schedule_problem(&call)),
    }
}

async fn send(call: Call) -> Result<Response, Problem> {
    json_response(StatusCode::OK, &SentReportJson { channel: send_weekly_report(&call).await? })
}

/// Sends the weekly report now, and returns its channel.
pub(crate) async fn send_weekly_report<Q>(call: &Call<Q>) -> Result<String, Problem> {
    call.check(None, forbidden_problem)?;
    match send_now(call.engine(), call.namespace.id).await? {
        SendNowResult::Written(channel) => {
            call.note.changed_to(&json!({ "channel": channel }));
            Ok(channel)
        }
        SendNowResult::NoSchedule => Err(no_schedule_problem(call)),
        SendNowResult::NoChannel(channel) => {
            let detail = format!("the channel {} of the weekly report does not exist", quoted_input(&channel));
            Err(Problem::new(Code::ChannelNotFound, detail))
        }
    }
}

fn no_schedule_problem<Q>(call: &Call<Q>) -> Problem {
    Problem::new(Code::ReportScheduleNotFound, format!("no weekly report of namespace {} is sent", call.namespace.name))
}

fn schedule_response<Q>(call: &Call<Q>, status: StatusCode, schedule: &ScheduledReport) -> Result<Response, Problem> {
    let body = ScheduleJson {
        spec: &schedule.spec,
        namespace: &call.namespace.name,
        version: schedule.version,
        author: &schedule.author,
        updated_at: schedule.updated_at,
        next_at: schedule.next_at,
        sent_at: schedule.sent_at,
    };
    let mut response = json_response(status, &body)?;
    response.headers_mut().insert(ETAG, version_tag(schedule.version));
    Ok(response)
}

impl From<ScheduleError> for Problem {
    fn from(error: ScheduleError) -> Self {
        match error {
            ScheduleError::Invalid(errors) => {
                Self::of_complaints(Code::InvalidBody, errors.into_iter().map(Complaint::from).collect())
            }
            ScheduleError::Conflict { version } => mismatch_problem(version),
            ScheduleError::Store(error) => error.into(),
        }
    }
}
