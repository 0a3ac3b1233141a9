//! Reports: how the runs of a namespace, of apps, jobs and labels went over days and months, and which messages failed runs had.
//!
//! Everything is read from the counts that `roll_up` makes; no report reads the ledger. [`rows`] adds counts up, [`failures`] joins the
//! same message of many jobs. The weekly report is written by the loop of [`weekly`].

mod texts;
mod weekly;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use chrono::{Datelike, NaiveDate};
use rondel_core::report::Kept;
use rondel_core::sketch::{Sketch, Step};
use rondel_core::{RunId, Timestamp};
use rondel_store::StoreError;
use rondel_store::reports::{FailureMessage, FailureQuery};
use rondel_store::rollups::{PointDetail, PointKind, PointQuery, StatPoint, Verdicts};

pub(crate) use self::weekly::ReportLoop;
pub use self::weekly::{ScheduleError, SentNow, save_schedule, send_now};
use crate::node::Node;

/// The longest stretch of time of a report: counts are kept this long.
pub const LENGTH_MAX: Duration = Duration::from_secs(400 * 24 * 3600);
/// Counts that one report adds up. The caller asks about fewer groups where that would not do.
pub const POINT_COUNT_MAX: u64 = 200_000;
/// Counts that one read of the store answers.
const READ_COUNT: u32 = 200_000;
/// Owners that are read at once.
const OWNER_COUNT: usize = 50;

/// In which stretches a report counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Period {
    /// All of it together.
    #[default]
    Total,
    /// Each day, in UTC.
    Day,
    /// Each month, in UTC.
    Month,
}

impl Period {
    /// The words for them.
    pub const WORDS: [&'static str; 3] = ["total", "day", "month"];

    /// By its word.
    #[must_use]
    pub fn from_word(word: &str) -> Option<Self> {
        [Self::Total, Self::Day, Self::Month].into_iter().find(|period| period.as_str() == word)
    }

    /// Its word.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Total => Self::WORDS[0],
            Self::Day => Self::WORDS[1],
            Self::Month => Self::WORDS[2],
        }
    }

    /// The beginning of the stretch that an instant lies in.
    fn floor(self, at: Timestamp, from: Timestamp) -> Timestamp {
        match self {
            Self::Total => from,
            Self::Day => Step::Day.floor(at).max(from),
            Self::Month => month_of(at).max(from),
        }
    }
}

fn month_of(at: Timestamp) -> Timestamp {
    let first = at.to_utc().and_then(|at| NaiveDate::from_ymd_opt(at.year(), at.month(), 1));
    first.map_or(at, |day| Timestamp::from(day.and_time(chrono::NaiveTime::MIN).and_utc()))
}

/// Which stretch of time, and how it is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stretch {
    /// Its beginning.
    pub from: Timestamp,
    /// Its end.
    pub to: Timestamp,
    /// In which parts.
    pub period: Period,
    /// A fire that begins no later than this is on time.
    pub on_time: Duration,
}

impl Stretch {
    /// How many counts are read for one owner.
    #[must_use]
    pub fn point_count(&self, kind: PointKind) -> u64 {
        let length = u64::try_from(self.to.since(self.from).as_millis()).unwrap_or(u64::MAX);
        length.div_ceil(u64::try_from(step(kind).length().as_millis()).unwrap_or(1)) + 1
    }
}

/// What is counted together, with a name for it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Group {
    /// The app, the job, or the value of the label.
    pub name: String,
    /// The app of a job.
    pub app: Option<String>,
    /// The namespaces, apps or jobs, each with the instant from which on it counts.
    pub owners: Vec<(i64, Timestamp)>,
}

/// What became of the runs of a group in one stretch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// The group.
    pub name: String,
    /// The app of a job.
    pub app: Option<String>,
    /// When the stretch begins.
    pub at: Timestamp,
    /// How the runs ended.
    pub verdicts: Verdicts,
    /// How long they took.
    pub durations: Sketch,
    /// How much later than planned they began.
    pub lateness: Sketch,
    /// How many of a thousand succeeded, and began on time.
    pub kept: Kept,
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
            kept: Kept::default(),
        }
    }

    fn add(&mut self, point: &StatPoint) {
        self.verdicts = self.verdicts.plus(point.verdicts);
        self.durations.merge(&point.durations);
        self.lateness.merge(&point.lateness);
    }

    fn finish(mut self, on_time: Duration) -> Self {
        let Verdicts { succeeded, skipped, .. } = self.verdicts;
        self.kept = Kept::of((succeeded, self.verdicts.trouble(), skipped), &self.lateness, on_time);
        self
    }
}

/// A message of failed runs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Failure {
    /// Folded; empty for the messages that are counted together.
    pub message: String,
    /// How many runs.
    pub count: u64,
    /// Of how many jobs.
    pub job_count: u64,
    /// The jobs with the most of them.
    pub jobs: Vec<String>,
    /// The newest of the runs.
    pub newest: Option<RunId>,
}

/// The counts are read by the longest step that there is of them.
const fn step(kind: PointKind) -> Step {
    match kind {
        PointKind::Namespace | PointKind::App => Step::Hour,
        PointKind::Job => Step::Day,
    }
}

/// The rows of these groups, by group and time. Of a stretch in parts those without runs are left out; of a whole one they are there.
///
/// # Errors
/// The store's.
pub async fn rows(node: &Node, kind: PointKind, groups: &[Group], stretch: Stretch) -> Result<Vec<Row>, StoreError> {
    let step = step(kind);
    let mut made: BTreeMap<(usize, Timestamp), Row> = BTreeMap::new();
    let mut of_owner: BTreeMap<i64, Vec<(usize, Timestamp)>> = BTreeMap::new();
    for (index, group) in groups.iter().enumerate() {
        for (owner, from) in &group.owners {
            of_owner.entry(*owner).or_default().push((index, *from));
        }
        if stretch.period == Period::Total {
            made.insert((index, stretch.from), Row::new(group, stretch.from));
        }
    }
    let owners: Vec<i64> = of_owner.keys().copied().collect();
    for owners in owners.chunks(OWNER_COUNT) {
        let query = PointQuery {
            kind,
            owners,
            step,
            from: step.floor(stretch.from),
            to: stretch.to,
            limit: READ_COUNT,
            detail: PointDetail::Whole,
        };
        for point in node.store().points(&query).await? {
            let at = stretch.period.floor(point.at, stretch.from);
            for (index, from) in of_owner.get(&point.owner).into_iter().flatten() {
                let Some(group) = groups.get(*index).filter(|_| point.at >= step.floor(*from)) else { continue };
                made.entry((*index, at)).or_insert_with(|| Row::new(group, at)).add(&point);
            }
        }
    }
    Ok(made.into_values().map(|row| row.finish(stretch.on_time)).collect())
}

/// The most frequent messages of failed runs, the same one of many jobs joined.
///
/// # Errors
/// The store's.
pub async fn failures(node: &Node, query: FailureQuery<'_>) -> Result<Vec<Failure>, StoreError> {
    let found = node.store().failure_messages(&FailureQuery { from: Step::Day.floor(query.from), ..query }).await?;
    let ids: BTreeSet<_> = found.iter().flat_map(|one| &one.jobs).map(|(job, _)| *job).collect();
    let ids: Vec<_> = ids.into_iter().collect();
    let names: HashMap<_, _> = node.store().job_names(&ids).await?.into_iter().collect();
    let named = |one: FailureMessage| Failure {
        message: one.message,
        count: one.count,
        job_count: one.job_count,
        jobs: one.jobs.iter().filter_map(|(job, _)| names.get(job).cloned()).collect(),
        newest: Some(one.newest),
    };
    Ok(found.into_iter().map(named).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

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
