//! Counts of runs over time, with durations and lateness: of a namespace, per app, or of some jobs.

use std::collections::BTreeMap;
use std::time::Duration;

use axum::response::Response;
use http::StatusCode;
use rondel_core::access::Permission::View;
use rondel_core::sketch::{Sketch, Step};
use rondel_core::{Timestamp, name};
use rondel_store::catalog::App;
use rondel_store::rollups::{PointKind, StatPoint, Verdicts};
use schemars::JsonSchema;
use serde::Serialize;

use super::jobs::{find_app, parse_instant, visible_from};
use crate::answer::json_response;
use crate::call::{Call, quoted_input};
use crate::openapi::Doc;
use crate::overview::series::{self, BUCKET_COUNT_MAX, Bucket, BucketRange};
use crate::parameter::Parameter;
use crate::problem::{Code, Complaint, Problem};
use crate::query::{FromQuery, Reader};
use crate::routes::Routes;

const DAY: Duration = Duration::from_secs(24 * 3_600);
/// Maximum number of groups in one answer.
const GROUP_COUNT_MAX: usize = 100;
/// Maximum number of jobs in the query.
const JOB_COUNT_MAX: usize = 50;
const GROUP_WORDS: [&str; 2] = ["app", "job"];

/// The query parameters for counts of runs.
#[derive(Debug)]
pub(super) struct StatsQuery {
    from: Option<Timestamp>,
    to: Option<Timestamp>,
    step: Option<Step>,
    app: Option<String>,
    jobs: Vec<String>,
    group: Option<String>,
}

impl FromQuery for StatsQuery {
    fn from_query(reader: &mut Reader) -> Self {
        let group = |word: &str| match GROUP_WORDS.contains(&word) {
            true => Ok(word.to_owned()),
            false => Err(format!("{word:?} is none of {}", GROUP_WORDS.join(", "))),
        };
        Self {
            from: reader
                .parsed(Parameter::instant("from").about("The first bucket; a day before `to` if left out."), parse_instant),
            to: reader.parsed(Parameter::instant("to").about("The end; now if left out."), parse_instant),
            step: reader.parsed(
                Parameter::word("step", &Step::WORDS)
                    .about("The length of a bucket; if left out, one that fits the range. For jobs `1h` or `1d`, for everything \
                         else `1m`, `15m` or `1h`."),
                str::parse,
            ),
            app: reader.single(Parameter::name("app").about("Only runs of this app.")),
            jobs: reader.words::<JobName>(Parameter::text("job").about("Only runs of these jobs, at most 50, separated by commas.")).into_iter().map(|JobName(name)| name).collect(),
            group: reader.parsed(
                Parameter::word("group", &GROUP_WORDS).about("A series for each app, or for each job that `job` names; one for all if left out."),
                group,
            ),
        }
    }
}

/// A word of the query, checked to be a valid job name.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct JobName(String);

impl std::str::FromStr for JobName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match name::check(text) {
            Ok(()) => Ok(Self(text.to_owned())),
            Err(error) => Err(format!("{text:?} is not the name of a job: {error}")),
        }
    }
}

/// Counts over time.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Stats")]
pub(super) struct StatsJson {
    from: Timestamp,
    to: Timestamp,
    /// The length of a bucket.
    #[schemars(extend("enum" = Step::WORDS))]
    step: &'static str,
    series: Vec<SeriesJson>,
    /// Whether there are more groups than these.
    is_cut: bool,
}

/// The buckets of one group.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "StatsSeries")]
struct SeriesJson {
    /// The app or job; null for the series of all.
    name: Option<String>,
    /// The counts of the whole range.
    total: BucketJson,
    /// Buckets with runs, in order.
    buckets: Vec<BucketJson>,
}

/// The runs that were planned in one bucket.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "StatsBucket")]
struct BucketJson {
    /// When it begins.
    at: Timestamp,
    run_count: u64,
    /// The number of runs by verdict.
    counts: BTreeMap<&'static str, u64>,
    /// How long the last attempts took.
    duration_ms: QuantilesJson,
    /// How much later than planned the first attempts of scheduled fires began.
    lateness_ms: QuantilesJson,
}

/// The 50th, 95th and 99th percentile, exact to within 6 %; null where nothing was measured.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "StatsQuantiles")]
struct QuantilesJson {
    p50: Option<u64>,
    p95: Option<u64>,
    p99: Option<u64>,
}

impl From<&Sketch> for QuantilesJson {
    fn from(sketch: &Sketch) -> Self {
        let quantile =
            |per_mille| sketch.quantile(per_mille).and_then(|duration| u64::try_from(duration.as_millis()).ok());
        Self { p50: quantile(500), p95: quantile(950), p99: quantile(990) }
    }
}

impl From<&Bucket> for BucketJson {
    fn from(bucket: &Bucket) -> Self {
        let Verdicts { succeeded, failed, timed_out, cancelled, unknown, skipped } = bucket.verdicts;
        let counts = [
            ("succeeded", succeeded),
            ("failed", failed),
            ("timed_out", timed_out),
            ("cancelled", cancelled),
            ("unknown", unknown),
            ("skipped", skipped),
        ];
        Self {
            at: bucket.at,
            run_count: bucket.verdicts.total(),
            counts: counts.into_iter().filter(|(_, count)| *count > 0).collect(),
            duration_ms: QuantilesJson::from(&bucket.durations),
            lateness_ms: QuantilesJson::from(&bucket.lateness),
        }
    }
}

pub(super) fn routes() -> Routes {
    Routes::new().get(
        "/api/v1/stats",
        View,
        get,
        Doc::new(
            "Count the verdicts of runs over time",
            "By the instant for which the runs were planned, with quantiles of duration and lateness. Counted once a minute; \
             minutes are kept 1 day, quarters of an hour 15 days, hours of jobs 60 days, everything else 400 days.",
        )
        .json::<StatsJson>(200, "The counts.")
        .refuses(&[Code::AppNotFound, Code::JobNotFound]),
    )
}

async fn get(call: Call<StatsQuery>) -> Result<Response, Problem> {
    let query = &call.query;
    let to = query.to.unwrap_or_else(|| call.engine().now());
    let from = query.from.unwrap_or(to.saturating_sub(DAY));
    if from >= to {
        return Err(invalid_parameter_problem("to", format!("{to} is not after from, which is {from}")));
    }
    let is_of_jobs = !query.jobs.is_empty();
    let kind = if is_of_jobs { PointKind::Job } else { PointKind::App };
    let steps = kind.steps();
    let default_step = series::stored_step(kind, series::fitting_step(to.since(from)), (from, call.engine().now()));
    let step = query.step.unwrap_or(default_step);
    if !steps.contains(&step) {
        let step_names = steps.iter().map(|step| step.as_str()).collect::<Vec<_>>().join(", ");
        return Err(invalid_parameter_problem(
            "step",
            format!("{} is not counted here; there are {step_names}", step.as_str()),
        ));
    }
    let range = BucketRange::new(step, from, to);
    if range.bucket_count() > BUCKET_COUNT_MAX {
        return Err(invalid_parameter_problem(
            "to",
            format!("the range has {} buckets; at most {BUCKET_COUNT_MAX} are possible", range.bucket_count()),
        ));
    }
    let (groups, is_cut) = stats_groups(&call, kind, range).await?;
    let series = match groups {
        None => vec![series_of(None, &series::namespace_buckets(&call, range).await?)],
        Some(groups) => series_of_groups(&call, kind, (&groups, range)).await?,
    };
    json_response(StatusCode::OK, &StatsJson { from: range.from, to, step: step.as_str(), series, is_cut })
}

/// An app or a job.
struct StatsGroup {
    name: String,
    id: i64,
    /// Earlier runs are left out: the job was then in an app that the caller may not view.
    from: Timestamp,
}

/// The groups that the query asks for, or `None` for the whole namespace; and whether there are more groups.
async fn stats_groups(
    call: &Call<StatsQuery>,
    kind: PointKind,
    range: BucketRange,
) -> Result<(Option<Vec<StatsGroup>>, bool), Problem> {
    let (query, store) = (&call.query, call.engine().store());
    if kind == PointKind::Job {
        if query.jobs.len() > JOB_COUNT_MAX {
            return Err(invalid_parameter_problem(
                "job",
                format!("{} jobs; at most {JOB_COUNT_MAX} can be named", query.jobs.len()),
            ));
        }
        let names: Vec<&str> = query.jobs.iter().map(String::as_str).collect();
        let app = match &query.app {
            Some(app) => Some(find_app(call, app).await?),
            None => None,
        };
        let mut jobs = store.jobs_named(call.namespace.id, &names).await?;
        jobs.retain(|job| call.may_view(job.app) && app.is_none_or(|app| app == job.app));
        if let Some(name) = names.iter().find(|name| !jobs.iter().any(|job| job.spec.name == **name)) {
            let detail = format!("there is no job {} in namespace {}", quoted_input(name), call.namespace.name);
            return Err(Problem::new(Code::JobNotFound, detail));
        }
        let mut groups = Vec::new();
        for job in jobs {
            let from = visible_from(call, &job, range.from, range.to).await?;
            groups.push(StatsGroup { name: job.spec.name, id: job.id.get(), from });
        }
        return Ok((Some(groups), false));
    }
    if query.group.as_deref() == Some("job") {
        return Err(invalid_parameter_problem("group", "by job needs the jobs: name them with job".to_owned()));
    }
    if let Some(app) = &query.app {
        let id = find_app(call, app).await?.get();
        return Ok((Some(vec![StatsGroup { name: app.clone(), id, from: range.from }]), false));
    }
    if query.group.is_none() {
        return Ok((None, false));
    }
    let apps = store.apps(call.namespace.id).await?;
    let group = |app: App| StatsGroup { name: app.name, id: app.id.get(), from: range.from };
    let mut groups: Vec<StatsGroup> = apps.into_iter().filter(|app| call.may_view(app.id)).map(group).collect();
    let is_cut = groups.len() > GROUP_COUNT_MAX;
    groups.truncate(GROUP_COUNT_MAX);
    Ok((Some(groups), is_cut))
}

async fn series_of_groups(
    call: &Call<StatsQuery>,
    kind: PointKind,
    (groups, range): (&[StatsGroup], BucketRange),
) -> Result<Vec<SeriesJson>, Problem> {
    let is_grouped = call.query.group.is_some();
    let (mut series_list, mut total_buckets) = (Vec::new(), series::buckets_of(&[], range));
    for groups in groups.chunks(series::owner_count_max(range)) {
        let owners: Vec<i64> = groups.iter().map(|group| group.id).collect();
        let points = series::read_points(call, kind, &owners, range).await?;
        for group in groups {
            let is_of_group = |point: &&StatPoint| point.owner == group.id && point.at >= group.from;
            let points_of_group: Vec<StatPoint> = points.iter().filter(is_of_group).cloned().collect();
            let buckets = series::buckets_of(&points_of_group, range);
            if is_grouped {
                series_list.push(series_of(Some(group.name.clone()), &buckets));
            } else {
                series::add_buckets(&mut total_buckets, &buckets);
            }
        }
    }
    if !is_grouped {
        series_list.push(series_of(None, &total_buckets));
    }
    Ok(series_list)
}

fn series_of(name: Option<String>, buckets: &[Bucket]) -> SeriesJson {
    let total = BucketJson::from(&series::sum_buckets(buckets));
    let nonempty_buckets = buckets.iter().filter(|bucket| bucket.verdicts.total() > 0);
    SeriesJson { name, total, buckets: nonempty_buckets.map(BucketJson::from).collect() }
}

fn invalid_parameter_problem(parameter: &'static str, message: String) -> Problem {
    Problem::of_complaints(Code::InvalidQuery, vec![Complaint::query(parameter, "invalid_value", message)])
}
