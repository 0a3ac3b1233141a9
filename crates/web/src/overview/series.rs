//! Counts of runs in buckets of time. The store has them as points: a point has the counts of one owner (a namespace, an app or a job) in
//! one bucket.

use std::collections::BTreeMap;
use std::time::Duration;

use rondel_core::Timestamp;
use rondel_core::sketch::{Sketch, Step};
use rondel_store::rollups::{PointDetail, PointKind, PointQuery, StatPoint, Verdicts};

use crate::call::Call;
use crate::problem::Problem;

/// Maximum number of points in one read.
const POINT_COUNT_MAX: u32 = 50_000;
/// Maximum number of buckets in one series.
pub(crate) const BUCKET_COUNT_MAX: u128 = 2_000;

/// A range of time, and the length of its buckets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BucketRange {
    pub(crate) step: Step,
    pub(crate) from: Timestamp,
    pub(crate) to: Timestamp,
}

impl BucketRange {
    /// The range of all buckets that overlap the time from `from` to `to`.
    pub(crate) fn new(step: Step, from: Timestamp, to: Timestamp) -> Self {
        Self { step, from: step.floor(from), to }
    }

    pub(crate) fn bucket_count(self) -> u128 {
        self.to.since(self.from).as_millis().div_ceil(self.step.length().as_millis())
    }
}

/// The runs that were planned in one bucket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Bucket {
    pub(crate) at: Timestamp,
    pub(crate) verdicts: Verdicts,
    pub(crate) durations: Sketch,
    pub(crate) lateness: Sketch,
}

impl Bucket {
    /// A bucket without runs.
    pub(crate) fn empty(at: Timestamp) -> Self {
        Self { at, verdicts: Verdicts::default(), durations: Sketch::default(), lateness: Sketch::default() }
    }

    fn join(&mut self, point: &StatPoint) {
        self.verdicts = self.verdicts.plus(point.verdicts);
        self.durations.merge(&point.durations);
        self.lateness.merge(&point.lateness);
    }
}

/// The runs of the namespace that the caller may see, in all buckets of the range.
pub(crate) async fn namespace_buckets<Q>(call: &Call<Q>, range: BucketRange) -> Result<Vec<Bucket>, Problem> {
    visible_buckets(call, range, PointDetail::Whole).await
}

/// Like [`namespace_buckets`], but reads only the verdicts.
pub(crate) async fn namespace_verdicts<Q>(call: &Call<Q>, range: BucketRange) -> Result<Vec<Bucket>, Problem> {
    visible_buckets(call, range, PointDetail::Verdicts).await
}

async fn visible_buckets<Q>(call: &Call<Q>, range: BucketRange, detail: PointDetail) -> Result<Vec<Bucket>, Problem> {
    let (kind, owners) = match call.visible_apps() {
        None => (PointKind::Namespace, vec![call.namespace.id.get()]),
        Some(apps) => (PointKind::App, apps.iter().map(|app| app.get()).collect()),
    };
    let mut buckets = buckets_of(&[], range);
    for owners in owners.chunks(owner_count_max(range)) {
        add_buckets(&mut buckets, &buckets_of(&query_points(call, (kind, owners), range, detail).await?, range));
    }
    Ok(buckets)
}

/// How many owners one read may have at most, so that its limit drops no points.
pub(crate) fn owner_count_max(range: BucketRange) -> usize {
    let count = u128::from(POINT_COUNT_MAX) / range.bucket_count().max(1);
    usize::try_from(count).unwrap_or(usize::MAX).max(1)
}

/// The runs of these owners, added up in each bucket of the range.
pub(crate) async fn owner_buckets<Q>(
    call: &Call<Q>,
    kind: PointKind,
    owners: &[i64],
    range: BucketRange,
) -> Result<Vec<Bucket>, Problem> {
    Ok(buckets_of(&read_points(call, kind, owners, range).await?, range))
}

/// The points of these owners. With more than [`owner_count_max`] owners, points may be missing.
pub(crate) async fn read_points<Q>(
    call: &Call<Q>,
    kind: PointKind,
    owners: &[i64],
    range: BucketRange,
) -> Result<Vec<StatPoint>, Problem> {
    query_points(call, (kind, owners), range, PointDetail::Whole).await
}

/// The verdicts of each of these owners, summed up in stretches of `stretch_len`. Uses as few reads as the limit of one read allows.
pub(crate) async fn summed_verdicts<Q>(
    call: &Call<Q>,
    (kind, owners): (PointKind, &[i64]),
    range: BucketRange,
    stretch_len: Duration,
) -> Result<Vec<StatPoint>, Problem> {
    let mut points = Vec::new();
    for chunk in owners.chunks(owner_count_max(range)) {
        points.append(&mut query_points(call, (kind, chunk), range, PointDetail::VerdictsPer(stretch_len)).await?);
    }
    Ok(points)
}

async fn query_points<Q>(
    call: &Call<Q>,
    (kind, owners): (PointKind, &[i64]),
    range: BucketRange,
    detail: PointDetail,
) -> Result<Vec<StatPoint>, Problem> {
    let BucketRange { step, from, to } = range;
    let query = PointQuery { kind, owners, step, from, to, limit: POINT_COUNT_MAX, detail };
    Ok(call.engine().store().points(&query).await?)
}

/// Adds up the points in each bucket of the range; buckets without runs are empty.
pub(crate) fn buckets_of(points: &[StatPoint], range: BucketRange) -> Vec<Bucket> {
    let bucket_count = usize::try_from(range.bucket_count().min(BUCKET_COUNT_MAX)).unwrap_or(0);
    let bucket_starts =
        (0..bucket_count).map(|number| range.from + range.step.length() * u32::try_from(number).unwrap_or(0));
    let mut buckets: BTreeMap<Timestamp, Bucket> = bucket_starts.map(|at| (at, Bucket::empty(at))).collect();
    for point in points {
        if let Some(bucket) = buckets.get_mut(&point.at) {
            bucket.join(point);
        }
    }
    buckets.into_values().collect()
}

/// Adds the buckets of other owners in the same range.
pub(crate) fn add_buckets(buckets: &mut [Bucket], added_buckets: &[Bucket]) {
    for (bucket, added_bucket) in buckets.iter_mut().zip(added_buckets) {
        bucket.verdicts = bucket.verdicts.plus(added_bucket.verdicts);
        bucket.durations.merge(&added_bucket.durations);
        bucket.lateness.merge(&added_bucket.lateness);
    }
}

/// The sum of a whole series.
pub(crate) fn sum_buckets(buckets: &[Bucket]) -> Bucket {
    let mut total = Bucket::empty(buckets.first().map_or(Timestamp::EPOCH, |bucket| bucket.at));
    for bucket in buckets {
        total.verdicts = total.verdicts.plus(bucket.verdicts);
        total.durations.merge(&bucket.durations);
        total.lateness.merge(&bucket.lateness);
    }
    total
}

/// The step with which a range of this length has a suitable number of buckets.
pub(crate) fn fitting_step(length: Duration) -> Step {
    match length.as_secs() {
        0..=21_600 => Step::Minute,
        21_601..=172_800 => Step::QuarterHour,
        172_801..=3_456_000 => Step::Hour,
        _ => Step::Day,
    }
}

/// The shortest step of at least `step_min` whose counts are stored for these owners as far back as `from`; the longest step if there is
/// none.
pub(crate) fn stored_step(kind: PointKind, step_min: Step, (from, now): (Timestamp, Timestamp)) -> Step {
    let is_kept = |step: &Step| *step >= step_min && from >= now.saturating_sub(kind.kept_for(*step));
    let steps = kind.steps();
    steps.iter().copied().find(is_kept).or(steps.last().copied()).unwrap_or(Step::Hour)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_long_ago_has_a_step_that_is_kept() {
        let now = Timestamp::from_secs(1_900_000_800);
        let step = |kind, fitting, days: u32| {
            stored_step(kind, fitting, (now.saturating_sub(Duration::from_secs(24 * 3_600) * days), now))
        };
        assert_eq!(
            [0, 1, 2, 16].map(|days| step(PointKind::App, Step::Minute, days)),
            [Step::Minute, Step::Minute, Step::QuarterHour, Step::Hour]
        );
        assert_eq!(step(PointKind::Namespace, Step::Day, 500), Step::Hour, "the longest that there is");
        assert_eq!([3, 61].map(|days| step(PointKind::Job, Step::Minute, days)), [Step::Hour, Step::Day]);
    }

    #[test]
    fn a_read_has_no_more_owners_than_its_limit_has_points_for() {
        let at = Timestamp::from_secs(1_900_000_800);
        let day = BucketRange::new(Step::Minute, at, at + Duration::from_secs(24 * 3_600));
        assert_eq!(owner_count_max(day), 34);
        assert_eq!(owner_count_max(BucketRange { to: day.from, ..day }), 50_000);
    }

    #[test]
    fn a_series_has_every_bucket_once() {
        let at = Timestamp::from_secs(1_900_000_800);
        let span = BucketRange::new(Step::QuarterHour, at, at + Duration::from_secs(3_600));
        let point = |at| StatPoint {
            owner: 1,
            at,
            verdicts: Verdicts { succeeded: 2, ..Verdicts::default() },
            durations: Sketch::default(),
            lateness: Sketch::default(),
        };
        let buckets = buckets_of(&[point(span.from), point(span.from), point(at + Duration::from_secs(86_400))], span);
        let counts: Vec<u64> = buckets.iter().map(|bucket| bucket.verdicts.total()).collect();
        assert_eq!(counts, [4, 0, 0, 0], "an hour has four quarters");
        assert_eq!(sum_buckets(&buckets).verdicts.succeeded, 4);
        let mut sum = buckets.clone();
        add_buckets(&mut sum, &buckets);
        assert_eq!((sum.len(), sum_buckets(&sum).verdicts.succeeded), (4, 8));
    }
}
