//! The parameters of a report, and the report itself, for the API, its CSV files, and the page.

use std::collections::BTreeMap;
use std::time::Duration;

use futures_util::future::try_join;
use rondel_admin::reports::{self, Failure, Group, LENGTH_MAX, POINT_COUNT_MAX, Period, ReportRange, Row};
use rondel_core::report::ON_TIME_DEFAULT;
use rondel_core::sketch::Step;
use rondel_core::time::parse_duration;
use rondel_core::{AppId, JobId, Timestamp, name};
use rondel_store::alerts::WatchedJob;
use rondel_store::reports::FailureQuery;
use rondel_store::rollups::PointKind;

use crate::api::jobs::{find_app, parse_instant, visible_from};
use crate::call::{Call, quoted_input};
use crate::cursor::Listing;
use crate::named_jobs;
use crate::parameter::Parameter;
use crate::problem::{Code, Complaint, Problem};
use crate::query::{FromQuery, Reader};

/// The length of a report if the query has no range.
const LENGTH_DEFAULT: Duration = Duration::from_secs(7 * 24 * 3600);
const DAY: Duration = Duration::from_secs(24 * 3600);
/// The number of rows on one page.
const LIMIT_DEFAULT: u32 = 100;
const LIMIT_MAX: u32 = 500;
/// After this many rows, no further page is read for a file.
const FILE_ROW_COUNT_MAX: usize = 50_000;
/// Maximum number of failure messages in a report.
const FAILURE_COUNT_MAX: u32 = 20;
/// Maximum number of jobs that one report reads to find those that the caller may see, or those with the label.
const EXAMINED_JOB_COUNT_MAX: usize = 10_000;
/// How many jobs are read at a time.
const JOB_BATCH_COUNT: u32 = 500;
/// Maximum delay that a query may count as on time.
const ON_TIME_DELAY_MAX: Duration = DAY;

rondel_core::plain_word_enum! {
    /// How the runs of a report are grouped into rows.
    #[derive(Default)]
    pub(crate) GroupBy {
        /// One row for the whole namespace.
        Namespace = "namespace",
        /// A row for each app.
        #[default]
        App = "app",
        /// A row for each job.
        Job = "job",
        /// A row for each value of a label.
        Label = "label",
    }
}

#[derive(Clone, Debug, Default)]
pub(crate) struct ReportQuery {
    pub(crate) group_by: GroupBy,
    pub(crate) from: Option<Timestamp>,
    pub(crate) to: Option<Timestamp>,
    pub(crate) period: Period,
    pub(crate) app: Option<String>,
    pub(crate) job: Option<String>,
    /// `key`, or `key=value`.
    pub(crate) label: Option<String>,
    pub(crate) on_time: Option<Duration>,
    pub(crate) limit: u32,
    pub(crate) cursor: Option<String>,
}

impl FromQuery for ReportQuery {
    fn from_query(reader: &mut Reader) -> Self {
        let on_time = |text: &str| match parse_duration(text) {
            Ok(length) if length <= ON_TIME_DELAY_MAX => Ok(length),
            Ok(_) => Err(format!("{text:?} is longer than 24h")),
            Err(error) => Err(error.to_string()),
        };
        Self {
            group_by: reader
                .parsed(Parameter::word("by", &GroupBy::WORDS).about("What a row stands for; `app` if left out."), str::parse)
                .unwrap_or_default(),
            from: reader.parsed(
                Parameter::instant("from").about(
                    "The beginning; seven days before `to` if left out. Jobs and labels are counted by whole days in UTC, \
                     everything else by hours.",
                ),
                parse_instant,
            ),
            to: reader
                .parsed(Parameter::instant("to").about("The end, now if left out; at most 400 days after `from`."), parse_instant),
            period: reader
                .parsed(
                    Parameter::word("period", &Period::WORDS)
                        .about("A row for the whole range, or one for each day or month in UTC; `total` if left out."),
                    str::parse,
                )
                .unwrap_or_default(),
            app: reader.single(Parameter::name("app").about("Only runs of this app.")),
            job: reader.single(Parameter::name("job").about("Only runs of this job; needs `by=job`.")),
            label: reader.single(
                Parameter::text("label").about("For `by=label`: the key whose values are the rows, or `key=value` for one of them."),
            ),
            on_time: reader.parsed(
                Parameter::text("on_time").about(
                    "A scheduled fire that begins no later than this after its planned instant is on time; `10s` if left out.",
                ),
                on_time,
            ),
            limit: reader.limit(LIMIT_DEFAULT, LIMIT_MAX),
            cursor: reader.single(Parameter::cursor()),
        }
    }
}

#[derive(Debug)]
pub(crate) struct Report {
    pub(crate) range: ReportRange,
    /// The total over all runs that the query selects.
    pub(crate) total: Row,
    pub(crate) rows: Vec<Row>,
    pub(crate) failures: Vec<Failure>,
    /// Whether the counts leave out some jobs with the label, or some apps.
    pub(crate) is_cut: bool,
    pub(crate) next_cursor: Option<String>,
}

/// The groups of a report, and the data from which its rows and its total are computed.
#[derive(Debug, Default)]
struct ReportGroups {
    groups: Vec<Group>,
    /// The namespace, apps or jobs whose points are summed in the total, each with the instant from which its points count. `None` if the
    /// total is the sum of the groups.
    total_owners: Option<(PointKind, Vec<(i64, Timestamp)>)>,
    /// The jobs whose failures are counted; `None` for all jobs of the apps.
    jobs: Option<Vec<JobId>>,
    is_cut: bool,
    next_cursor: Option<String>,
}

/// Computes a report about the runs that the caller may see.
pub(crate) async fn report<Q: Sync>(call: &Call<Q>, query: &ReportQuery) -> Result<Report, Problem> {
    let range = range(query, call.engine().now())?;
    let point_kind = match (query.group_by, call.visible_apps()) {
        (GroupBy::Namespace, None) if query.app.is_none() => PointKind::Namespace,
        (GroupBy::Namespace | GroupBy::App, _) => PointKind::App,
        (GroupBy::Job | GroupBy::Label, _) => PointKind::Job,
    };
    let step = if point_kind == PointKind::Job { Step::Day } else { Step::Hour };
    let range = ReportRange { from: step.floor(range.from), ..range };
    let group_count_max = POINT_COUNT_MAX / range.point_count(point_kind).max(1);
    let group_count_max = usize::try_from(group_count_max).unwrap_or(usize::MAX).max(1);
    let app = match &query.app {
        Some(app) => Some(find_app(call, app).await?),
        None => None,
    };
    let group_search = find_groups(call, query, app, (point_kind, range, group_count_max));
    let failures = async |jobs: Option<&[JobId]>| {
        let apps = visible_apps(call, app);
        let (namespace, from, to) = (call.namespace.id, range.from, range.to);
        let failure_query = FailureQuery { namespace, jobs, apps: apps.as_deref(), from, to, limit: FAILURE_COUNT_MAX };
        let mut failure_groups = reports::failures(call.engine().node(), failure_query).await?;
        named_jobs::conceal_names(call, failure_groups.iter_mut().map(|failure| &mut failure.message).collect())
            .await?;
        Ok::<_, Problem>(failure_groups)
    };
    let (found_groups, (rows, mut total), failures) = if query.job.is_some() || query.group_by == GroupBy::Label {
        let found_groups = group_search.await?;
        let (counts, failures) =
            try_join(count_rows(call, point_kind, range, &found_groups), failures(found_groups.jobs.as_deref()))
                .await?;
        (found_groups, counts, failures)
    } else {
        // Failures of whole apps do not need the list of jobs. They take longest to read, so they are read concurrently with the counts.
        let groups_and_counts = async {
            let found_groups = group_search.await?;
            let counts = count_rows(call, point_kind, range, &found_groups).await?;
            Ok::<_, Problem>((found_groups, counts))
        };
        let ((found_groups, counts), failures) = try_join(groups_and_counts, failures(None)).await?;
        (found_groups, counts, failures)
    };
    let total = total.pop().ok_or_else(|| Problem::new(Code::Internal, "a report has no sum"))?;
    let (is_cut, next_cursor) = (found_groups.is_cut, found_groups.next_cursor);
    Ok(Report { range, total, rows, failures, is_cut, next_cursor })
}

/// A CSV file with the rows of all pages. If something is left out, the last line of the file is `cut_line`.
pub(crate) async fn whole_csv<Q: Sync>(call: &Call<Q>, query: ReportQuery, cut_line: &str) -> Result<String, Problem> {
    let mut query = ReportQuery { limit: LIMIT_MAX, cursor: None, ..query };
    let Report { range, total, rows, is_cut, mut next_cursor, .. } = report(call, &query).await?;
    // All pages have the range of the first one, even if the query has no fixed range.
    (query.from, query.to) = (query.from.or(Some(range.from)), Some(range.to));
    // Each page is converted to lines before the next one is read, since a row takes many times the memory of its line.
    let (mut lines, mut count) = (csv_lines(&rows), rows.len());
    drop(rows);
    while count < FILE_ROW_COUNT_MAX
        && let Some(cursor) = next_cursor.take()
    {
        query.cursor = Some(cursor);
        let next_page = report(call, &query).await?;
        lines.push_str(&csv_lines(&next_page.rows));
        count += next_page.rows.len();
        next_cursor = next_page.next_cursor;
    }
    let is_cut = is_cut || next_cursor.is_some();
    Ok(csv_with_total(&lines, &total, is_cut.then_some(cut_line)))
}

/// The rows of the groups, and the total.
async fn count_rows<Q>(
    call: &Call<Q>,
    point_kind: PointKind,
    range: ReportRange,
    report_groups: &ReportGroups,
) -> Result<(Vec<Row>, Vec<Row>), Problem> {
    let node = call.engine().node();
    let (kind_of_total, owners) = report_groups.total_owners.clone().unwrap_or_else(|| {
        let owners = report_groups.groups.iter().flat_map(|group| group.owners.iter().copied()).collect();
        (point_kind, owners)
    });
    let namespace_group = [Group { name: call.namespace.name.clone(), app: None, owners }];
    let total_range = ReportRange { period: Period::Total, ..range };
    let rows = reports::rows(node, point_kind, &report_groups.groups, range);
    Ok(try_join(rows, reports::rows(node, kind_of_total, &namespace_group, total_range)).await?)
}

/// `app` if it is given, else the apps that the caller may see; `None` for all apps.
fn visible_apps<Q>(call: &Call<Q>, app: Option<AppId>) -> Option<Vec<AppId>> {
    app.map(|app| vec![app]).or_else(|| call.visible_apps())
}

fn range(query: &ReportQuery, now: Timestamp) -> Result<ReportRange, Problem> {
    let to = query.to.unwrap_or(now);
    let from = query.from.unwrap_or_else(|| Step::Day.floor(to.saturating_sub(LENGTH_DEFAULT)));
    if from >= to {
        return Err(invalid_parameter_problem("to", format!("{to} is not after from, which is {from}")));
    }
    if to.since(from) > LENGTH_MAX + DAY {
        return Err(invalid_parameter_problem(
            "from",
            format!("from {from} to {to} is more than 400 days: counts are not kept longer"),
        ));
    }
    for (parameter, is_given, needed_grouping) in
        [("job", query.job.is_some(), GroupBy::Job), ("label", query.label.is_some(), GroupBy::Label)]
    {
        if is_given && query.group_by != needed_grouping {
            return Err(invalid_parameter_problem(
                parameter,
                format!("needs by={}, and by is {}", needed_grouping.as_str(), query.group_by.as_str()),
            ));
        }
    }
    if query.group_by == GroupBy::Label && query.label.is_none() {
        return Err(invalid_parameter_problem(
            "label",
            "is missing: by=label needs the key of a label, such as label=team".to_owned(),
        ));
    }
    let on_time_within = query.on_time.unwrap_or(ON_TIME_DEFAULT);
    Ok(ReportRange { from, to, period: query.period, on_time_within })
}

async fn find_groups<Q: Sync>(
    call: &Call<Q>,
    query: &ReportQuery,
    app: Option<AppId>,
    (point_kind, range, group_count_max): (PointKind, ReportRange, usize),
) -> Result<ReportGroups, Problem> {
    let store = call.engine().store();
    let apps = visible_apps(call, app);
    let namespace_owners = |apps: &Option<Vec<AppId>>| match apps {
        None => (PointKind::Namespace, vec![(call.namespace.id.get(), Timestamp::EPOCH)]),
        Some(apps) => (PointKind::App, apps.iter().map(|app| (app.get(), Timestamp::EPOCH)).collect()),
    };
    match query.group_by {
        GroupBy::Namespace => {
            let (_, owners) = namespace_owners(&apps);
            let group = Group { name: call.namespace.name.clone(), app: None, owners };
            let is_cut = group.owners.len() > group_count_max;
            Ok(ReportGroups { groups: vec![group], is_cut, ..ReportGroups::default() })
        }
        GroupBy::App => {
            let mut visible_apps = store.apps(call.namespace.id).await?;
            visible_apps
                .retain(|visible_app| call.may_view(visible_app.id) && app.is_none_or(|app| app == visible_app.id));
            let is_cut = visible_apps.len() > group_count_max.min(usize::try_from(LIMIT_MAX).unwrap_or(usize::MAX));
            visible_apps.truncate(group_count_max.min(usize::try_from(LIMIT_MAX).unwrap_or(usize::MAX)));
            let group = |visible_app: rondel_store::catalog::App| Group {
                owners: vec![(visible_app.id.get(), Timestamp::EPOCH)],
                name: visible_app.name,
                app: None,
            };
            let groups = visible_apps.into_iter().map(group).collect();
            Ok(ReportGroups { groups, total_owners: Some(namespace_owners(&apps)), is_cut, ..ReportGroups::default() })
        }
        GroupBy::Job => job_groups(call, query, (app, range, group_count_max)).await.map(|report_groups| {
            let total_owners = if query.job.is_some() { None } else { Some(namespace_owners(&apps)) };
            let jobs = query.job.as_ref().map(|_| owners_of(&report_groups.groups));
            ReportGroups { total_owners, jobs, ..report_groups }
        }),
        GroupBy::Label => {
            debug_assert_eq!(point_kind, PointKind::Job, "labels belong to jobs");
            let report_groups = label_groups(call, query, (app, range, group_count_max)).await?;
            let jobs = Some(owners_of(&report_groups.groups));
            Ok(ReportGroups { jobs, ..report_groups })
        }
    }
}

fn owners_of(groups: &[Group]) -> Vec<JobId> {
    groups.iter().flat_map(|group| &group.owners).map(|(job, _)| JobId::new(*job)).collect()
}

/// One group for each job of a page, in the order of their names. If the query names a job, only that job.
async fn job_groups<Q: Sync>(
    call: &Call<Q>,
    query: &ReportQuery,
    (app, range, group_count_max): (Option<AppId>, ReportRange, usize),
) -> Result<ReportGroups, Problem> {
    let listing = Listing::new("report", (call.namespace.id, query.group_by, &query.app, range.from, query.period));
    let mut after_name = listing.name_after(query.cursor.as_deref(), name::check)?.unwrap_or_default();
    if let Some(job) = &query.job {
        name::check(job).map_err(|message| invalid_parameter_problem("job", message))?;
        let jobs = call.engine().store().jobs_named(call.namespace.id, &[job.as_str()]).await?;
        let is_in_scope = |app_of_job: AppId| call.may_view(app_of_job) && app.is_none_or(|app| app == app_of_job);
        let Some(record) = jobs.into_iter().find(|record| is_in_scope(record.app)) else {
            let detail = format!("there is no job {} in namespace {}", quoted_input(job), call.namespace.name);
            return Err(Problem::new(Code::JobNotFound, detail));
        };
        let from_by_job = visible_from(call, &record, range.from, range.to).await?;
        let group =
            Group { name: record.spec.name, app: Some(record.spec.app), owners: vec![(record.id.get(), from_by_job)] };
        return Ok(ReportGroups { groups: vec![group], ..ReportGroups::default() });
    }
    let limit = group_count_max.min(usize::try_from(query.limit.max(1)).unwrap_or(usize::MAX));
    let (mut visible_jobs, mut examined_count, mut has_more) = (Vec::new(), 0, true);
    while has_more && visible_jobs.len() < limit && examined_count < EXAMINED_JOB_COUNT_MAX {
        let read_count = u32::try_from(limit - visible_jobs.len()).unwrap_or(JOB_BATCH_COUNT).min(JOB_BATCH_COUNT);
        let page = call.engine().store().watched_jobs(call.namespace.id, app, &after_name, read_count).await?;
        has_more = page.len() == usize::try_from(read_count).unwrap_or(usize::MAX);
        examined_count += page.len();
        after_name = page.last().map_or(after_name, |last| last.name.clone());
        visible_jobs.extend(page.into_iter().filter(|job| call.may_view(job.app)));
    }
    let from_by_job = visible_since(call, &visible_jobs, range).await?;
    let group = |job: WatchedJob| Group {
        owners: vec![(job.id.get(), from_by_job.get(&job.id).copied().unwrap_or(range.from))],
        name: job.name,
        app: Some(job.app_name),
    };
    let next_cursor = has_more.then(|| listing.cursor(&after_name));
    Ok(ReportGroups { groups: visible_jobs.into_iter().map(group).collect(), next_cursor, ..ReportGroups::default() })
}

/// The instants from which the caller may see the counts of these jobs. Empty for a caller who may see the whole namespace.
async fn visible_since<Q: Sync>(
    call: &Call<Q>,
    jobs: &[WatchedJob],
    range: ReportRange,
) -> Result<BTreeMap<JobId, Timestamp>, Problem> {
    let mut from_by_job = BTreeMap::new();
    if call.visible_apps().is_none() {
        return Ok(from_by_job);
    }
    let names: Vec<&str> = jobs.iter().map(|job| job.name.as_str()).collect();
    for record in call.engine().store().jobs_named(call.namespace.id, &names).await? {
        from_by_job.insert(record.id, visible_from(call, &record, range.from, range.to).await?);
    }
    Ok(from_by_job)
}

/// One group per value of a label.
async fn label_groups<Q: Sync>(
    call: &Call<Q>,
    query: &ReportQuery,
    (app, range, group_count_max): (Option<AppId>, ReportRange, usize),
) -> Result<ReportGroups, Problem> {
    let label = query.label.as_deref().unwrap_or_default();
    let (key, wanted_value) = label.split_once('=').map_or((label, None), |(key, value)| (key, Some(value)));
    let (mut jobs, mut after_name, mut examined_count) = (Vec::new(), String::new(), 0);
    let mut is_cut = false;
    loop {
        let page = call.engine().store().watched_jobs(call.namespace.id, app, &after_name, JOB_BATCH_COUNT).await?;
        let is_last = page.len() < usize::try_from(JOB_BATCH_COUNT).unwrap_or(usize::MAX);
        examined_count += page.len();
        after_name = page.last().map_or(after_name, |last| last.name.clone());
        let has_label = |job: &WatchedJob| {
            job.labels.get(key).is_some_and(|value| wanted_value.is_none_or(|wanted_value| wanted_value == value))
                && call.may_view(job.app)
        };
        jobs.extend(page.into_iter().filter(has_label));
        if jobs.len() > group_count_max {
            jobs.truncate(group_count_max);
            is_cut = true;
        } else if !is_last && examined_count >= EXAMINED_JOB_COUNT_MAX {
            is_cut = true;
        }
        if is_last || is_cut {
            break;
        }
    }
    let from_by_job = visible_since(call, &jobs, range).await?;
    let mut groups: BTreeMap<String, Group> = BTreeMap::new();
    for job in jobs {
        let Some(value) = job.labels.get(key) else { continue };
        let group = groups.entry(value.clone()).or_insert_with(|| Group { name: value.clone(), ..Group::default() });
        group.owners.push((job.id.get(), from_by_job.get(&job.id).copied().unwrap_or(range.from)));
    }
    Ok(ReportGroups { groups: groups.into_values().collect(), is_cut, ..ReportGroups::default() })
}

fn invalid_parameter_problem(parameter: &'static str, message: String) -> Problem {
    Problem::of_complaints(Code::InvalidQuery, vec![Complaint::query(parameter, "invalid_value", message)])
}

/// A CSV file with one page of a report: its rows, then the total. If not everything was counted, the last line of the file is `cut_line`.
pub(crate) fn csv(report: &Report, cut_line: &str) -> String {
    csv_with_total(&csv_lines(&report.rows), &report.total, report.is_cut.then_some(cut_line))
}

fn csv_lines(rows: &[Row]) -> String {
    rows.iter().map(|row| csv_line(row, &csv_cell(&row.name))).collect()
}

fn csv_with_total(lines: &str, total: &Row, cut_line: Option<&str>) -> String {
    // With the byte order mark, spreadsheets read the file as UTF-8.
    let header_line = "\u{feff}name,app,at,runs,succeeded,failed,timed_out,unknown,skipped,cancelled,succeeded_percent,on_time_percent,\
                duration_p50_ms,duration_p95_ms,duration_p99_ms,lateness_p50_ms,lateness_p95_ms,lateness_p99_ms\r\n";
    let cut_line = cut_line.map(|words| format!("{}\r\n", csv_cell(words))).unwrap_or_default();
    format!("{header_line}{lines}{}{cut_line}", csv_line(total, "(total)"))
}

fn csv_line(row: &Row, name: &str) -> String {
    let verdicts = row.verdicts;
    let percent_text = |per_mille: Option<u32>| {
        per_mille.map(|per_mille| format!("{}.{}", per_mille / 10, per_mille % 10)).unwrap_or_default()
    };
    let millis_text =
        |length: Option<Duration>| length.map(|length| length.as_millis().to_string()).unwrap_or_default();
    let quantiles = [&row.durations, &row.lateness].into_iter();
    let quantiles =
        quantiles.flat_map(|sketch| [500, 950, 990].map(|per_mille| millis_text(sketch.quantile(per_mille))));
    let mut cells = vec![name.to_owned(), csv_cell(row.app.as_deref().unwrap_or_default()), row.at.to_string()];
    let numbers = [
        verdicts.total(),
        verdicts.succeeded,
        verdicts.failed,
        verdicts.timed_out,
        verdicts.unknown,
        verdicts.skipped,
        verdicts.cancelled,
    ];
    cells.extend(numbers.map(|count| count.to_string()));
    cells.extend([percent_text(row.shares.succeeded), percent_text(row.shares.on_time)]);
    cells.extend(quantiles);
    format!("{}\r\n", cells.join(","))
}

/// A text as a cell of a CSV file. A text that begins like a formula gets an apostrophe, since spreadsheets would run it.
fn csv_cell(text: &str) -> String {
    let is_formula = text.starts_with(['=', '+', '-', '@', '\t', '\r']);
    let text = if is_formula { format!("'{text}") } else { text.to_owned() };
    if text.contains(['"', ',', '\n', '\r']) { format!("\"{}\"", text.replace('"', "\"\"")) } else { text }
}
