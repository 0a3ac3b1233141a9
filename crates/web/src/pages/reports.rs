//! The page of reports over days and months. A report can be printed or downloaded as a file. The page also has the schedule of the weekly
//! report.

use std::time::Duration;

use askama::Template;
use axum::response::{IntoResponse as _, Response};
use http::StatusCode;
use http::header::{CONTENT_DISPOSITION, CONTENT_TYPE};
use rondel_admin::reports::{Period, Row, ScheduleError, save_schedule};
use rondel_core::Timestamp;
use rondel_core::access::Permission;
use rondel_core::calendar::Weekday;
use rondel_core::report::ReportSchedule;
use rondel_core::sketch::{Sketch, Step};

use super::as_code::{AsCode, shell_quoted};
use super::form::Fields;
use super::moment::{Moment, length_text};
use super::report_failures::ShownFailure;
use super::sentences::localized;
use super::shell::{Nav, Page, Shell, html};
use super::texts::Texts;
use super::zones;
use crate::problem::{Code, Problem};
use crate::query::{FromQuery, Reader};
use crate::redirect::{query_pair, redirect_to};
use crate::report::{GroupBy, ReportQuery, report, whole_csv};

/// The ranges to select from, in days.
const RANGE_DAYS: [u32; 4] = [7, 30, 90, 365];
/// Maximum length of a report, in days.
const DAY_COUNT_MAX: u32 = 400;
/// The length of the text of a day, such as 2026-11-30.
const DAY_LEN: usize = 10;
const DAY: Duration = Duration::from_secs(24 * 3_600);
/// How many rows a report by job shows on one page.
const ROW_COUNT: u32 = 100;

/// The query parameters of the page, as the user typed them.
#[derive(Clone, Debug, Default)]
pub(super) struct ReportChoices {
    group_by: String,
    days: String,
    from: String,
    to: String,
    period: String,
    app: String,
    label: String,
    cursor: Option<String>,
}

impl FromQuery for ReportChoices {
    fn from_query(reader: &mut Reader) -> Self {
        let mut text = |name: &'static str| reader.single(name).map(|text| text.trim().to_owned()).unwrap_or_default();
        Self {
            group_by: text("by"),
            days: text("days"),
            from: text("from"),
            to: text("to"),
            period: text("period"),
            app: text("app"),
            label: text("label"),
            cursor: reader.single("cursor"),
        }
    }
}

impl ReportChoices {
    fn query(&self, now: Timestamp, t: &Texts) -> Result<ReportQuery, String> {
        let non_empty = |text: &str| (!text.is_empty()).then(|| text.to_owned());
        let localized_sentence = |sentence: String| localized(t.lang(), &sentence).into_owned();
        let group_by = match self.group_by.as_str() {
            "" if self.label.is_empty() => GroupBy::App,
            "" => GroupBy::Label,
            word => word.parse::<GroupBy>().map_err(localized_sentence)?,
        };
        let period = match self.period.as_str() {
            "" => Period::default(),
            word => word.parse::<Period>().map_err(localized_sentence)?,
        };
        let (mut from, to) = (parse_instant(&self.from, false, t)?, parse_instant(&self.to, true, t)?);
        let days: Option<u32> = match self.days.as_str() {
            "" => None,
            text => match text.parse::<u32>() {
                Ok(days) if (1..=DAY_COUNT_MAX).contains(&days) => Some(days),
                _ => return Err(localized_sentence(format!("{text:?} is not a number from 1 to {DAY_COUNT_MAX}"))),
            },
        };
        if let Some(days) = days.filter(|_| from.is_none()) {
            // The last day is today, or the last day that the query covers.
            let last_day = Step::Day.floor(to.map_or(now, |to| to.saturating_sub(Duration::from_millis(1))));
            from = Some(last_day.saturating_sub(DAY * (days - 1)));
        }
        Ok(ReportQuery {
            group_by,
            from,
            to: to.filter(|to| *to < now),
            period,
            app: non_empty(&self.app),
            job: None,
            label: non_empty(&self.label).filter(|_| group_by == GroupBy::Label),
            on_time: None,
            limit: ROW_COUNT,
            cursor: self.cursor.clone(),
        })
    }

    /// The URL of `path` with these choices and further parameters.
    fn url(&self, path: &str, further_pairs: &[(&str, &str)]) -> String {
        let choices = [
            ("by", &self.group_by),
            ("days", &self.days),
            ("from", &self.from),
            ("to", &self.to),
            ("period", &self.period),
            ("app", &self.app),
            ("label", &self.label),
        ];
        let choices =
            choices.into_iter().filter(|(_, value)| !value.is_empty()).map(|(key, value)| (key, value.as_str()));
        let pairs: Vec<String> =
            choices.chain(further_pairs.iter().copied()).map(|(key, value)| query_pair(key, value)).collect();
        if pairs.is_empty() { path.to_owned() } else { format!("{path}?{}", pairs.join("&")) }
    }
}

/// Parses an instant or a day. A day stands for its beginning, or for its end if `is_end`.
fn parse_instant(text: &str, is_end: bool, t: &Texts) -> Result<Option<Timestamp>, String> {
    if text.is_empty() {
        return Ok(None);
    }
    let at = match text.len() {
        DAY_LEN => format!("{text}T00:00:00Z").parse::<Timestamp>().map(|day| if is_end { day + DAY } else { day }),
        _ => text.parse::<Timestamp>(),
    };
    at.map(Some).map_err(|_| t.report_bad_day(text))
}

/// A row of the table.
struct ShownRow {
    name: String,
    href: Option<String>,
    app: Option<String>,
    /// The day or the month.
    at: String,
    run_count: u64,
    failed_count: u64,
    skipped_count: u64,
    /// The percentage of the runs that succeeded.
    succeeded_percent: String,
    /// The percentage of the scheduled fires that began on time.
    on_time_percent: String,
    /// The 50th percentile of the durations.
    p50: String,
    /// The 95th percentile of the durations.
    p95: String,
    /// The 99th percentile of the lateness.
    lateness: String,
}

struct ShownSchedule {
    words: String,
    next_at: Option<Moment>,
    sent_at: Option<Moment>,
}

#[derive(Clone, Debug, Default)]
struct ScheduleForm {
    weekday: String,
    time: String,
    zone: String,
    channel: String,
    /// The version on which a save is based: 0 without a schedule, `None` if the form was sent without a version.
    version: Option<i64>,
}

#[derive(Template)]
#[template(path = "reports.html")]
struct ReportsPage {
    shell: Shell,
    t: &'static Texts,
    choices: ReportChoices,
    group_by: &'static str,
    kinds: Vec<(&'static str, &'static str)>,
    ranges: Vec<(String, String)>,
    periods: Vec<(&'static str, &'static str)>,
    error: Option<String>,
    range: String,
    /// The total, if there is a report.
    total: Option<ShownRow>,
    rows: Vec<ShownRow>,
    failures: Vec<ShownFailure>,
    is_cut: bool,
    /// Whether the range is divided into days or months.
    is_divided: bool,
    /// The URL of the report as a CSV file.
    csv_url: String,
    next_url: Option<String>,
    schedule: Option<ShownSchedule>,
    form: ScheduleForm,
    weekdays: Vec<(&'static str, &'static str)>,
    channels: Vec<String>,
    form_errors: Vec<String>,
    missing_role: Option<&'static str>,
    code: AsCode,
}

pub(super) async fn page(page: Page<ReportChoices>) -> Result<Response, Problem> {
    let choices = page.query().clone();
    render_page(&page, choices, StatusCode::OK, (None, Vec::new())).await
}

pub(super) async fn export(page: Page<ReportChoices>) -> Result<Response, Problem> {
    let query =
        page.query().query(page.engine().now(), page.t).map_err(|words| Problem::new(Code::InvalidQuery, words))?;
    let text = whole_csv(&page.call, query, page.t.report_cut).await?;
    let headers =
        [(CONTENT_TYPE, "text/csv; charset=utf-8"), (CONTENT_DISPOSITION, "attachment; filename=\"report.csv\"")];
    Ok((headers, text).into_response())
}

/// Saves or deletes the schedule of the weekly report, or sends the report now.
pub(super) async fn schedule(page: Page, fields: Fields) -> Result<Response, Problem> {
    page.call.check(None, crate::call::forbidden_problem)?;
    let (store, namespace) = (page.engine().store(), page.call.namespace.id);
    let schedule_before = store.report_schedule(namespace).await?;
    if let Some(schedule_before) = &schedule_before {
        page.call.note.before(&schedule_before.spec);
    }
    if fields.get("do") == "delete" {
        store.delete_report_schedule(namespace, None).await?;
        return Ok(redirect_to("/reports#weekly"));
    }
    if fields.get("do") == "send" {
        let channel = crate::api::reports::send_weekly_report(&page.call).await?;
        return Ok(redirect_to(&format!("/alerts/channels/{channel}")));
    }
    let text = |name: &str| fields.get(name).to_owned();
    let form = ScheduleForm {
        weekday: text("weekday"),
        time: text("time"),
        zone: text("zone"),
        channel: text("channel"),
        version: fields.get("version").parse().ok(),
    };
    let weekday = Weekday::ALL.iter().copied().find(|day| day.as_str() == form.weekday);
    let zone = if form.zone.is_empty() { "UTC".to_owned() } else { form.zone.clone() };
    let (time, channel) = (form.time.clone(), form.channel.clone());
    let spec = ReportSchedule { weekday: weekday.unwrap_or(Weekday::Mon), time, zone, channel };
    match save_schedule(page.engine(), namespace, (&spec, form.version), page.call.caller.name()).await {
        Ok((saved_schedule, _)) => {
            page.call.note.changed_to(&saved_schedule.spec);
            Ok(redirect_to("/reports#weekly"))
        }
        Err(ScheduleError::Invalid(errors)) => {
            let errors =
                errors.into_iter().map(|error| localized(page.t.lang(), &error.message).into_owned()).collect();
            render_page(&page, ReportChoices::default(), StatusCode::UNPROCESSABLE_ENTITY, (Some(form), errors)).await
        }
        Err(ScheduleError::Conflict { .. }) => {
            let errors = vec![page.t.report_weekly_conflict.to_owned()];
            render_page(&page, ReportChoices::default(), StatusCode::CONFLICT, (Some(form), errors)).await
        }
        Err(error) => Err(error.into()),
    }
}

async fn render_page<Q: Sync>(
    page: &Page<Q>,
    choices: ReportChoices,
    status: StatusCode,
    (form, form_errors): (Option<ScheduleForm>, Vec<String>),
) -> Result<Response, Problem> {
    let (now, t) = (page.engine().now(), page.t);
    let (mut error, mut computed_report, mut report_query) = (None, None, ReportQuery::default());
    match choices.query(now, t) {
        Ok(query) => {
            match report(&page.call, &query).await {
                Ok(report) => computed_report = Some(report),
                Err(problem) if matches!(problem.code(), Code::Internal | Code::Unavailable) => return Err(problem),
                Err(problem) => error = Some(error_text(&problem, t)),
            }
            report_query = query;
        }
        Err(sentence) => error = Some(sentence),
    }
    let is_divided = report_query.period != Period::Total;
    let to_shown_row = |row: &Row| shown_row(row, (report_query.group_by, report_query.period), t);
    let store = page.engine().store();
    let schedule = store.report_schedule(page.call.namespace.id).await?;
    let channels = store.channels(page.call.namespace.id).await?;
    let may_edit_schedule = page.call.caller.rights.allow(Permission::Admin, page.call.namespace.id, None);
    let form = form.unwrap_or_else(|| match &schedule {
        Some(saved_schedule) => ScheduleForm {
            weekday: saved_schedule.spec.weekday.as_str().to_owned(),
            time: saved_schedule.spec.time.clone(),
            zone: saved_schedule.spec.zone.clone(),
            channel: saved_schedule.spec.channel.clone(),
            version: Some(saved_schedule.version),
        },
        None => ScheduleForm {
            weekday: Weekday::Mon.as_str().to_owned(),
            time: "08:00".to_owned(),
            zone: zones::clock_and_zone().1.name().to_owned(),
            channel: String::new(),
            version: Some(0),
        },
    });
    let next_cursor = computed_report.as_ref().and_then(|computed_report| computed_report.next_cursor.clone());
    let template = ReportsPage {
        group_by: report_query.group_by.as_str(),
        kinds: GroupBy::WORDS.iter().map(|word| (*word, kind_name(word, t))).collect(),
        ranges: RANGE_DAYS.iter().map(|days| (days.to_string(), t.report_days(*days))).collect(),
        periods: vec![("total", t.report_total), ("day", t.report_by_day), ("month", t.report_by_month)],
        range: computed_report
            .as_ref()
            .map(|computed_report| range_text(computed_report.range.from, computed_report.range.to))
            .unwrap_or_default(),
        total: computed_report.as_ref().map(|computed_report| to_shown_row(&computed_report.total)),
        rows: computed_report
            .as_ref()
            .map(|computed_report| computed_report.rows.iter().map(to_shown_row).collect())
            .unwrap_or_default(),
        failures: computed_report
            .as_ref()
            .map(|computed_report| {
                computed_report.failures.iter().map(|failure| ShownFailure::new(failure, t)).collect()
            })
            .unwrap_or_default(),
        is_cut: computed_report.as_ref().is_some_and(|computed_report| computed_report.is_cut),
        is_divided,
        csv_url: choices.url("/export/report.csv", &[]),
        next_url: next_cursor.map(|cursor| choices.url("/reports", &[("cursor", &cursor)])),
        schedule: schedule.map(|saved_schedule| ShownSchedule {
            words: t.report_weekly_when(
                &saved_schedule.spec.channel,
                day_name(saved_schedule.spec.weekday, t),
                &saved_schedule.spec.time,
                &saved_schedule.spec.zone,
            ),
            next_at: saved_schedule.next_at.map(|at| Moment::new(at, now, t)),
            sent_at: saved_schedule.sent_at.map(|at| Moment::new(at, now, t)),
        }),
        form,
        weekdays: Weekday::ALL.iter().map(|day| (day.as_str(), day_name(*day, t))).collect(),
        channels: channels.into_iter().map(|channel| channel.name).collect(),
        form_errors,
        missing_role: (!may_edit_schedule).then_some(t.channels_needs_admin),
        code: report_code(&page.call.namespace.name, &report_query),
        error,
        choices,
        t,
        shell: page.shell(Nav::Reports),
    };
    html(status, &template)
}

/// The error in a query, in the reader's language.
pub(super) fn error_text(problem: &Problem, t: &Texts) -> String {
    let message = problem.complaints().first().map_or(problem.detail(), |complaint| complaint.message.as_str());
    localized(t.lang(), message).into_owned()
}

fn kind_name(word: &str, t: &Texts) -> &'static str {
    match GroupBy::from_word(word) {
        Some(GroupBy::Namespace) => t.report_all,
        Some(GroupBy::Job) => t.report_by_job,
        Some(GroupBy::Label) => t.report_by_label,
        Some(GroupBy::App) | None => t.report_by_app,
    }
}

fn day_name(day: Weekday, t: &Texts) -> &'static str {
    match day {
        Weekday::Mon => t.report_mon,
        Weekday::Tue => t.report_tue,
        Weekday::Wed => t.report_wed,
        Weekday::Thu => t.report_thu,
        Weekday::Fri => t.report_fri,
        Weekday::Sat => t.report_sat,
        Weekday::Sun => t.report_sun,
    }
}

/// The days in UTC that a report covers. If it ends at midnight, the day that begins then is not included.
fn range_text(from: Timestamp, to: Timestamp) -> String {
    let day = |at: Timestamp| at.to_utc().map(|at| at.format("%Y-%m-%d").to_string()).unwrap_or_default();
    let (first_day, last_day) = (day(from), day(to.saturating_sub(Duration::from_millis(1))));
    if first_day == last_day { first_day } else { format!("{first_day} – {last_day}") }
}

fn shown_row(row: &Row, (group_by, period): (GroupBy, Period), t: &Texts) -> ShownRow {
    let quantile = |sketch: &Sketch, per_mille| {
        sketch.quantile(per_mille).map_or("–".to_owned(), |quantile| length_text(quantile, t))
    };
    let period_start = row
        .at
        .to_utc()
        .map(|start| start.format(if period == Period::Month { "%Y-%m" } else { "%Y-%m-%d" }).to_string());
    let href = match group_by {
        GroupBy::Job => Some(format!("/jobs/{}", row.name)),
        GroupBy::App => Some(format!("/jobs?{}", query_pair("q", &format!("app:{}", row.name)))),
        GroupBy::Namespace | GroupBy::Label => None,
    };
    ShownRow {
        name: row.name.clone(),
        href,
        app: row.app.clone(),
        at: period_start.unwrap_or_default(),
        run_count: row.verdicts.total(),
        failed_count: row.verdicts.failure_count(),
        skipped_count: row.verdicts.skipped,
        succeeded_percent: percent_text(row.shares.succeeded),
        on_time_percent: percent_text(row.shares.on_time),
        p50: quantile(&row.durations, 500),
        p95: quantile(&row.durations, 950),
        lateness: quantile(&row.lateness, 990),
    }
}

fn percent_text(per_mille: Option<u32>) -> String {
    per_mille.map_or_else(|| "–".to_owned(), |share| format!("{}.{} %", share / 10, share % 10))
}

/// The report as an API request and as a command.
fn report_code(namespace: &str, query: &ReportQuery) -> AsCode {
    let instant_text = |at: Option<Timestamp>| at.map(|at| at.to_string());
    let period = Some(query.period).filter(|period| *period != Period::Total).map(|period| period.as_str().to_owned());
    let parameters = [
        ("by", Some(query.group_by.as_str().to_owned())),
        ("from", instant_text(query.from)),
        ("to", instant_text(query.to)),
        ("period", period),
        ("app", query.app.clone()),
        ("label", query.label.clone()),
    ];
    let parameters: Vec<(&str, String)> =
        parameters.into_iter().filter_map(|(key, value)| Some((key, value?))).collect();
    let pairs: Vec<String> = parameters.iter().map(|(key, value)| query_pair(key, value)).collect();
    let flags: Vec<String> =
        parameters.iter().map(|(key, value)| format!(" --{key} {}", shell_quoted(value))).collect();
    let path = format!("/api/v1/reports?{}", pairs.join("&"));
    AsCode::new(namespace, ("GET", &path), None, &format!("report show{}", flags.concat()))
}
