//! The timeline: lanes of runs and fires, a table of the hours in which runs pile up, and a forecast of upcoming fires.

use std::time::Duration;

use askama::Template;
use axum::response::Response;
use futures_util::future::try_join;
use http::StatusCode;
use rondel_admin::forecast::{Forecast, ForecastRange, forecast};
use rondel_core::cron::Tz;
use rondel_core::sketch::Step;
use rondel_core::{Timestamp, name};

use super::drawing::{AxisLabel, Drawing, Scale, WIDTH, axis, runs_between, short_time_text, span_text};
use super::moment::Moment;
use super::shell::{Nav, Page, Shell, html};
use super::texts::Texts;
use super::zones;
use crate::overview::lanes::{self, LaneKind, MARK_COUNT_MAX, TimelineRequest};
use crate::overview::recent_failures::RecentFailures;
use crate::overview::series::{self, Bucket, BucketRange};
use crate::problem::Problem;
use crate::query::{FromQuery, Reader};
use crate::redirect::query_pair;

const HOUR: Duration = Duration::from_secs(3_600);
const DAY: Duration = Duration::from_secs(24 * 3_600);
/// The ranges to select from, in hours, with their words in URLs.
const RANGES: [(&str, u32); 4] = [("1h", 1), ("6h", 6), ("24h", 24), ("7d", 168)];
const RANGE_DEFAULT: usize = 2;
/// How many lanes are shown.
const LANE_COUNT_DEFAULT: u32 = 24;
/// How many lanes are shown if the user asks for more, with the word for this in URLs.
const MORE_LANES: (&str, u32) = ("100", 100);
/// How many days the table of hours shows.
const HEAT_DAY_COUNT: u32 = 7;
/// How many fires the forecast lists.
const FORECAST_FIRE_COUNT: usize = 40;
/// How much time each bar of the forecast covers.
const FORECAST_STEP: Duration = Duration::from_secs(900);
/// The height of the forecast, in the units of its drawing.
const FORECAST_HEIGHT: u64 = 90;

/// The query parameters of the page.
#[derive(Debug)]
pub(crate) struct TimelineQuery {
    lane_kind: LaneKind,
    /// The index of the range in [`RANGES`].
    range_index: usize,
    /// The end of the range; `None` if the range includes the current instant.
    to: Option<Timestamp>,
    /// The text that the names of the jobs must contain.
    contains: String,
    app: Option<String>,
    /// Whether the user asked for more lanes.
    wants_more_lanes: bool,
}

impl FromQuery for TimelineQuery {
    fn from_query(reader: &mut Reader) -> Self {
        let range_index = |word: &str| {
            let index = RANGES.iter().position(|(name, _)| *name == word);
            index.ok_or_else(|| format!("{word:?} is none of {}", RANGES.map(|(name, _)| name).join(", ")))
        };
        let wants_more_lanes = |word: &str| match word {
            "" => Ok(false),
            word if word == MORE_LANES.0 => Ok(true),
            _ => Err(format!("{word:?} is not {}", MORE_LANES.0)),
        };
        let instant = |text: &str| {
            let at = text.parse::<Timestamp>().map_err(|error| error.to_string())?;
            let is_known = (Timestamp::EPOCH..Timestamp::from_secs(7_258_118_400)).contains(&at);
            is_known.then_some(at).ok_or_else(|| format!("{at} is outside the years 1970 to 2199"))
        };
        let name_part = |text: &str| {
            let text = text.trim().to_ascii_lowercase();
            let is_name_char = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
            let is_name_part = text.len() <= name::NAME_LEN_MAX && text.chars().all(is_name_char);
            is_name_part
                .then_some(text.clone())
                .ok_or_else(|| format!("{text:?} is not a part of a name: a-z, 0-9, '.', '_' and '-'"))
        };
        Self {
            lane_kind: reader.parsed("by", str::parse).unwrap_or_default(),
            range_index: reader.parsed("zoom", range_index).unwrap_or(RANGE_DEFAULT),
            to: reader.parsed("to", instant),
            contains: reader.parsed("q", name_part).unwrap_or_default(),
            app: reader.single("app").filter(|app| !app.is_empty()),
            wants_more_lanes: reader.parsed("lanes", wants_more_lanes).unwrap_or_default(),
        }
    }
}

impl TimelineQuery {
    const fn lane_count(&self) -> u32 {
        if self.wants_more_lanes { MORE_LANES.1 } else { LANE_COUNT_DEFAULT }
    }

    fn length(&self) -> Duration {
        HOUR * RANGES.get(self.range_index).map_or(24, |(_, hours)| *hours)
    }

    /// The range that is shown. If the URL has no end, a quarter of the range is in the future.
    fn scale(&self, now: Timestamp) -> Scale {
        let to = self.to.unwrap_or(now + self.length() / 4);
        Scale { from: to.saturating_sub(self.length()).max(Timestamp::EPOCH), to }
    }

    fn url(&self, lane_kind: LaneKind, range_index: usize, to: Option<Timestamp>) -> String {
        let mut pairs = vec![
            query_pair("by", lane_kind.as_str()),
            query_pair("zoom", RANGES.get(range_index).map_or("24h", |(name, _)| name)),
        ];
        pairs.extend(to.map(|to| query_pair("to", &to.to_string())));
        pairs.extend((!self.contains.is_empty()).then(|| query_pair("q", &self.contains)));
        pairs.extend(self.app.as_deref().map(|app| query_pair("app", app)));
        pairs.extend(self.wants_more_lanes.then(|| query_pair("lanes", MORE_LANES.0)));
        format!("/timeline?{}", pairs.join("&"))
    }
}

/// A selectable option.
struct TimelineOption {
    word: String,
    href: String,
    is_selected: bool,
}

#[derive(Template)]
#[template(path = "timeline.html")]
struct TimelinePage {
    shell: Shell,
    t: &'static Texts,
    drawing: Drawing,
    lane_kinds: Vec<TimelineOption>,
    zooms: Vec<TimelineOption>,
    /// The URL of the range that begins half a range earlier.
    earlier_url: String,
    /// The URL of the range that begins half a range later.
    later_url: String,
    /// The URL of the range with the current instant; `None` if the page shows that range.
    present_url: Option<String>,
    from: Moment,
    to: Moment,
    contains: String,
    app: String,
    by_word: &'static str,
    zoom_word: &'static str,
    /// Whether there are more lanes than these.
    has_more: bool,
    /// Whether only the newest runs are shown.
    is_cut: bool,
    /// Whether a lane has runs that are joined into one mark.
    has_joined: bool,
    mark_max: usize,
    heat: Vec<HeatRow>,
    /// The hours that label the columns of the table.
    hours: Vec<u32>,
    lane_max: u32,
    /// The URL of the timeline with more lanes.
    more_lanes_url: Option<String>,
}

/// A day in the table of hours.
struct HeatRow {
    day: String,
    cells: Vec<HeatCell>,
}

/// An hour in the table of hours.
struct HeatCell {
    x: u32,
    /// The shade, from 0 (no runs) to 5.
    class: usize,
    /// Whether the hour has unusually many failures.
    is_unusual: bool,
    href: String,
    title: String,
}

pub(super) async fn page(page: Page<TimelineQuery>) -> Result<Response, Problem> {
    let (now, t, query) = (page.engine().now(), page.t, page.query());
    let scale = query.scale(now);
    let app = match query.app.as_deref() {
        Some(name) => Some(crate::api::jobs::find_app(&page.call, name).await?),
        None => None,
    };
    let request = TimelineRequest {
        lane_kind: query.lane_kind,
        from: scale.from,
        to: scale.to,
        app,
        contains: Some(query.contains.clone()).filter(|text| !text.is_empty()),
        lane_count: query.lane_count(),
    };
    let day_end = Step::Day.floor(now) + DAY;
    let week_range = BucketRange::new(Step::Hour, day_end - DAY * HEAT_DAY_COUNT, day_end);
    let hours = series::namespace_verdicts(&page.call, week_range);
    let failures = RecentFailures::default();
    let (timeline, hours) = try_join(lanes::timeline(&page.call, &request, &failures), hours).await?;
    let heat = heat_rows(&hours, now, t);
    let step = query.length() / 2;
    let lane_kind_option = |by: LaneKind| TimelineOption {
        word: lane_kind_name(by, t).to_owned(),
        href: query.url(by, query.range_index, query.to),
        is_selected: by == query.lane_kind,
    };
    let zoom_option = |(range_index, (word, _)): (usize, &(&str, u32))| TimelineOption {
        word: (*word).to_owned(),
        href: query.url(query.lane_kind, range_index, query.to),
        is_selected: range_index == query.range_index,
    };
    let template = TimelinePage {
        shell: page.shell(Nav::Timeline),
        t,
        lane_kinds: LaneKind::ALL.into_iter().map(lane_kind_option).collect(),
        zooms: RANGES.iter().enumerate().map(zoom_option).collect(),
        earlier_url: query.url(query.lane_kind, query.range_index, Some(scale.to.saturating_sub(step))),
        later_url: query.url(query.lane_kind, query.range_index, Some(scale.to + step)),
        present_url: query.to.is_some().then(|| query.url(query.lane_kind, query.range_index, None)),
        from: Moment::new(scale.from, now, t),
        to: Moment::new(scale.to, now, t),
        contains: query.contains.clone(),
        app: query.app.clone().unwrap_or_default(),
        by_word: query.lane_kind.as_str(),
        zoom_word: RANGES.get(query.range_index).map_or("24h", |(word, _)| word),
        has_more: timeline.has_more,
        is_cut: timeline.is_cut,
        has_joined: query.lane_kind == LaneKind::Job && timeline.lanes.iter().any(|lane| lane.is_joined),
        mark_max: MARK_COUNT_MAX,
        drawing: Drawing::new(scale, query.lane_kind, &timeline.lanes, (now, t)),
        heat,
        hours: (0..24).step_by(3).collect(),
        lane_max: query.lane_count(),
        more_lanes_url: (timeline.has_more && !query.wants_more_lanes).then(|| {
            format!("{}&{}", query.url(query.lane_kind, query.range_index, query.to), query_pair("lanes", MORE_LANES.0))
        }),
    };
    html(StatusCode::OK, &template)
}

const fn lane_kind_name(lane_kind: LaneKind, t: &Texts) -> &'static str {
    match lane_kind {
        LaneKind::Job => t.timeline_jobs,
        LaneKind::App => t.timeline_apps,
        LaneKind::Executor => t.timeline_executors,
    }
}

/// The shade of an hour, from 0 to 5. The more runs the hour has compared with a usual hour, the darker it is.
const fn heat_class(count: u64, median: u64) -> usize {
    match count.saturating_mul(100) / median {
        _ if count == 0 => 0,
        0..=34 => 1,
        35..=74 => 2,
        75..=129 => 3,
        130..=199 => 4,
        _ => 5,
    }
}

/// The median number of failures of the hours that had runs; 0 if none had.
fn median_failure_count(buckets: &[Bucket]) -> u64 {
    let busy_buckets = buckets.iter().filter(|bucket| bucket.verdicts.total() > 0);
    let mut failure_counts: Vec<u64> = busy_buckets.map(|bucket| bucket.verdicts.failure_count()).collect();
    failure_counts.sort_unstable();
    failure_counts.get(failure_counts.len() / 2).copied().unwrap_or(0)
}

/// Whether an hour has at least one and a half times the usual number of failures. If runs fail in every hour, this marks only the
/// extraordinary hours.
const fn is_unusual(failure_count: u64, median: u64) -> bool {
    failure_count > 0 && failure_count.saturating_mul(2) >= median.saturating_mul(3)
}

/// The table of hours: days in UTC with their hours, the newest day first.
fn heat_rows(buckets: &[Bucket], now: Timestamp, t: &'static Texts) -> Vec<HeatRow> {
    let mut run_counts: Vec<u64> =
        buckets.iter().map(|bucket| bucket.verdicts.total()).filter(|run_count| *run_count > 0).collect();
    run_counts.sort_unstable();
    let median_run_count = run_counts.get(run_counts.len() / 2).copied().unwrap_or(1).max(1);
    let usual_failure_count = median_failure_count(buckets);
    let cell = |(hour, bucket): (usize, &Bucket)| {
        let (run_count, failure_count) = (bucket.verdicts.total(), bucket.verdicts.failure_count());
        let class = heat_class(run_count, median_run_count);
        let (day, time, _) = zones::time_parts(bucket.at, Tz::UTC);
        let failure_note =
            if failure_count > 0 { format!(" · {}", t.lane_failed(failure_count)) } else { String::new() };
        HeatCell {
            x: u32::try_from(hour).unwrap_or(0) * 30,
            class,
            is_unusual: is_unusual(failure_count, usual_failure_count),
            href: runs_between(bucket.at, bucket.at + HOUR, None),
            title: format!("{day} {} · {}{failure_note}", time.get(..5).unwrap_or_default(), t.lane_runs(run_count)),
        }
    };
    let day = |hours: &[Bucket]| HeatRow {
        day: hours
            .first()
            .map(|first| zones::time_parts(first.at, Tz::UTC).0.get(5..).unwrap_or_default().to_owned())
            .unwrap_or_default(),
        cells: hours.iter().enumerate().filter(|(_, bucket)| bucket.at <= now).map(cell).collect(),
    };
    buckets.chunks(24).map(day).rev().collect()
}

#[derive(Template)]
#[template(path = "timeline_ahead.html")]
struct AheadPage {
    shell: Shell,
    t: &'static Texts,
    bars: Vec<AheadBar>,
    axis: Vec<AxisLabel>,
    fires: Vec<AheadFire>,
    /// The instant with the most fires, in words; `None` if no instant has several.
    peak_text: Option<String>,
    is_cut: bool,
    /// The number of fires in the forecast.
    total: u64,
}

/// The number of upcoming fires in a quarter of an hour.
struct AheadBar {
    x: u32,
    width: u32,
    y: u64,
    height: u64,
    title: String,
}

/// An upcoming fire.
struct AheadFire {
    at: Moment,
    job: String,
    app: String,
}

/// Forecasts the fires of the next 24 hours.
pub(super) async fn ahead(page: Page) -> Result<Response, Problem> {
    let (now, t) = (page.engine().now(), page.t);
    let range = ForecastRange { from: now, to: now + DAY, step: FORECAST_STEP, limit: FORECAST_FIRE_COUNT };
    let visible_apps = page.call.visible_apps();
    let upcoming_fires = forecast(page.engine().node(), page.call.namespace.id, visible_apps.as_deref(), range).await?;
    let scale = Scale { from: Step::QuarterHour.floor(now), to: now + DAY };
    let peak_text = upcoming_fires
        .peak
        .filter(|(_, count)| *count > 1)
        .map(|(at, count)| t.ahead_peak(count, short_time_text(at, now, zones::clock_and_zone().1)));
    let fire = |fire: &rondel_admin::forecast::ComingFire| AheadFire {
        at: Moment::new(fire.at, now, t),
        job: fire.name.clone(),
        app: fire.app.clone(),
    };
    let template = AheadPage {
        shell: page.shell(Nav::Timeline),
        t,
        bars: ahead_bars(&upcoming_fires, scale, now, t),
        axis: axis(scale),
        fires: upcoming_fires.fires.iter().map(fire).collect(),
        peak_text,
        is_cut: upcoming_fires.is_cut,
        total: upcoming_fires.density.values().sum(),
    };
    html(StatusCode::OK, &template)
}

fn ahead_bars(upcoming_fires: &Forecast, scale: Scale, now: Timestamp, t: &'static Texts) -> Vec<AheadBar> {
    let highest_count = upcoming_fires.density.values().copied().max().unwrap_or(0).max(1);
    let bar = |(quarter_start, count): (&Timestamp, &u64)| {
        let (x, right) = (scale.x(*quarter_start), scale.x(*quarter_start + FORECAST_STEP));
        let height = (count * FORECAST_HEIGHT / highest_count).max(2);
        let quarter_start = Moment::new(*quarter_start, now, t);
        AheadBar {
            x,
            width: right.saturating_sub(x).saturating_sub(16).clamp(16, WIDTH),
            y: FORECAST_HEIGHT - height,
            height,
            title: format!("{} · {}", quarter_start.time.get(..5).unwrap_or_default(), t.lane_fires(count)),
        }
    };
    upcoming_fires.density.iter().map(bar).collect()
}

impl AheadPage {
    /// The length of the forecast as text.
    fn span(&self) -> String {
        span_text(DAY, self.t)
    }
}

#[cfg(test)]
mod tests {
    use http::header::COOKIE;
    use http::{HeaderMap, HeaderValue};

    use super::super::texts::Lang;
    use super::super::zones::Zones;
    use super::*;

    #[tokio::test]
    async fn an_hour_of_utc_has_its_own_time_on_every_clock() {
        let cookie = HeaderMap::from_iter([(COOKIE, HeaderValue::from_static("rondel_zone=America/New_York"))]);
        let buckets: Vec<Bucket> = (96..120).map(|hour| Bucket::empty(Timestamp::from_secs(hour * 3_600))).collect();
        let now = Timestamp::from_secs(120 * 3_600);
        let rows = Zones::new(&cookie).scope(async { heat_rows(&buckets, now, Lang::En.texts()) }).await;
        assert_eq!(rows[0].day, "01-05");
        assert!(rows[0].cells[3].title.starts_with("1970-01-05 03:00 · "), "{}", rows[0].cells[3].title);
    }

    #[test]
    fn an_hour_stands_out_by_more_failures_than_usual() {
        assert!(is_unusual(1, 0) && !is_unusual(0, 0));
        assert!(!is_unusual(4, 3) && is_unusual(5, 3));
    }
}
