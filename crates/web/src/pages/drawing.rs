//! Draws the lanes of a timeline as SVG: instants become positions on an axis, runs become bars. Sizes are SVG attributes.

use std::time::Duration;

use chrono::Offset as _;
use rondel_core::cron::Tz;
use rondel_core::{RunStatus, Timestamp};

use super::moment::length_text;
use super::texts::Texts;
use super::zones;
use crate::overview::lanes::{Lane, LaneKind, Mark};
use crate::redirect::{percent_encode, query_pair};

/// The width of a drawing in its own unit.
pub(crate) const WIDTH: u32 = 10_000;
/// Minimum width of a bar.
const MARK_WIDTH_MIN: u32 = 36;
/// In a lane with more runs than this, neighbouring runs with the same status are joined into one bar if they touch.
const SINGLE_RUN_COUNT_MAX: usize = 100;
/// In a drawing with more runs than this, touching runs are joined in every lane: thousands of links load slowly and show nothing more.
const DRAWN_RUN_COUNT_MAX: usize = 400;
/// In a drawing with more than [`DRAWN_RUN_COUNT_MAX`] runs, only this many of the newest runs of each lane link to their own pages. The
/// others link to the list of runs, as bars that stand for several runs do.
const LINKED_RUN_COUNT_MAX: usize = 12;
/// Minimum distance between neighbouring crosses, and between neighbouring ticks.
const TICK_DISTANCE_MIN: u32 = 55;

/// Maps instants to positions between the two ends of a drawing.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scale {
    pub(crate) from: Timestamp,
    pub(crate) to: Timestamp,
}

impl Scale {
    pub(crate) fn x(self, at: Timestamp) -> u32 {
        let (total_ms, offset_ms) = (self.to.since(self.from).as_millis().max(1), at.since(self.from).as_millis());
        u32::try_from(offset_ms.saturating_mul(WIDTH.into()) / total_ms).unwrap_or(WIDTH).min(WIDTH)
    }

    fn contains(self, at: Timestamp) -> bool {
        (self.from..=self.to).contains(&at)
    }
}

#[derive(Clone, Debug)]
pub(crate) struct AxisLabel {
    pub(crate) x: u32,
    pub(crate) text: String,
}

/// About ten labels for an axis.
pub(crate) fn axis(scale: Scale) -> Vec<AxisLabel> {
    let (_, zone) = zones::clock_and_zone();
    let minutes = scale.to.since(scale.from).as_secs() / 60;
    let minutes_per_label = match minutes {
        0..=90 => 10,
        91..=480 => 60,
        481..=1_800 => 120,
        1_801..=4_320 => 360,
        4_321..=20_160 => 1_440,
        _ => 10_080,
    };
    let step_ms = 60_000 * minutes_per_label;
    // Labels are at round times of the displayed clock, even after that clock has changed to or from summer time.
    let offset_at_start = offset_ms(scale.from, zone);
    let first_ms = (scale.from.as_millis() + offset_at_start).div_euclid(step_ms) * step_ms + step_ms - offset_at_start;
    let labelled_instants = (0..64_i64).map(|number| {
        let step_at = Timestamp::from_millis(first_ms + number * step_ms);
        let step_offset = offset_ms(step_at, zone);
        let shifted_at = Timestamp::from_millis(step_at.as_millis() + (offset_at_start - step_offset) % step_ms);
        // If the clock skips this round time, the label stays at the unshifted instant.
        if offset_ms(shifted_at, zone) == step_offset { shifted_at } else { step_at }
    });
    let label = |step_at: Timestamp| {
        let (day, time, _) = zones::time_parts(step_at, zone);
        let is_midnight = time.starts_with("00:00");
        let text = if minutes_per_label >= 1_440 || is_midnight { day.get(5..) } else { time.get(..5) };
        AxisLabel { x: scale.x(step_at), text: text.unwrap_or_default().to_owned() }
    };
    // Labels at the edges would be cut off, so they are left out.
    labelled_instants
        .take_while(|step_at| *step_at < scale.to)
        .map(label)
        .filter(|label| (150..WIDTH - 200).contains(&label.x))
        .collect()
}

/// How far the clock of a zone is ahead of UTC, in milliseconds.
fn offset_ms(at: Timestamp, zone: Tz) -> i64 {
    let seconds = at.to_utc().map_or(0, |at| at.with_timezone(&zone).offset().fix().local_minus_utc());
    i64::from(seconds) * 1_000
}

/// An instant as a short text: without the day if that is today.
pub(crate) fn short_time_text(at: Timestamp, now: Timestamp, zone: Tz) -> String {
    let ((day, time, _), (today, ..)) = (zones::time_parts(at, zone), zones::time_parts(now, zone));
    if day == today { time } else { format!("{day} {time}") }
}

/// A bar for one run, or for several.
#[derive(Clone, Debug)]
pub(crate) struct Bar {
    pub(crate) class: &'static str,
    pub(crate) x: u32,
    pub(crate) width: u32,
    pub(crate) y: u32,
    pub(crate) height: u32,
    /// The run to which the bar links. `None` for several runs, and for a run that has no link because the drawing has many runs.
    pub(crate) run: Option<rondel_core::RunId>,
    /// Whether it stands for a stretch of time that begins and ends at full quarters of an hour.
    pub(crate) is_stretch: bool,
    pub(crate) title: String,
}

/// A marked instant in a lane.
#[derive(Clone, Debug)]
pub(crate) struct Tick {
    pub(crate) x: u32,
    pub(crate) title: String,
    pub(crate) href: Option<String>,
}

#[derive(Clone, Debug)]
pub(crate) struct LaneRow {
    pub(crate) name: String,
    /// The app of the job or executor.
    pub(crate) subtitle: Option<String>,
    pub(crate) href: String,
    /// The number of runs, in words.
    pub(crate) runs: String,
    /// The number of runs that failed, in words; `None` if there are none.
    pub(crate) failure_text: Option<String>,
    pub(crate) bars: Vec<Bar>,
    /// Skipped fires.
    pub(crate) crosses: Vec<Tick>,
    /// Upcoming planned instants.
    pub(crate) fires: Vec<Tick>,
    /// Instants that the job's calendar removes or moves.
    pub(crate) removed_fires: Vec<Tick>,
    /// Clock changes in the job's zone that affect a fire.
    pub(crate) clock_changes: Vec<Tick>,
    /// Whether the earlier runs of the job are joined into bars for stretches of time.
    pub(crate) is_joined: bool,
    /// The URL of the list of its runs. The script adds the time range of a clicked bar.
    pub(crate) runs_url: String,
    /// The URL of the page that explains why nothing ran, opened by a click on an empty place; only for jobs.
    pub(crate) fires_url: Option<String>,
    /// The URL from which the script reads why parts of the lane are empty; only for jobs.
    pub(crate) gaps_url: Option<String>,
}

#[derive(Clone, Debug)]
pub(crate) struct Drawing {
    pub(crate) axis: Vec<AxisLabel>,
    /// The position of the current instant, if it is within the drawing.
    pub(crate) now_x: Option<u32>,
    pub(crate) rows: Vec<LaneRow>,
    /// The two ends of the drawing, for the script.
    pub(crate) from_ms: i64,
    pub(crate) to_ms: i64,
}

impl Drawing {
    pub(crate) fn new(
        scale: Scale,
        lane_kind: LaneKind,
        lanes: &[Lane],
        (now, t): (Timestamp, &'static Texts),
    ) -> Self {
        let zone = zones::clock_and_zone().1;
        let is_dense = lanes.iter().map(|lane| lane.marks.len()).sum::<usize>() > DRAWN_RUN_COUNT_MAX;
        let renderer = LaneRenderer { scale, lane_kind, now, zone, is_dense, t };
        Self {
            axis: axis(scale),
            now_x: scale.contains(now).then(|| scale.x(now)),
            rows: lanes.iter().map(|lane| renderer.row(lane)).collect(),
            from_ms: scale.from.as_millis(),
            to_ms: scale.to.as_millis(),
        }
    }
}

/// The URL of the list of runs in a range of time, excluding its end. Limited to one job or app if `owner_term` is given.
pub(crate) fn runs_between(from: Timestamp, to: Timestamp, owner_term: Option<(&str, &str)>) -> String {
    // `until` in a filter includes its instant.
    let last_instant = to.saturating_sub(Duration::from_millis(1));
    let owner_term = owner_term.map(|(key, name)| format!("{key}:{name} ")).unwrap_or_default();
    format!("/runs?{}", query_pair("q", &format!("{owner_term}since:{from} until:{last_instant}")))
}

/// How a mark is drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MarkShape {
    /// A run, or touching runs.
    Run,
    /// Successful runs that are joined, drawn like a run.
    Succeeded,
    /// Runs that failed, timed out or have an unknown outcome, joined and drawn as a line at the bottom.
    Trouble,
    /// Skipped fires that are joined, drawn as a line at the top.
    Skipped,
}

impl MarkShape {
    const fn from_mark(mark: &Mark) -> Self {
        match (mark.run, mark.status) {
            (Some(_), _) => Self::Run,
            (None, RunStatus::Succeeded) => Self::Succeeded,
            (None, RunStatus::Skipped) => Self::Skipped,
            (None, _) => Self::Trouble,
        }
    }

    /// The top and the height of a bar of this shape.
    const fn y_and_height(self) -> (u32, u32) {
        match self {
            Self::Run | Self::Succeeded => (8, 14),
            Self::Trouble => (17, 5),
            Self::Skipped => (5, 3),
        }
    }
}

/// Drops ticks that are too close to the previous one.
fn drop_close_ticks(ticks: impl Iterator<Item = Tick>) -> Vec<Tick> {
    let mut spaced_ticks: Vec<Tick> = Vec::new();
    for tick in ticks {
        if spaced_ticks.last().is_none_or(|last| tick.x >= last.x + TICK_DISTANCE_MIN) {
            spaced_ticks.push(tick);
        }
    }
    spaced_ticks
}

/// Draws the lanes of one timeline.
struct LaneRenderer {
    scale: Scale,
    lane_kind: LaneKind,
    now: Timestamp,
    zone: Tz,
    /// Whether touching runs with the same status are joined into one bar in every lane.
    is_dense: bool,
    t: &'static Texts,
}

impl LaneRenderer {
    fn row(&self, lane: &Lane) -> LaneRow {
        let t = self.t;
        let href = match self.lane_kind {
            LaneKind::Job => format!("/jobs/{}", lane.name),
            LaneKind::App => format!("/runs?{}", query_pair("q", &format!("app:{}", lane.name))),
            LaneKind::Executor => format!("/runs?{}", query_pair("q", &format!("executor:{}", lane.name))),
        };
        let is_point = |mark: &&Mark| mark.status == RunStatus::Skipped && mark.run.is_some();
        let is_drawn = |mark: &&Mark| mark.from <= self.scale.to && mark.to.unwrap_or(self.now) >= self.scale.from;
        LaneRow {
            name: lane.name.clone(),
            subtitle: lane.app.clone().filter(|_| self.lane_kind != LaneKind::App),
            href,
            runs: t.lane_runs(lane.run_count),
            failure_text: (lane.failure_count > 0).then(|| t.lane_failed(lane.failure_count)),
            bars: self.bars(lane, lane.marks.iter().filter(|mark| !is_point(mark)).filter(is_drawn)),
            crosses: drop_close_ticks(lane.marks.iter().filter(is_point).filter(is_drawn).map(|mark| self.cross(mark))),
            fires: drop_close_ticks(lane.fires.iter().map(|at| self.tick(*at, t.verdict_planned, None))),
            removed_fires: lane
                .removed_fires
                .iter()
                .map(|at| self.tick(*at, t.verdict_calendar, self.fires_url(lane, *at)))
                .collect(),
            clock_changes: lane
                .clock_changes
                .iter()
                .map(|at| self.tick(*at, t.lane_clock, self.fires_url(lane, *at)))
                .collect(),
            is_joined: lane.is_joined && self.lane_kind == LaneKind::Job,
            runs_url: format!("/runs?{}", query_pair("q", &format!("{}:{} ", self.lane_kind.as_str(), lane.name))),
            gaps_url: (self.lane_kind == LaneKind::Job).then(|| format!("/jobs/{}/gaps", lane.name)),
            fires_url: (self.lane_kind == LaneKind::Job).then(|| format!("/jobs/{}/fires?zone=UTC&at=", lane.name)),
        }
    }

    fn bars<'m>(&self, lane: &Lane, marks: impl Iterator<Item = &'m Mark>) -> Vec<Bar> {
        let is_joined = self.is_dense || lane.marks.len() > SINGLE_RUN_COUNT_MAX;
        // The third value of a piece is the right end of its bar. A run with the same status that touches this end is joined to the
        // piece.
        let mut pieces: Vec<(Mark, MarkShape, u32)> = Vec::new();
        for mark in marks {
            let shape = MarkShape::from_mark(mark);
            let (x, right) = self.edges(mark);
            match pieces.last_mut() {
                Some((last, MarkShape::Run, right_end))
                    if is_joined && shape == MarkShape::Run && last.status == mark.status && x <= *right_end + 2 =>
                {
                    (last.run, last.count) = (None, last.count + mark.count);
                    last.to = last.to.zip(mark.to).map(|(end, mark_end)| end.max(mark_end));
                    *right_end = right.max(*right_end);
                }
                _ => pieces.push((mark.clone(), shape, right)),
            }
        }
        if self.is_dense {
            let single_runs = pieces.iter_mut().rev().filter(|(mark, ..)| mark.run.is_some());
            single_runs.skip(LINKED_RUN_COUNT_MAX).for_each(|(mark, ..)| mark.run = None);
        }
        pieces.iter().map(|(mark, shape, right)| self.bar(mark, (*shape, *right))).collect()
    }

    /// The positions at which a mark begins and ends.
    fn edges(&self, mark: &Mark) -> (u32, u32) {
        let x = self.scale.x(mark.from).min(WIDTH - MARK_WIDTH_MIN);
        (x, self.scale.x(mark.to.unwrap_or(self.now)).max(x + MARK_WIDTH_MIN))
    }

    fn bar(&self, mark: &Mark, (shape, right_edge): (MarkShape, u32)) -> Bar {
        let t = self.t;
        let end_at = mark.to.unwrap_or(self.now);
        let (x, _) = self.edges(mark);
        let gap = if shape == MarkShape::Run { 0 } else { 8 };
        let (word, when) = (t.status(mark.status), short_time_text(mark.from, self.now, self.zone));
        let title = match mark.run {
            Some(_) => format!("{when} · {word} · {}", length_text(end_at.since(mark.from), t)),
            None => format!("{when} · {word} · {}", t.lane_runs(mark.count)),
        };
        let (y, height) = shape.y_and_height();
        let (width, is_stretch) = (right_edge - x - gap, shape != MarkShape::Run);
        Bar { class: mark.status.as_str(), x, width, y, height, run: mark.run, is_stretch, title }
    }

    fn cross(&self, mark: &Mark) -> Tick {
        let href = mark.run.map(|run| format!("/runs/{run}"));
        let mut tick = self.tick(mark.from, self.t.status_skipped, href);
        if mark.count > 1 {
            tick.title = format!("{} · {}", tick.title, self.t.lane_fires(mark.count));
        }
        tick
    }

    fn tick(&self, at: Timestamp, word: &str, href: Option<String>) -> Tick {
        Tick { x: self.scale.x(at), title: format!("{} · {word}", short_time_text(at, self.now, self.zone)), href }
    }

    fn fires_url(&self, lane: &Lane, at: Timestamp) -> Option<String> {
        let text = at.to_string();
        let encoded_instant = percent_encode(text.trim_end_matches('Z'));
        (self.lane_kind == LaneKind::Job).then(|| format!("/jobs/{}/fires?zone=UTC&at={encoded_instant}", lane.name))
    }
}

/// The length of a time range as text for a chart.
pub(crate) fn span_text(length: Duration, t: &Texts) -> String {
    match length.as_secs() / 3_600 {
        0..=47 => format!("{} {}", length.as_secs() / 3_600, t.unit_h),
        hours => format!("{} {}", hours / 24, t.unit_d),
    }
}

#[cfg(test)]
mod tests {
    use http::header::COOKIE;
    use http::{HeaderMap, HeaderValue};

    use super::super::zones::Zones;
    use super::*;

    #[test]
    fn instants_lie_between_the_ends() {
        let at = Timestamp::from_secs(1_900_000_800);
        let scale = Scale { from: at, to: at + Duration::from_secs(3_600) };
        let x = |seconds| scale.x(at + Duration::from_secs(seconds));
        assert_eq!((x(0), x(1_800), x(3_600), x(9_999)), (0, 5_000, WIDTH, WIDTH));
        assert_eq!(scale.x(at - Duration::from_secs(9)), 0);
    }

    #[test]
    fn runs_that_touch_and_ended_alike_are_one_bar() {
        let at = Timestamp::from_secs(1_900_000_800);
        let mark = |number: u64, status| Mark {
            from: at + Duration::from_secs(number * 60),
            to: Some(at + Duration::from_secs(number * 60 + 1)),
            status,
            run: Some(rondel_core::RunId::new(i64::try_from(number).unwrap())),
            count: 1,
        };
        let status = |number| if number == 700 { RunStatus::Failed } else { RunStatus::Succeeded };
        let scale = Scale { from: at, to: at + Duration::from_secs(86_400) };
        let bars = |count: u64, lane_count| {
            let marks = (0..count).map(|number| mark(number, status(number))).collect();
            let lanes = vec![Lane { name: "a".to_owned(), marks, ..Lane::default() }; lane_count];
            let drawing = Drawing::new(scale, LaneKind::Job, &lanes, (at, super::super::texts::Lang::En.texts()));
            drawing.rows[0].bars.iter().map(|bar| (bar.class, bar.run.is_some())).collect::<Vec<_>>()
        };
        assert_eq!(bars(1_440, 1), [("succeeded", false), ("failed", true), ("succeeded", false)]);
        assert_eq!(bars(50, 1).len(), 50, "few runs are drawn one by one");
        assert_eq!(bars(50, 10), [("succeeded", false)], "of many lanes together, too");
        let links = |status: fn(u64) -> RunStatus| {
            let marks: Vec<Mark> = (0..80).map(|number| mark(number * 18, status(number))).collect();
            let lanes = vec![Lane { name: "a".to_owned(), marks, ..Lane::default() }; 10];
            let drawing = Drawing::new(scale, LaneKind::Job, &lanes, (at, super::super::texts::Lang::En.texts()));
            drawing.rows[0].bars.iter().map(|bar| bar.run.is_some()).collect::<Vec<_>>()
        };
        let apart = links(|_| RunStatus::Failed);
        assert_eq!(apart.len(), 80, "bars that do not touch stay apart");
        assert!(apart[68..].iter().all(|is_link| *is_link) && !apart[..68].contains(&true), "the newest are links");
        let stretch = Mark { run: None, count: 3, ..mark(0, RunStatus::Succeeded) };
        let marks = vec![stretch, mark(60, RunStatus::Succeeded)];
        let lanes = [Lane { name: "a".to_owned(), marks, ..Lane::default() }];
        let drawing = Drawing::new(scale, LaneKind::Job, &lanes, (at, super::super::texts::Lang::En.texts()));
        let stretches: Vec<bool> = drawing.rows[0].bars.iter().map(|bar| bar.is_stretch).collect();
        assert_eq!(stretches, [true, false], "a run ends at no quarter of an hour");
    }

    #[test]
    fn a_run_that_lasts_longer_than_the_range_fills_it() {
        let at = Timestamp::from_secs(1_900_000_800);
        let hours = |count: u64| at + Duration::from_secs(count * 3_600);
        let bars = |scale, from| {
            let status = RunStatus::Running;
            let marks = vec![Mark { from, to: None, status, run: Some(rondel_core::RunId::new(1)), count: 1 }];
            let lanes = [Lane { name: "a".to_owned(), marks, ..Lane::default() }];
            let drawing = Drawing::new(scale, LaneKind::Job, &lanes, (hours(9), super::super::texts::Lang::En.texts()));
            drawing.rows[0].bars.iter().map(|bar| (bar.x, bar.width)).collect::<Vec<_>>()
        };
        let scale = Scale { from: hours(5), to: hours(6) };
        assert_eq!(bars(scale, at), [(0, WIDTH)]);
        assert_eq!(bars(scale, hours(7)), []);
    }

    #[test]
    fn runs_at_the_end_of_a_range_belong_to_the_next_one() {
        let at = Timestamp::from_secs(1_900_000_800);
        let href = runs_between(at, at + Duration::from_secs(900), Some(("job", "a")));
        let asked = "job%3Aa%20since%3A2030-03-17T18%3A00%3A00Z%20until%3A2030-03-17T18%3A14%3A59.999Z";
        assert_eq!(href, format!("/runs?q={asked}"));
    }

    #[test]
    fn an_axis_has_few_labels_whatever_its_length() {
        let at = Timestamp::from_secs(1_900_000_800);
        for hours in [1, 6, 24, 168, 720] {
            let scale = Scale { from: at, to: at + Duration::from_secs(hours * 3_600) };
            let labels = axis(scale);
            assert!((4..=14).contains(&labels.len()), "{hours} h: {}", labels.len());
            assert!(labels.iter().all(|label| !label.text.is_empty()));
        }
    }

    #[tokio::test]
    async fn labels_stay_at_round_times_when_the_clock_changes() {
        let labels = async |zone: &'static str, from: &str, hours: u64| {
            let from: Timestamp = from.parse().unwrap();
            let scale = Scale { from, to: from + Duration::from_secs(hours * 3_600) };
            let cookie = HeaderMap::from_iter([(COOKIE, HeaderValue::from_static(zone))]);
            let labels = Zones::new(&cookie).scope(async { axis(scale) }).await;
            labels.into_iter().map(|label| (label.x, label.text)).collect::<Vec<_>>()
        };
        let berlin = "rondel_zone=Europe/Berlin";
        // The clock is set back on 25 October, which has 25 hours, and forward on 29 March, which has 23.
        let found = labels(berlin, "2026-10-23T12:00:00Z", 168).await;
        let texts: Vec<&str> = found.iter().map(|(_, text)| text.as_str()).collect();
        assert_eq!(texts, ["10-24", "10-25", "10-26", "10-27", "10-28", "10-29", "10-30"]);
        assert_eq!((found[1].0, found[2].0), (WIDTH * 34 / 168, WIDTH * 59 / 168));
        let found = labels(berlin, "2026-03-27T12:00:00Z", 168).await;
        let texts: Vec<&str> = found.iter().map(|(_, text)| text.as_str()).collect();
        assert_eq!(texts, ["03-28", "03-29", "03-30", "03-31", "04-01", "04-02", "04-03"]);
        let found = labels(berlin, "2026-10-24T19:00:00Z", 24).await;
        let texts: Vec<&str> = found.iter().map(|(_, text)| text.as_str()).collect();
        let expected =
            ["22:00", "10-25", "02:00", "04:00", "06:00", "08:00", "10:00", "12:00", "14:00", "16:00", "18:00"];
        assert_eq!(texts, expected);
        // On 6 September the clock is set forward from midnight to 1:00.
        let found = labels("rondel_zone=America/Santiago", "2026-09-03T12:00:00Z", 168).await;
        let texts: Vec<&str> = found.iter().map(|(_, text)| text.as_str()).collect();
        assert_eq!(texts, ["09-04", "09-05", "09-06", "09-07", "09-08", "09-09", "09-10"]);
        // The offset changes from 11 to 12 hours ahead of UTC.
        let found = labels("rondel_zone=Pacific/Norfolk", "2026-10-01T00:00:00Z", 168).await;
        let texts: Vec<&str> = found.iter().map(|(_, text)| text.as_str()).collect();
        assert_eq!(texts, ["10-02", "10-03", "10-04", "10-05", "10-06", "10-07", "10-08"]);
    }
}
