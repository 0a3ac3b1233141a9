//! The lanes of a timeline, and the upcoming fires across jobs.

use std::time::Duration;

use axum::response::Response;
use http::StatusCode;
use rondel_admin::forecast::{ComingFire, ForecastRange, forecast};
use rondel_core::access::Permission::View;
use rondel_core::{RunId, RunStatus, Timestamp, name};
use schemars::JsonSchema;
use serde::Serialize;

use super::jobs::{find_app, parse_instant};
use crate::answer::json_response;
use crate::call::Call;
use crate::openapi::Doc;
use crate::overview::lanes::{LANE_COUNT_MAX, Lane, LaneKind, MARK_COUNT_MAX, Mark, TimelineRequest, timeline};
use crate::overview::recent_failures::RecentFailures;
use crate::parameter::Parameter;
use crate::problem::{Code, Complaint, Problem};
use crate::query::{FromQuery, Reader};
use crate::routes::Routes;

const DAY: Duration = Duration::from_secs(24 * 3_600);
/// Maximum range of one timeline, in days.
const DAYS_MAX: u32 = 31;
const LANE_COUNT_DEFAULT: u32 = 40;
const FIRE_COUNT_DEFAULT: u32 = 200;
const FIRE_COUNT_MAX: u32 = 1_000;
/// The length of a bucket in the counts of upcoming fires.
const DENSITY_STEP: Duration = Duration::from_secs(900);

#[derive(Debug)]
pub(super) struct TimelineQuery {
    from: Option<Timestamp>,
    to: Option<Timestamp>,
    lane_kind: LaneKind,
    app: Option<String>,
    contains: Option<String>,
    limit: u32,
}

impl FromQuery for TimelineQuery {
    fn from_query(reader: &mut Reader) -> Self {
        let part_of_name = |text: &str| {
            let is_plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '.' | '_' | '-');
            let is_valid = text.len() <= name::NAME_LEN_MAX && text.chars().all(is_plain);
            is_valid
                .then(|| text.to_owned())
                .ok_or_else(|| format!("{text:?} is not a part of a name: a-z, 0-9, '.', '_' and '-'"))
        };
        Self {
            from: reader.parsed(
                Parameter::instant("from").about("The first instant; a day before `to` if left out."),
                parse_instant,
            ),
            to: reader.parsed(
                Parameter::instant("to")
                    .about("The end, now if left out; at most 31 days after `from`. It may be in the future."),
                parse_instant,
            ),
            lane_kind: reader
                .parsed(
                    Parameter::word("by", &LaneKind::WORDS).about("What a lane stands for; `job` if left out."),
                    str::parse,
                )
                .unwrap_or_default(),
            app: reader.single(Parameter::name("app").about("Only this app.")),
            contains: reader
                .parsed(Parameter::text("name_contains").about("Only jobs whose name contains this."), part_of_name),
            limit: reader.limit(LANE_COUNT_DEFAULT, LANE_COUNT_MAX),
        }
    }
}

/// The query parameters for the upcoming fires.
#[derive(Debug)]
pub(super) struct UpcomingFiresQuery {
    to: Option<Timestamp>,
    limit: u32,
}

impl FromQuery for UpcomingFiresQuery {
    fn from_query(reader: &mut Reader) -> Self {
        Self {
            to: reader.parsed(
                Parameter::instant("to").about("The end of the range: at most 24 hours ahead, which is the default."),
                parse_instant,
            ),
            limit: reader.limit(FIRE_COUNT_DEFAULT, FIRE_COUNT_MAX),
        }
    }
}

/// A timeline.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Timeline")]
pub(super) struct TimelineJson {
    from: Timestamp,
    to: Timestamp,
    /// The current instant.
    now: Timestamp,
    lanes: Vec<LaneJson>,
    /// Whether there are more lanes than these.
    has_more: bool,
    /// Whether there are more runs than can be shown one by one, so that only the newest are in it.
    is_cut: bool,
    /// The maximum number of marks of a timeline. Lanes with more than their share show their earlier runs joined.
    mark_count_max: usize,
}

/// A lane: the worst jobs come first.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "TimelineLane")]
struct LaneJson {
    /// The job, app or executor.
    name: String,
    /// Null for a lane of an app.
    app: Option<String>,
    run_count: u64,
    /// Runs that failed, timed out, or have an unknown outcome.
    #[serde(rename = "trouble_count")]
    failure_count: u64,
    /// Whether the earlier runs of this lane are joined by hour.
    is_joined: bool,
    marks: Vec<MarkJson>,
    /// Upcoming planned instants.
    fires: Vec<Timestamp>,
    /// Instants that the job's calendar removes or moves.
    removed: Vec<Timestamp>,
    /// Clock changes in the job's zone that affect a fire.
    clock_changes: Vec<Timestamp>,
}

/// A run, or several runs that are joined into one mark.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "TimelineMark")]
struct MarkJson {
    from: Timestamp,
    /// Null while the run has not ended.
    to: Option<Timestamp>,
    #[schemars(with = "RunStatus")]
    status: &'static str,
    /// Null for several.
    run: Option<RunId>,
    count: u64,
}

impl From<Mark> for MarkJson {
    fn from(mark: Mark) -> Self {
        Self { from: mark.from, to: mark.to, status: mark.status.as_str(), run: mark.run, count: mark.count }
    }
}

impl From<Lane> for LaneJson {
    fn from(lane: Lane) -> Self {
        Self {
            name: lane.name,
            app: lane.app,
            run_count: lane.run_count,
            failure_count: lane.failure_count,
            is_joined: lane.is_joined,
            marks: lane.marks.into_iter().map(MarkJson::from).collect(),
            fires: lane.fires,
            removed: lane.removed_fires,
            clock_changes: lane.clock_changes,
        }
    }
}

/// The upcoming fires.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Forecast")]
pub(super) struct ForecastJson {
    from: Timestamp,
    to: Timestamp,
    /// How many there are.
    count: u64,
    /// The first of them, in order.
    items: Vec<UpcomingFireJson>,
    /// How many there are in each quarter of an hour; quarters without any are left out.
    density: Vec<DensityJson>,
    /// The instant with the most fires; null if there are no fires, or too many to compare.
    peak: Option<DensityJson>,
    /// Whether there are more than were counted.
    is_cut: bool,
}

/// An upcoming fire.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "ComingFire")]
struct UpcomingFireJson {
    at: Timestamp,
    job: String,
    app: String,
}

/// How many fires there are at an instant or, in `density`, in the quarter of an hour that begins then.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "FireDensity")]
struct DensityJson {
    at: Timestamp,
    count: u64,
}

impl From<ComingFire> for UpcomingFireJson {
    fn from(fire: ComingFire) -> Self {
        Self { at: fire.at, job: fire.name, app: fire.app }
    }
}

pub(super) fn routes() -> Routes {
    Routes::new()
        .get(
            "/api/v1/timeline",
            View,
            get,
            Doc::new(
                "Show past, current and future runs in lanes",
                "Lanes by job, app or executor. A lane with more than its share of 5,000 marks has its earlier runs joined by hour.",
            )
            .json::<TimelineJson>(200, "The lanes.")
            .refuses(&[Code::AppNotFound]),
        )
        .get(
            "/api/v1/fires",
            View,
            list_upcoming_fires,
            Doc::new("List the upcoming fires of all jobs", "The fires of the next 24 hours, and their number per quarter of an hour.")
                .json::<ForecastJson>(200, "The fires."),
        )
}

async fn get(call: Call<TimelineQuery>) -> Result<Response, Problem> {
    let (query, now) = (&call.query, call.engine().now());
    let to = query.to.unwrap_or(now);
    let from = query.from.unwrap_or(to.saturating_sub(DAY));
    check_range(from, to, DAY * DAYS_MAX)?;
    let app = match &query.app {
        Some(name) => Some(find_app(&call, name).await?),
        None => None,
    };
    let contains = query.contains.clone().filter(|text| !text.is_empty());
    let request = TimelineRequest { lane_kind: query.lane_kind, from, to, app, contains, lane_count: query.limit };
    let chart = timeline(&call, &request, &RecentFailures::default()).await?;
    let timeline_json = TimelineJson {
        from,
        to,
        now,
        lanes: chart.lanes.into_iter().map(LaneJson::from).collect(),
        has_more: chart.has_more,
        is_cut: chart.is_cut,
        mark_count_max: MARK_COUNT_MAX,
    };
    json_response(StatusCode::OK, &timeline_json)
}

async fn list_upcoming_fires(call: Call<UpcomingFiresQuery>) -> Result<Response, Problem> {
    let now = call.engine().now();
    let to = call.query.to.unwrap_or(now + DAY);
    check_range(now, to, DAY)?;
    let limit = usize::try_from(call.query.limit).unwrap_or(usize::MAX);
    let range = ForecastRange { from: now, to, step: DENSITY_STEP, limit };
    let visible_apps = call.visible_apps();
    let upcoming_fires = forecast(call.engine().node(), call.namespace.id, visible_apps.as_deref(), range).await?;
    let density = |(at, count)| DensityJson { at, count };
    let forecast_json = ForecastJson {
        from: now,
        to,
        count: upcoming_fires.density.values().sum(),
        items: upcoming_fires.fires.into_iter().map(UpcomingFireJson::from).collect(),
        density: upcoming_fires.density.into_iter().map(density).collect(),
        peak: upcoming_fires.peak.map(density),
        is_cut: upcoming_fires.is_cut,
    };
    json_response(StatusCode::OK, &forecast_json)
}

fn check_range(from: Timestamp, to: Timestamp, length_max: Duration) -> Result<(), Problem> {
    let detail = if from >= to {
        format!("{to} is not after the beginning, which is {from}")
    } else if to.since(from) > length_max {
        format!("{to} is more than {} hours after the beginning, which is {from}", length_max.as_secs() / 3_600)
    } else {
        return Ok(());
    };
    Err(Problem::of_complaints(Code::InvalidQuery, vec![Complaint::query("to", "invalid_value", detail)]))
}
