//! The landing page: the state of the system, the runs of the last day, and what needs attention.

mod facts;

use std::time::Duration;

use askama::Template;
use axum::response::Response;
use futures_util::future::try_join4;
use http::StatusCode;
use rondel_core::Timestamp;
use rondel_core::attention::{Finding, FindingSeverity, LATENESS_OBJECTIVE, list_findings};
use rondel_core::sketch::Step;
use rondel_store::catalog::JobQuery;

use self::facts::Health;
use super::drawing::{Drawing, Scale};
use super::incident_parts;
use super::moment::{Moment, length_text};
use super::outcome_bars::OutcomeChart;
use super::shell::{Nav, Page, Shell, html};
use super::texts::Texts;
use crate::call::DEFAULT_NAMESPACE;
use crate::overview::lanes::{self, LaneKind, TimelineRequest};
use crate::overview::recent_failures::RecentFailures;
use crate::overview::series::{self, BucketRange};
use crate::problem::Problem;
use crate::redirect::query_pair;

const HOUR: Duration = Duration::from_secs(3_600);
/// The range of the bar chart.
const CHART_LENGTH: Duration = Duration::from_secs(24 * 3_600);
/// How many hours before now the lanes show.
const LANE_HOURS_BACK: u32 = 18;
/// How many hours after now the lanes show.
const LANE_HOURS_AHEAD: u32 = 6;
const LANE_COUNT: u32 = 10;
/// Maximum number of findings that are shown; further ones are only counted.
const FINDING_COUNT_MAX: usize = 6;

#[derive(Template)]
#[template(path = "now.html")]
struct NowPage {
    shell: Shell,
    t: &'static Texts,
    /// The URL of this page, from which the script reloads its live part.
    page_url: String,
    health: HealthRow,
    /// The number of open incidents, limited to as many as the page *Alerts* shows.
    alert_count: usize,
    /// Whether there are more open incidents than that.
    has_more_alerts: bool,
    chart: OutcomeChart,
    findings: Vec<FindingRow>,
    /// How many findings are not shown.
    more_count: usize,
    drawing: Drawing,
    /// Whether there are no jobs yet, in which case the page explains the first steps.
    is_new: bool,
    /// The `--namespace` option for commands; empty in the default namespace.
    namespace_option: String,
}

/// The state of the system, as text.
struct HealthRow {
    class: &'static str,
    word: &'static str,
    totals: Health,
    lease: String,
    lateness: Option<String>,
    /// How soon after their planned instants handlers should begin.
    objective: String,
    is_late: bool,
    next_fire: Option<Moment>,
}

/// A finding that needs attention.
struct FindingRow {
    class: &'static str,
    name: String,
    href: String,
    text: String,
}

pub(super) async fn page(page: Page) -> Result<Response, Problem> {
    let (now, t) = (page.engine().now(), page.t);
    let range = BucketRange::new(Step::QuarterHour, now - CHART_LENGTH + Step::QuarterHour.length(), now);
    let scale = Scale { from: now - HOUR * LANE_HOURS_BACK, to: now + HOUR * LANE_HOURS_AHEAD };
    let request = TimelineRequest {
        lane_kind: LaneKind::Job,
        from: scale.from,
        to: scale.to,
        app: None,
        contains: None,
        lane_count: LANE_COUNT,
    };
    // These four reads run concurrently. They are independent, except that two share `failures`.
    let failures = RecentFailures::default();
    let system_state = facts::read(&page.call, &failures, t.lang());
    let buckets = series::namespace_verdicts(&page.call, range);
    let lanes = lanes::timeline(&page.call, &request, &failures);
    let (system_state, buckets, timeline, (alert_count, has_more_alerts)) =
        try_join4(system_state, buckets, lanes, incident_parts::open_incident_count(&page.call)).await?;
    let chart_range = BucketRange { to: Step::QuarterHour.floor(now) + Step::QuarterHour.length(), ..range };
    let chart = OutcomeChart::new(&buckets, chart_range, (now, t));
    let health = health_row(system_state.health, &system_state.facts, (now, t));
    let findings = list_findings(system_state.facts, now);
    let more_count = findings.len().saturating_sub(FINDING_COUNT_MAX);
    let first_job_query = JobQuery { within: page.call.visible_apps(), limit: 1, ..JobQuery::default() };
    let is_new = chart.total.total() == 0
        && page.engine().store().listed_jobs(page.call.namespace.id, &first_job_query).await?.is_empty();
    let template = NowPage {
        shell: page.shell(Nav::Now),
        t,
        page_url: page.page_url().to_owned(),
        health,
        alert_count,
        has_more_alerts,
        chart,
        findings: findings.iter().take(FINDING_COUNT_MAX).map(|finding| finding_row(finding, now, t)).collect(),
        more_count,
        drawing: Drawing::new(scale, LaneKind::Job, &timeline.lanes, (now, t)),
        is_new,
        namespace_option: namespace_option(&page.call.namespace.name),
    };
    html(StatusCode::OK, &template)
}

fn namespace_option(namespace: &str) -> String {
    if namespace == DEFAULT_NAMESPACE { String::new() } else { format!(" --namespace {namespace}") }
}

fn health_row(
    health: Health,
    facts: &rondel_core::attention::AttentionFacts,
    (now, t): (Timestamp, &'static Texts),
) -> HealthRow {
    let is_late = health.lateness.is_some_and(|lateness| lateness > LATENESS_OBJECTIVE);
    let has_failure = !facts.lost_nodes.is_empty() || !facts.failing_loops.is_empty() || health.living_count == 0;
    let (class, word) = match (has_failure, is_late) {
        (true, _) => ("bad", t.now_trouble),
        (false, true) => ("late", t.now_slow),
        (false, false) => ("ok", t.now_healthy),
    };
    HealthRow {
        class,
        word,
        lease: length_text(health.lease_left, t),
        lateness: health.lateness.map(|lateness| length_text(lateness, t)),
        objective: length_text(LATENESS_OBJECTIVE, t),
        is_late,
        next_fire: health.next_fire_at.map(|at| Moment::new(at, now, t)),
        totals: health,
    }
}

/// A finding as a row, with a link to the page on which to act.
fn finding_row(finding: &Finding, now: Timestamp, t: &'static Texts) -> FindingRow {
    let since = |at: Timestamp| length_text(now.since(at), t);
    let job = |name: &str| format!("/jobs/{name}");
    let (name, href, text) = match finding {
        Finding::NodeLost(name, at) => (name.clone(), "/executors".to_owned(), t.now_node_lost(since(*at))),
        Finding::LoopFails(node, name, at) => {
            (node.clone(), "/executors".to_owned(), t.now_loop_fails(name, since(*at)))
        }
        Finding::Fails(failing) => {
            let sentence = match (failing.succeeded_at, failing.streak) {
                (None, count) => t.now_never(count, since(failing.since)),
                (Some(_), 1) => t.now_failed_once(since(failing.since)),
                (Some(_), count) => t.now_fails(count, since(failing.since)),
            };
            let sentence = [Some(sentence), failing.message.clone()].into_iter().flatten();
            let run_query = query_pair("q", &format!("job:{} status:failed,timed_out,unknown", failing.job));
            (failing.job.clone(), format!("/runs?{run_query}"), sentence.collect::<Vec<_>>().join(" · "))
        }
        Finding::NoExecutor(without_executor) => {
            let text = match without_executor.is_offered {
                true => t.now_not_admitted(without_executor.count, &without_executor.handler),
                false => t.now_no_executor(without_executor.count, &without_executor.handler),
            };
            (without_executor.job.clone(), format!("/jobs/{}/fires?at=", without_executor.job), text)
        }
        Finding::Late(lateness) => {
            let text = t.now_late(length_text(*lateness, t), length_text(LATENESS_OBJECTIVE, t));
            (t.now_late_name.to_owned(), "/timeline".to_owned(), text)
        }
        Finding::Long(run) => {
            let usual_text = run.usual.map(|usual| length_text(usual, t)).unwrap_or_default();
            (run.job.clone(), format!("/runs/{}", run.run), t.now_long(since(run.since), usual_text))
        }
        Finding::TokenEnds(name, at) => {
            (name.clone(), "/settings/tokens".to_owned(), t.now_token(Moment::new(*at, now, t).relative))
        }
        Finding::Paused(name, at) => (name.clone(), job(name), t.now_paused(since(*at))),
    };
    let class = match finding.severity() {
        FindingSeverity::Critical => "bad",
        FindingSeverity::Warning => "late",
        FindingSeverity::Note => "mute",
    };
    FindingRow { class, name, href, text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_name_a_namespace_other_than_the_first() {
        assert_eq!(namespace_option(DEFAULT_NAMESPACE), "");
        assert_eq!(namespace_option("prod"), " --namespace prod");
    }
}
