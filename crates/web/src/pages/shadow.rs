//! Compares jobs in shadow mode with the scheduler that Rondel will replace, by job and day.

use askama::Template;
use axum::response::Response;
use http::StatusCode;
use rondel_admin::shadow::ShadowRow;
use rondel_core::shadow::compare::{Difference, DifferenceKind};

use super::moment::{Moment, length_text};
use super::reports::error_text;
use super::shell::{Nav, Page, Shell, html};
use super::texts::Texts;
use crate::api::shadow::{ShadowReportQuery, read_shadow_report};
use crate::problem::{Code, Problem};
use crate::redirect::query_pair;

/// Maximum number of differences that are listed for a day.
const DIFFERENCE_COUNT_MAX: usize = 10;
/// How many jobs one page shows.
const JOB_COUNT: u32 = 50;

/// A job on one day.
struct DayRow {
    name: String,
    app: String,
    day: String,
    /// Fires that both schedulers had.
    matched_count: u64,
    /// Fires that only the other scheduler had.
    only_old_count: u64,
    /// Fires that only Rondel had: the other scheduler lost them.
    only_rondel_count: u64,
    /// Repeated fires of the other scheduler.
    repeated_count: u64,
    /// Matched fires that the other scheduler sent late.
    old_late_count: u64,
    /// Matched fires that Rondel had late.
    rondel_late_count: u64,
    /// Matched fires that went to different executors.
    other_executor_count: u64,
    /// The mean and the maximum lateness of the other scheduler, as text.
    old_lateness: String,
    /// The mean and the maximum lateness of Rondel, as text.
    rondel_lateness: String,
    differences: Vec<DifferenceRow>,
    /// How many differences are not listed.
    more_count: u64,
}

/// A fire that differs between the two schedulers.
struct DifferenceRow {
    at: Moment,
    words: String,
    run: Option<String>,
}

#[derive(Template)]
#[template(path = "shadow.html")]
struct ShadowPage {
    shell: Shell,
    t: &'static Texts,
    source: String,
    job: String,
    error: Option<String>,
    /// The instants of the first and of the last observed fire.
    observed_range: Option<(Moment, Moment)>,
    rows: Vec<DayRow>,
    next_url: Option<String>,
}

pub(super) async fn page(page: Page<ShadowReportQuery>) -> Result<Response, Problem> {
    let (now, t) = (page.engine().now(), page.t);
    let query = page.query();
    let (mut error, mut shadow_report) = (None, None);
    let job = query.job.clone().filter(|job| !job.is_empty());
    let report_query = ShadowReportQuery { limit: JOB_COUNT, job: job.clone(), ..query.clone() };
    match read_shadow_report(&page.call, &report_query).await {
        Ok((_, report)) => shadow_report = Some(report),
        Err(problem) if matches!(problem.code(), Code::Internal | Code::Unavailable) => return Err(problem),
        Err(problem) => error = Some(error_text(&problem, t)),
    }
    let observed_range = shadow_report.as_ref().and_then(|report| report.span);
    let next_job = shadow_report.as_ref().and_then(|report| report.next.as_deref());
    let template = ShadowPage {
        shell: page.shell(Nav::Reports),
        t,
        source: query.source.clone(),
        job: job.unwrap_or_default(),
        error,
        observed_range: observed_range
            .map(|range| (Moment::new(range.first_at, now, t), Moment::new(range.last_at, now, t))),
        next_url: next_job
            .map(|cursor| format!("/shadow?{}&{}", query_pair("source", &query.source), query_pair("cursor", cursor))),
        rows: shadow_report.into_iter().flat_map(|report| report.rows).map(|row| to_day_row(row, &page)).collect(),
    };
    html(StatusCode::OK, &template)
}

fn to_day_row(row: ShadowRow, page: &Page<ShadowReportQuery>) -> DayRow {
    let (now, t, day_report) = (page.engine().now(), page.t, row.comparison);
    let length = |ms| length_text(std::time::Duration::from_millis(ms), t);
    let difference_row = |difference: &Difference| DifferenceRow {
        at: Moment::new(difference.at, now, t),
        words: difference_text(difference, t),
        run: difference.run.map(|run| run.to_string()),
    };
    let more_count =
        day_report.differences.len().saturating_sub(DIFFERENCE_COUNT_MAX) as u64 + day_report.differences_more;
    DayRow {
        name: row.name,
        app: row.app,
        day: row.day.to_string().chars().take(10).collect(),
        matched_count: day_report.both,
        only_old_count: day_report.only_old,
        only_rondel_count: day_report.only_rondel,
        repeated_count: day_report.twice,
        old_late_count: day_report.old_late,
        rondel_late_count: day_report.rondel_late,
        other_executor_count: day_report.other_executor,
        old_lateness: format!(
            "{} / {}",
            length(day_report.old_lateness.mean_ms),
            length(day_report.old_lateness.max_ms)
        ),
        rondel_lateness: format!(
            "{} / {}",
            length(day_report.rondel_lateness.mean_ms),
            length(day_report.rondel_lateness.max_ms)
        ),
        differences: day_report.differences.iter().take(DIFFERENCE_COUNT_MAX).map(difference_row).collect(),
        more_count,
    }
}

fn difference_text(difference: &Difference, t: &Texts) -> String {
    let lateness_text = || length_text(std::time::Duration::from_millis(difference.late_ms.unwrap_or(0)), t);
    match difference.kind {
        DifferenceKind::OnlyOld => t.shadow_fire_only_old.to_owned(),
        DifferenceKind::OnlyRondel => t.shadow_fire_only_rondel.to_owned(),
        DifferenceKind::Twice => t.shadow_fire_twice.to_owned(),
        DifferenceKind::OldLate => t.shadow_fire_old_late(lateness_text()),
        DifferenceKind::RondelLate => t.shadow_fire_rondel_late(lateness_text()),
        DifferenceKind::OtherExecutor => {
            let executor = |name: &Option<String>| name.clone().unwrap_or_default();
            t.shadow_fire_other_executor(executor(&difference.old_executor), executor(&difference.executor))
        }
    }
}
