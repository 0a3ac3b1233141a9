//! A bar chart of outcomes over time: failures are below the axis, all other outcomes above it.

use std::time::Duration;

use rondel_core::Timestamp;
use rondel_store::rollups::Verdicts;

use super::drawing::{AxisLabel, Scale, WIDTH, axis, runs_between};
use super::moment::Moment;
use super::texts::Texts;
use crate::overview::series::{Bucket, BucketRange, sum_buckets};

/// The height above the axis, in the units of the drawing.
const HEIGHT_ABOVE: u64 = 96;
/// The height below the axis, in the units of the drawing.
const HEIGHT_BELOW: u64 = 48;
/// Minimum height of a part that has runs.
const HEIGHT_MIN: u64 = 2;

#[derive(Clone, Debug)]
pub(crate) struct BarPart {
    pub(crate) class: &'static str,
    pub(crate) y: u64,
    pub(crate) height: u64,
}

/// The bar of one bucket.
#[derive(Clone, Debug)]
pub(crate) struct OutcomeBar {
    pub(crate) x: u32,
    pub(crate) width: u32,
    pub(crate) parts: Vec<BarPart>,
    pub(crate) href: String,
    pub(crate) title: String,
}

/// One hour of the chart, as a row of a table.
#[derive(Clone, Debug)]
pub(crate) struct OutcomeRow {
    pub(crate) at: Moment,
    pub(crate) href: String,
    pub(crate) verdicts: Verdicts,
}

#[derive(Clone, Debug)]
pub(crate) struct OutcomeChart {
    pub(crate) bars: Vec<OutcomeBar>,
    pub(crate) axis: Vec<AxisLabel>,
    /// One row for each hour with runs, the newest first.
    pub(crate) rows: Vec<OutcomeRow>,
    pub(crate) total: Verdicts,
}

impl OutcomeChart {
    pub(crate) fn new(buckets: &[Bucket], range: BucketRange, (now, t): (Timestamp, &'static Texts)) -> Self {
        let count_max = buckets.iter().map(|bucket| count_above_axis(bucket.verdicts)).max().unwrap_or(0).max(1);
        // Failures are few, so the part below the axis has its own scale, which is at most four times as large as the one above.
        let failures_max = buckets.iter().map(|bucket| bucket.verdicts.failure_count()).max().unwrap_or(0).max(1);
        let failures_max = failures_max.max(count_max / 8).max(1);
        let scale = Scale { from: range.from, to: range.to };
        let bar = |bucket: &Bucket| {
            let bucket_end = bucket.at + range.step.length();
            let (x, right_edge) = (scale.x(bucket.at), scale.x(bucket_end));
            OutcomeBar {
                x,
                width: right_edge.saturating_sub(x).saturating_sub(16).clamp(16, WIDTH),
                parts: bar_parts(bucket.verdicts, (count_max, failures_max)),
                href: runs_between(bucket.at, bucket_end, None),
                title: bar_title(bucket, now, t),
            }
        };
        let has_runs = |bucket: &&Bucket| bucket.verdicts.total() > 0;
        Self {
            bars: buckets.iter().filter(has_runs).map(bar).collect(),
            axis: axis(scale),
            rows: table_rows(buckets, now, t),
            total: sum_buckets(buckets).verdicts,
        }
    }
}

const fn count_above_axis(verdicts: Verdicts) -> u64 {
    verdicts.total() - verdicts.failure_count()
}

/// The parts of a bar, first those above the axis from the axis up, then those below it from the axis down.
fn bar_parts(verdicts: Verdicts, (count_max, failures_max): (u64, u64)) -> Vec<BarPart> {
    let height = |count: u64, count_of_full_height: u64, full_height: u64| {
        if count == 0 { 0 } else { (count * full_height / count_of_full_height).max(HEIGHT_MIN) }
    };
    let mut parts = Vec::new();
    let mut y = HEIGHT_ABOVE;
    for (class, count) in
        [("succeeded", verdicts.succeeded), ("cancelled", verdicts.cancelled), ("skipped", verdicts.skipped)]
    {
        let height = height(count, count_max, HEIGHT_ABOVE).min(y);
        y -= height;
        parts.push(BarPart { class, y, height });
    }
    let mut y = HEIGHT_ABOVE + 2;
    for (class, count) in
        [("failed", verdicts.failed), ("timed_out", verdicts.timed_out), ("unknown", verdicts.unknown)]
    {
        let height = height(count, failures_max, HEIGHT_BELOW).min(HEIGHT_ABOVE + 2 + HEIGHT_BELOW - y);
        parts.push(BarPart { class, y, height });
        y += height;
    }
    parts.retain(|part| part.height > 0);
    parts
}

fn bar_title(bucket: &Bucket, now: Timestamp, t: &Texts) -> String {
    let bucket_start = Moment::new(bucket.at, now, t);
    let Verdicts { succeeded, failed, timed_out, cancelled, unknown, skipped } = bucket.verdicts;
    let counts = [
        (t.status_succeeded, succeeded),
        (t.status_failed, failed),
        (t.status_timed_out, timed_out),
        (t.status_unknown, unknown),
        (t.status_cancelled, cancelled),
        (t.status_skipped, skipped),
    ];
    let count_texts = counts.iter().filter(|(_, count)| *count > 0).map(|(word, count)| format!("{word} {count}"));
    let time = bucket_start.time.get(..5).unwrap_or_default();
    format!("{time} · {}", count_texts.collect::<Vec<_>>().join(" · "))
}

fn table_rows(buckets: &[Bucket], now: Timestamp, t: &Texts) -> Vec<OutcomeRow> {
    let hour = Duration::from_secs(3_600);
    let mut rows: Vec<(Timestamp, Verdicts)> = Vec::new();
    for bucket in buckets.iter().filter(|bucket| bucket.verdicts.total() > 0) {
        let hour_start = rondel_core::sketch::Step::Hour.floor(bucket.at);
        match rows.last_mut() {
            Some((last, sum)) if *last == hour_start => *sum = sum.plus(bucket.verdicts),
            _ => rows.push((hour_start, bucket.verdicts)),
        }
    }
    let row = |(hour_start, verdicts): (Timestamp, Verdicts)| OutcomeRow {
        at: Moment::new(hour_start, now, t),
        href: runs_between(hour_start, hour_start + hour, None),
        verdicts,
    };
    rows.into_iter().rev().map(row).collect()
}

#[cfg(test)]
mod tests {
    use rondel_core::sketch::Step;

    use super::super::texts::Lang;
    use super::*;

    #[test]
    fn failures_hang_below_the_axis() {
        let at = Timestamp::from_secs(1_900_000_800);
        let span = BucketRange::new(Step::QuarterHour, at, at + Duration::from_secs(1_800));
        let verdicts = Verdicts { succeeded: 80, failed: 2, skipped: 1, ..Verdicts::default() };
        let buckets = [Bucket { verdicts, ..Bucket::empty(span.from) }];
        let chart = OutcomeChart::new(&buckets, span, (at, Lang::En.texts()));
        let parts = &chart.bars[0].parts;
        let of = |class| parts.iter().find(|part| part.class == class).unwrap();
        assert!(of("succeeded").y + of("succeeded").height == HEIGHT_ABOVE && of("skipped").y < of("succeeded").y);
        assert!(of("failed").y > HEIGHT_ABOVE && of("failed").height >= HEIGHT_MIN);
        assert!(chart.bars[0].href.starts_with("/runs?q=since%3A2030"), "{}", chart.bars[0].href);
        assert_eq!((chart.rows.len(), chart.total.total()), (1, 83));
        assert!(chart.bars[0].title.contains("Failed 2"));
    }
}
