//! The charts of a job's page: a year of outcomes, the durations of its runs, and its next fires.

use std::time::Duration;

use askama::Template;
use rondel_admin::forecast::next_fires;
use rondel_core::Timestamp;
use rondel_core::cron::Tz;
use rondel_core::sketch::Step;
use rondel_store::catalog::JobRecord;
use rondel_store::rollups::{PointKind, Verdicts};

use super::drawing::{WIDTH, runs_between};
use super::moment::{Moment, length_text};
use super::texts::Texts;
use super::zones;
use crate::api::jobs::visible_from;
use crate::call::Call;
use crate::overview::series::{self, Bucket, BucketRange};
use crate::problem::Problem;

const DAY: Duration = Duration::from_secs(24 * 3_600);
/// How many weeks the year map has, including the current one.
const WEEK_COUNT: u32 = 53;
/// How many days the chart of durations has.
const BAND_DAY_COUNT: u32 = 30;
/// The height of the chart of durations, in the units of its drawing.
const BAND_HEIGHT: u128 = 90;
const NEXT_FIRE_COUNT: usize = 10;
/// How far ahead fires are searched.
const LOOK_AHEAD: Duration = Duration::from_secs(366 * 24 * 3_600);
/// The side of a day's square in the year map, including the gap.
const CELL_SIZE: usize = 12;

/// The charts, as a part of a page: `{{ charts|safe }}` renders it.
#[derive(Template)]
#[template(path = "job_charts.html")]
pub(super) struct JobCharts {
    t: &'static Texts,
    days: Vec<DayCell>,
    width: usize,
    band: Option<DurationBand>,
    next_fires: Vec<Moment>,
    /// Whether the list of next fires shows seconds.
    has_seconds: bool,
}

struct DayCell {
    /// The position of the square, in the units of the drawing.
    x: usize,
    y: usize,
    class: &'static str,
    href: Option<String>,
    title: String,
}

/// The durations of runs, day by day.
struct DurationBand {
    /// The SVG path of the area between the two percentiles.
    area: String,
    /// The SVG path of the 50th percentiles.
    p50: String,
    /// The SVG path of the 95th percentiles.
    p95: String,
    /// The 50th percentile of the newest day.
    newest_p50: String,
    /// The 95th percentile of the newest day.
    newest_p95: String,
    /// The highest 95th percentile of all days.
    p95_max: String,
}

pub(super) async fn read<Q>(
    call: &Call<Q>,
    record: &JobRecord,
    (now, t): (Timestamp, &'static Texts),
) -> Result<JobCharts, Problem> {
    let day_end = Step::Day.floor(now) + DAY;
    let year = BucketRange::new(Step::Day, day_end - DAY * (WEEK_COUNT * 7), day_end);
    let mut buckets = series::owner_buckets(call, PointKind::Job, &[record.id.get()], year).await?;
    // If the job moved to another app, only runs of apps that the caller sees are counted.
    let from = visible_from(call, record, year.from, year.to).await?;
    buckets.iter_mut().filter(|bucket| bucket.at < from).for_each(|bucket| *bucket = Bucket::empty(bucket.at));
    let fires =
        next_fires(call.engine().node(), (record.id, record.version), (now, now + LOOK_AHEAD), NEXT_FIRE_COUNT).await?;
    let fires = record.next_fire_at.filter(|at| *at > now).into_iter().chain(fires);
    let mut fires: Vec<Timestamp> = fires.filter(|_| record.spec.enabled).collect();
    fires.sort_unstable();
    fires.dedup();
    let next_fires: Vec<Moment> = fires.into_iter().take(NEXT_FIRE_COUNT).map(|at| Moment::new(at, now, t)).collect();
    let newest_index = buckets.len().saturating_sub(usize::try_from(BAND_DAY_COUNT).unwrap_or(0));
    Ok(JobCharts {
        t,
        days: day_cells(&buckets, &record.spec.name, (now, t)),
        width: usize::try_from(WEEK_COUNT + 1).unwrap_or(0) * CELL_SIZE,
        band: duration_band(buckets.get(newest_index..).unwrap_or_default(), t),
        has_seconds: some_have_seconds(&next_fires),
        next_fires,
    })
}

/// Whether any instant of a list is not on a whole minute. If so, all of them are shown with seconds.
fn some_have_seconds(moments: &[Moment]) -> bool {
    moments.iter().any(|moment| moment.short() == moment.time)
}

/// The cells of the year map, one per day. Columns are weeks that begin on Monday.
fn day_cells(buckets: &[Bucket], job: &str, (now, t): (Timestamp, &'static Texts)) -> Vec<DayCell> {
    // 1970 began on a Thursday.
    let weekday = |at: Timestamp| usize::try_from((at.second() / 86_400 + 3).rem_euclid(7)).unwrap_or(0);
    let first_weekday = buckets.first().map_or(0, |bucket| weekday(bucket.at));
    let cell = |(day_index, bucket): (usize, &Bucket)| {
        let cell_index = day_index + first_weekday;
        let verdicts = bucket.verdicts;
        // The days are days in UTC, whatever clock the user chose.
        let (day, ..) = zones::time_parts(bucket.at, Tz::UTC);
        let failure_count = verdicts.failure_count();
        let failure_note =
            if failure_count > 0 { format!(" · {}", t.lane_failed(failure_count)) } else { String::new() };
        DayCell {
            x: cell_index / 7 * CELL_SIZE,
            y: cell_index % 7 * CELL_SIZE,
            class: day_class(verdicts),
            href: (verdicts.total() > 0).then(|| runs_between(bucket.at, bucket.at + DAY, Some(("job", job)))),
            title: format!("{day} · {}{failure_note}", t.lane_runs(verdicts.total())),
        }
    };
    buckets.iter().enumerate().filter(|(_, bucket)| bucket.at <= now).map(cell).collect()
}

const fn day_class(verdicts: Verdicts) -> &'static str {
    let (total, failure_count) = (verdicts.total(), verdicts.failure_count());
    match (total, failure_count) {
        (0, _) => "y-none",
        (_, 0) if verdicts.succeeded == 0 => "y-skip",
        (_, 0) => "y-ok",
        (total, failure_count) if failure_count * 2 >= total => "y-bad",
        _ => "y-some",
    }
}

/// The chart of durations, for days with runs; `None` if no day has any.
fn duration_band(buckets: &[Bucket], t: &'static Texts) -> Option<DurationBand> {
    let day_quantiles = |(day, bucket): (usize, &Bucket)| {
        let (p50, p95) = (bucket.durations.quantile(500)?, bucket.durations.quantile(950)?);
        Some((day, p50, p95))
    };
    let days: Vec<(usize, Duration, Duration)> = buckets.iter().enumerate().filter_map(day_quantiles).collect();
    let longest_p95 = days.iter().map(|(.., p95)| *p95).max()?;
    let (_, newest_p50, newest_p95) = days.last().copied()?;
    let width = usize::try_from(WIDTH).unwrap_or(usize::MAX);
    let x = |day: usize| day * width / buckets.len().saturating_sub(1).max(1);
    let y = |duration: Duration| BAND_HEIGHT + 3 - duration.as_millis() * BAND_HEIGHT / longest_p95.as_millis().max(1);
    let points_of = |quantile: fn(&(usize, Duration, Duration)) -> Duration| {
        days.iter().map(|day| format!("{} {}", x(day.0), y(quantile(day)))).collect::<Vec<_>>()
    };
    let (p50, p95) = (points_of(|day| day.1), points_of(|day| day.2));
    let lower_edge = p50.iter().rev();
    let area = p95.iter().chain(lower_edge).cloned().collect::<Vec<_>>().join("L");
    // A path with one point would be invisible, so it gets a short line.
    let path = |points: &[String]| match points {
        [point] if point.starts_with("0 ") => format!("M{point}h300"),
        [point] => format!("M{point}h-300"),
        points => format!("M{}", points.join("L")),
    };
    Some(DurationBand {
        area: format!("M{area}Z"),
        p50: path(&p50),
        p95: path(&p95),
        newest_p50: length_text(newest_p50, t),
        newest_p95: length_text(newest_p95, t),
        p95_max: length_text(longest_p95, t),
    })
}

#[cfg(test)]
mod tests {
    use http::header::COOKIE;
    use http::{HeaderMap, HeaderValue};
    use rondel_core::sketch::Sketch;

    use super::super::texts::Lang;
    use super::super::zones::Zones;
    use super::*;

    fn bucket(day: i64, verdicts: Verdicts, took: &[u64]) -> Bucket {
        let mut durations = Sketch::default();
        took.iter().for_each(|took| durations.add(Duration::from_millis(*took)));
        Bucket { verdicts, durations, ..Bucket::empty(Timestamp::from_secs(day * 86_400)) }
    }

    #[test]
    fn a_day_is_as_its_runs_were() {
        let of = |succeeded, failed, skipped| day_class(Verdicts { succeeded, failed, skipped, ..Verdicts::default() });
        assert_eq!(
            [of(0, 0, 0), of(9, 0, 1), of(9, 1, 0), of(1, 1, 0), of(0, 0, 4)],
            ["y-none", "y-ok", "y-some", "y-bad", "y-skip"]
        );
    }

    #[test]
    fn a_list_shows_seconds_in_all_lines_or_in_none() {
        let now = Timestamp::from_secs(1_800_000_000);
        let show = |seconds: [i64; 2]| {
            let moments =
                seconds.map(|at| Moment::new(Timestamp::from_secs(1_800_000_000 + at), now, Lang::En.texts()));
            some_have_seconds(&moments)
        };
        assert_eq!([show([0, 60]), show([53, 60])], [false, true]);
    }

    #[test]
    fn weeks_begin_on_monday() {
        let t = Lang::En.texts();
        // 5 January 1970 was a Monday.
        let buckets: Vec<Bucket> = (4..13).map(|day| bucket(day, Verdicts::default(), &[])).collect();
        let cells = day_cells(&buckets, "job", (Timestamp::from_secs(20 * 86_400), t));
        let places: Vec<(usize, usize)> = cells.iter().map(|cell| (cell.x / CELL_SIZE, cell.y / CELL_SIZE)).collect();
        assert_eq!((places[0], places[6], places[7]), ((0, 0), (0, 6), (1, 0)));
    }

    #[tokio::test]
    async fn a_day_of_utc_has_its_own_date_on_every_clock() {
        let cookie = HeaderMap::from_iter([(COOKIE, HeaderValue::from_static("rondel_zone=America/New_York"))]);
        let buckets = [bucket(4, Verdicts::default(), &[])];
        let cells = Zones::new(&cookie)
            .scope(async { day_cells(&buckets, "job", (Timestamp::from_secs(20 * 86_400), Lang::En.texts())) })
            .await;
        assert!(cells[0].title.starts_with("1970-01-05 · "), "{}", cells[0].title);
    }

    #[test]
    fn durations_are_a_band_where_there_are_any() {
        let t = Lang::En.texts();
        assert!(duration_band(&[bucket(0, Verdicts::default(), &[])], t).is_none());
        let found =
            duration_band(&[bucket(0, Verdicts::default(), &[10, 20]), bucket(1, Verdicts::default(), &[30])], t)
                .unwrap();
        assert!(found.area.starts_with("M0 ") && found.area.ends_with('Z'));
        assert!(found.p50.contains(&format!("{WIDTH} ")), "{}", found.p50);
        assert!(!found.p95_max.is_empty());
        // With one day at the end, a short line ends there, so that it stays within the chart.
        let last =
            duration_band(&[bucket(0, Verdicts::default(), &[]), bucket(1, Verdicts::default(), &[30])], t).unwrap();
        assert!(last.p50.starts_with(&format!("M{WIDTH} ")) && last.p50.ends_with("h-300"), "{}", last.p50);
    }
}
