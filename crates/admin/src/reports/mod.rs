//! Reports on the runs of namespaces, apps, jobs and labels over days and months, and on the messages of failed runs.
//!
//! Reports read only the counts that `roll_up` makes, never the ledger. [`rows`] sums counts, [`failures`] joins equal messages of several
//! jobs. The loop in [`weekly`] writes the weekly report.

mod texts;
mod weekly;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use chrono::{Datelike, NaiveDate};
use rondel_core::report::PerMilleShares;
use rondel_core::sketch::{Sketch, Step};
use rondel_core::{RunId, Timestamp};
use rondel_store::StoreError;
use rondel_store::reports::{FailureMessage, FailureQuery};
use rondel_store::rollups::{PointDetail, PointKind, PointQuery, StatPoint, Verdicts};

pub(crate) use self::weekly::ReportLoop;
pub use self::weekly::{ScheduleError, SendNowResult, save_schedule, send_now};
use crate::node::Node;

/// The longest range of a report. Counts are kept for this long.
pub const LENGTH_MAX: Duration = Duration::from_secs(400 * 24 * 3600);
/// Maximum number of counts that one report sums. The caller must ask for fewer groups if there would be more.
pub const POINT_COUNT_MAX: u64 = 200_000;
/// Maximum number of counts per read of the store.
const READ_COUNT_MAX: u32 = 200_000;
/// Maximum number of owners (namespaces, apps or jobs) per read of the store; fewer if a read cannot return all of their counts.
const OWNER_COUNT: usize = 50;

rondel_core::plain_word_enum! {
    /// The periods into which a report divides its range.
    #[derive(Default)]
    pub Period {
        /// The whole range as one.
        #[default]
        Total = "total",
        /// Each day, in UTC.
        Day = "day",
        /// Each month, in UTC.
        Month = "month",
    }
}

impl Period {
    /// The start of the period that contains an instant, but not before `from`, the start of the report.
    fn floor(self, at: Timestamp, from: Timestamp) -> Timestamp {
        match self {
            Self::Total => from,
            Self::Day => Step::Day.floor(at).max(from),
            Self::Month => month_of(at).max(from),
        }
    }
}

fn month_of(at: Timestamp) -> Timestamp {
    let first_day = at.to_utc().and_then(|at| NaiveDate::from_ymd_opt(at.year(), at.month(), 1));
    first_day.map_or(at, |day| Timestamp::from(day.and_time(chrono::NaiveTime::MIN).and_utc()))
}

/// The range of a report, and how it is divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReportRange {
    pub from: Timestamp,
    pub to: Timestamp,
    /// How the range is divided.
    pub period: Period,
    /// A fire that starts at most this late is on time.
    pub on_time_within: Duration,
}

impl ReportRange {
    /// The number of counts that are read for one owner.
    #[must_use]
    pub fn point_count(&self, kind: PointKind) -> u64 {
        let length = u64::try_from(self.to.since(self.from).as_millis()).unwrap_or(u64::MAX);
        length.div_ceil(u64::try_from(step(kind).length().as_millis()).unwrap_or(1)) + 1
    }
}

/// Owners that are counted together, with a name for the group.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Group {
    /// The name of the namespace, app or job, or the label's value.
    pub name: String,
    /// The app of a job; `None` for a group that is not a job.
    pub app: Option<String>,
    /// The ids of the namespaces, apps or jobs, each with the instant from which it counts.
    pub owners: Vec<(i64, Timestamp)>,
}

/// The results of a group's runs in one period.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// The name of the group.
    pub name: String,
    /// The app of a job; `None` for a group that is not a job.
    pub app: Option<String>,
    /// Start of the period.
    pub at: Timestamp,
    /// The number of runs by verdict.
    pub verdicts: Verdicts,
    /// The durations of the runs.
    pub durations: Sketch,
    /// How much later than planned the runs started.
    pub lateness: Sketch,
    /// The share of runs that succeeded, and of runs that started on time, in permille.
    pub shares: PerMilleShares,
}

impl Row {
    fn new(group: &Group, at: Timestamp) -> Self {
        Self {
            name: group.name.clone(),
            app: group.app.clone(),
            at,
            verdicts: Verdicts::default(),
            durations: Sketch::default(),
            lateness: Sketch::default(),
            shares: PerMilleShares::default(),
        }
    }

    fn add(&mut self, point: &StatPoint) {
        self.verdicts = self.verdicts.plus(point.verdicts);
        self.durations.merge(&point.durations);
        self.lateness.merge(&point.lateness);
    }

    fn finish(mut self, on_time: Duration) -> Self {
        let Verdicts { succeeded, skipped, .. } = self.verdicts;
        let counts = (succeeded, self.verdicts.failure_count(), skipped);
        self.shares = PerMilleShares::of(counts, (&self.lateness, self.not_begun_count()), on_time);
        self
    }

    /// How many of the skipped runs did not begin. A run that its handler skipped has begun, and has a duration. So if there are more durations
    /// than runs with other verdicts, the additional durations are those of skipped runs that have begun.
    fn not_begun_count(&self) -> u64 {
        let not_skipped_count = self.verdicts.total().saturating_sub(self.verdicts.skipped);
        self.verdicts.skipped.saturating_sub(self.durations.count().saturating_sub(not_skipped_count))
    }
}

/// A message of failed runs, with its counts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Failure {
    /// The message, with numbers, ids and instants replaced by `#`; empty for the messages that are counted together because a job had too many
    /// different messages in a day.
    pub message: String,
    /// The number of runs that failed with the message.
    pub count: u64,
    /// The number of jobs of these runs.
    pub job_count: u64,
    /// The names of the jobs with the most of these runs.
    pub jobs: Vec<String>,
    /// The newest of these runs.
    pub newest: Option<RunId>,
}

/// The step of the counts that reports read: the longest step of the kind.
const fn step(kind: PointKind) -> Step {
    match kind {
        PointKind::Namespace | PointKind::App => Step::Hour,
        PointKind::Job => Step::Day,
    }
}

/// The rows of these groups, sorted by group and time. Empty periods are omitted, but a total has a row for each group.
///
/// # Errors
///
/// The store's.
pub async fn rows(node: &Node, kind: PointKind, groups: &[Group], range: ReportRange) -> Result<Vec<Row>, StoreError> {
    let step = step(kind);
    let mut row_by_key: BTreeMap<(usize, Timestamp), Row> = BTreeMap::new();
    let mut groups_by_owner: BTreeMap<i64, Vec<(usize, Timestamp)>> = BTreeMap::new();
    for (index, group) in groups.iter().enumerate() {
        for (owner, from) in &group.owners {
            groups_by_owner.entry(*owner).or_default().push((index, *from));
        }
        if range.period == Period::Total {
            row_by_key.insert((index, range.from), Row::new(group, range.from));
        }
    }
    let owners: Vec<i64> = groups_by_owner.keys().copied().collect();
    let owner_count = u64::from(READ_COUNT_MAX) / range.point_count(kind).max(1);
    let owner_count = usize::try_from(owner_count).unwrap_or(usize::MAX).clamp(1, OWNER_COUNT);
    for owners in owners.chunks(owner_count) {
        let query = PointQuery {
            kind,
            owners,
            step,
            from: step.floor(range.from),
            to: range.to,
            limit: READ_COUNT_MAX,
            detail: PointDetail::Whole,
        };
        for point in node.store().points(&query).await? {
            let at = range.period.floor(point.at, range.from);
            for (index, from) in groups_by_owner.get(&point.owner).into_iter().flatten() {
                let Some(group) = groups.get(*index).filter(|_| point.at >= step.floor(*from)) else { continue };
                row_by_key.entry((*index, at)).or_insert_with(|| Row::new(group, at)).add(&point);
            }
        }
    }
    Ok(row_by_key.into_values().map(|row| row.finish(range.on_time_within)).collect())
}

/// The most frequent messages of failed runs; equal messages of several jobs are joined.
///
/// # Errors
/// The store's.
pub async fn failures(node: &Node, query: FailureQuery<'_>) -> Result<Vec<Failure>, StoreError> {
    let messages = node.store().failure_messages(&FailureQuery { from: Step::Day.floor(query.from), ..query }).await?;
    let ids: BTreeSet<_> = messages.iter().flat_map(|message| &message.jobs).map(|(job, _)| *job).collect();
    let ids: Vec<_> = ids.into_iter().collect();
    let names: HashMap<_, _> = node.store().job_names(&ids).await?.into_iter().collect();
    let failure = |message: FailureMessage| Failure {
        message: message.message,
        count: message.count,
        job_count: message.job_count,
        jobs: message.jobs.iter().filter_map(|(job, _)| names.get(job).cloned()).collect(),
        newest: Some(message.newest),
    };
    Ok(messages.into_iter().map(failure).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_that_its_handler_skipped_began_on_time() {
        let on_time = |verdicts: Verdicts, begun_count: u64| {
            let mut row = Row { verdicts, ..Row::new(&Group::default(), Timestamp::EPOCH) };
            for _ in 0..begun_count {
                row.durations.add(Duration::from_secs(1));
                row.lateness.add(Duration::ZERO);
            }
            row.finish(Duration::from_secs(10)).shares.on_time
        };
        let verdicts = Verdicts { succeeded: 2, skipped: 8, ..Verdicts::default() };
        assert_eq!(on_time(verdicts, 10), Some(1_000), "all were skipped by the handler");
        assert_eq!(on_time(verdicts, 2), Some(200), "none began");
        assert_eq!(on_time(verdicts, 6), Some(600));
    }

    #[test]
    fn months_and_days_begin_within_the_stretch() {
        let at = |text: &str| text.parse::<Timestamp>().unwrap();
        let from = at("2026-01-10T00:00:00Z");
        for (period, instant, floor) in [
            (Period::Total, "2026-02-03T04:00:00Z", "2026-01-10T00:00:00Z"),
            (Period::Day, "2026-02-03T04:00:00Z", "2026-02-03T00:00:00Z"),
            (Period::Month, "2026-02-03T04:00:00Z", "2026-02-01T00:00:00Z"),
            (Period::Month, "2026-01-31T23:00:00Z", "2026-01-10T00:00:00Z"),
        ] {
            assert_eq!(period.floor(at(instant), from), at(floor), "{period:?} {instant}");
        }
        for word in Period::WORDS {
            assert_eq!(Period::from_word(word).map(Period::as_str), Some(word));
        }
    }
}
