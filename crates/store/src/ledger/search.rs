//! Searches for runs by everything that a filter names, in three orders, forwards or backwards, with a bound on the rows that are read.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use rondel_core::filter::{LengthRange, Pattern, ValueCondition};
use rondel_core::visibility::VisibleJobs;
use rondel_core::{AppId, IdGen, JobId, NamespaceId, Run, RunId, RunStatus, Timestamp, Trigger};

use crate::error::Result;

/// Maximum number of rows of the ledger that a search reads if no index answers it.
pub const SEARCHED_COUNT_MAX: u32 = 10_000;

/// The order of the runs that a search finds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RunOrder {
    /// The newest first.
    #[default]
    Newest,
    /// The longest first.
    Longest,
    /// The longest delay between planned instant and start of the handler first.
    Latest,
}

/// A place in the order of a search.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RunPlace {
    /// The value that the order sorts by, in milliseconds. [`RunOrder::Newest`] sorts by id alone, so the value is 0. A search in one job
    /// is the exception: its value is the planned instant up to which it looks, because the index of a job is ordered by planned instants.
    pub value: i64,
    pub id: RunId,
}

/// A text to find in the message of a run or in the name of its job.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RunText {
    /// The text in lower case.
    pub text: String,
    /// Whether the text must not occur.
    pub is_not: bool,
    /// Jobs whose names contain it, in the order of their ids.
    pub jobs: Vec<JobId>,
}

/// The criteria of a search. An id rises with the instant at which its row was created, so a range of time is a range of ids.
#[derive(Clone, Debug)]
pub struct RunSearch {
    /// Only runs with one of these statuses; empty for all.
    pub statuses: Vec<RunStatus>,
    /// Only runs that failed for good, of jobs that have not succeeded since, and that were neither acknowledged nor run again.
    pub is_dead: bool,
    /// Only runs with one of these triggers; empty for all.
    pub triggers: Vec<Trigger>,
    /// Only runs of these apps.
    pub apps: Option<Vec<AppId>>,
    /// Only runs of these jobs, which are in the order of their ids.
    pub jobs: Option<Vec<JobId>>,
    /// No runs of these jobs, which are in the order of their ids.
    pub excluded_jobs: Vec<JobId>,
    /// The executors that have or had the run.
    pub executors: ValueCondition<Pattern>,
    /// Only runs that were planned for this instant or later, or created at this instant or later. Runs that were created more than ten
    /// minutes before this instant are not found.
    pub since: Option<Timestamp>,
    /// Only runs that were planned and created up to this instant.
    pub until: Option<Timestamp>,
    /// Only runs whose duration is in this range. The duration of an open run counts up to `now`.
    pub duration: LengthRange,
    /// Only runs whose handler began late by a duration in this range.
    pub late: LengthRange,
    /// Texts that must occur, or must not.
    pub texts: Vec<RunText>,
    /// The jobs that the caller may view, if these are not all jobs. Texts are searched for in the messages as this caller sees them.
    pub visible_jobs: Option<Arc<VisibleJobs>>,
    /// The instant up to which the durations of open runs are counted.
    pub now: Timestamp,
    pub order: RunOrder,
    /// Only runs after this place, or before it if the search goes backwards.
    pub from: Option<RunPlace>,
    /// Whether the page ends at `from` instead of beginning there.
    pub is_backward: bool,
    /// Maximum number of rows to read.
    pub row_limit: u32,
    /// Maximum number of runs to return.
    pub limit: u32,
}

/// Result of a search.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FoundRuns {
    /// In the order of the search.
    pub runs: Vec<Run>,
    /// The run at which the search stopped although there are further rows: older rows, or newer rows if the search goes backwards.
    pub stopped_at: Option<RunId>,
}

impl RunSearch {
    /// A search for all runs, as of `now`.
    #[must_use]
    pub fn new(now: Timestamp, limit: u32) -> Self {
        Self {
            statuses: Vec::new(),
            is_dead: false,
            triggers: Vec::new(),
            apps: None,
            jobs: None,
            excluded_jobs: Vec::new(),
            executors: ValueCondition::default(),
            since: None,
            until: None,
            duration: LengthRange::default(),
            late: LengthRange::default(),
            texts: Vec::new(),
            visible_jobs: None,
            now,
            order: RunOrder::Newest,
            from: None,
            is_backward: false,
            row_limit: SEARCHED_COUNT_MAX,
            limit,
        }
    }

    /// The job of a search in one job, if its runs are read in the order of its fires. All other searches read runs in the order of their
    /// ids, and this is `None`.
    #[must_use]
    pub fn job_by_fires(&self) -> Option<JobId> {
        let Some([job]) = self.jobs.as_deref() else { return None };
        // Open runs, and runs that ended without success, have tables of their own, with indexes in the order of their ids.
        let is_by_id = self.order == RunOrder::Newest && (self.is_of_open() || self.is_of_unsuccessful());
        (!self.is_dead && !is_by_id).then_some(*job)
    }

    /// Whether the search selects only open runs.
    pub(crate) fn is_of_open(&self) -> bool {
        !self.statuses.is_empty() && self.statuses.iter().all(|status| !status.is_terminal())
    }

    /// Whether the search selects only runs that ended without success.
    pub(crate) fn is_of_unsuccessful(&self) -> bool {
        let is_unsuccessful = |status: &RunStatus| status.is_terminal() && *status != RunStatus::Succeeded;
        !self.statuses.is_empty() && self.statuses.iter().all(is_unsuccessful)
    }

    /// The place of a run in the order.
    #[must_use]
    pub fn place(&self, run: &Run) -> RunPlace {
        let value = match self.order {
            RunOrder::Newest => self.from.map_or(0, |from| from.value),
            RunOrder::Longest => self.duration_ms(run),
            RunOrder::Latest => late_ms(run),
        };
        RunPlace { value, id: run.id }
    }

    /// Whether it reads one job's runs in the order of its fires, newest first.
    #[must_use]
    pub fn is_in_one_job(&self) -> bool {
        self.order == RunOrder::Newest && self.job_by_fires().is_some()
    }

    /// The place from which a search in one job continues after it stopped at this run: below the run's planned instant, with any id.
    #[must_use]
    pub fn place_below(stopped_at: &Run) -> RunPlace {
        RunPlace { value: stopped_at.fire_at.as_millis() - 1, id: RunId::new(i64::MAX) }
    }

    /// The planned instant in milliseconds up to which the search looks.
    pub(crate) fn last_fire_ms(&self) -> i64 {
        let until = self.until.map_or(i64::MAX, Timestamp::as_millis);
        match self.from {
            Some(from) if from.value != 0 && self.is_in_one_job() => until.min(from.value),
            _ => until,
        }
    }

    fn duration_ms(&self, run: &Run) -> i64 {
        let end = run.finished_at.unwrap_or(self.now).as_millis();
        run.started_at.map_or(-1, |at| end.saturating_sub(at.as_millis()))
    }

    /// The range of ids that can match: the first of the pair is included, the second is not.
    #[must_use]
    pub fn ids(&self) -> (i64, i64) {
        // The row of a scheduled fire can be created some time before its instant.
        let from = self.since.map_or(0, |since| IdGen::first_at(since.saturating_sub(CREATED_AHEAD_MAX)));
        let to = self.until.map_or(i64::MAX, |until| IdGen::first_at(Timestamp::from_millis(until.as_millis() + 1)));
        (from, to)
    }

    /// Whether a run matches. `from` and `is_dead` are not checked.
    #[must_use]
    pub fn admits(&self, run: &Run) -> bool {
        let is_within = |(from, to): (i64, i64), value: i64| (from..=to).contains(&value);
        let (first, end) = self.ids();
        let is_since = |since: Timestamp| {
            run.id.get() >= first && (run.fire_at >= since || run.id.get() >= IdGen::first_at(since))
        };
        (self.statuses.is_empty() || self.statuses.contains(&run.status))
            && (self.triggers.is_empty() || self.triggers.contains(&run.trigger))
            && self.apps.as_ref().is_none_or(|apps| apps.contains(&run.app))
            && self.jobs.as_ref().is_none_or(|jobs| jobs.binary_search(&run.job).is_ok())
            && self.excluded_jobs.binary_search(&run.job).is_err()
            && self.executors.admits(|pattern| run.executor.as_deref().is_some_and(|name| pattern.matches(name)))
            && self.since.is_none_or(is_since)
            && run.fire_at.as_millis() <= self.last_fire_ms()
            && run.id.get() < end
            && is_within(millis_of(self.duration), self.duration_ms(run))
            && is_within(millis_of(self.late), late_ms(run))
            && self.has_texts(run)
    }

    fn has_texts(&self, run: &Run) -> bool {
        let message = run.message.as_deref().filter(|_| !self.texts.is_empty());
        let concealed_message =
            self.visible_jobs.as_ref().zip(message).and_then(|(visible, message)| visible.conceal_message(message));
        let shown_message = concealed_message.as_deref().or(message);
        self.texts.iter().all(|text| text.occurs_in(run.job, shown_message) != text.is_not)
    }
}

impl RunText {
    fn occurs_in(&self, job: JobId, message: Option<&str>) -> bool {
        let has_text = |message: &str| message.to_lowercase().contains(&self.text);
        self.jobs.binary_search(&job).is_ok() || message.is_some_and(has_text)
    }
}

/// How long before [`RunSearch::since`] a matching row may have been created. No row of a scheduled fire is created longer than this before
/// its instant, but a user can request a run much further ahead.
const CREATED_AHEAD_MAX: Duration = Duration::from_secs(600);

/// The smallest and the greatest length that match, in milliseconds. A run that never began has no length, and matches only a range without
/// bounds.
pub(crate) fn millis_of(range: LengthRange) -> (i64, i64) {
    let (min_ms, max_ms) = range.millis_range();
    if range.is_unbounded() { (min_ms, max_ms) } else { (min_ms.max(0), max_ms) }
}

/// How late the first attempt began, in milliseconds; -1 if there is no such lateness.
fn late_ms(run: &Run) -> i64 {
    began_by_plan(run).map_or(-1, |at| at.as_millis().saturating_sub(run.fire_at.as_millis()))
}

/// How late the handler began. `None` if it did not begin or if another attempt followed. Also `None` for runs that were not planned to
/// begin at the instant of their fire: runs that follow from a parent's run, and runs of a backfill.
#[must_use]
pub fn lateness(run: &Run) -> Option<Duration> {
    began_by_plan(run).map(|at| at.since(run.fire_at))
}

fn began_by_plan(run: &Run) -> Option<Timestamp> {
    let has_plan = !matches!(run.trigger, Trigger::Parent | Trigger::Backfill);
    run.started_at.filter(|_| has_plan && run.attempt == 1)
}

#[async_trait]
pub trait SearchRuns {
    /// A page of the runs of a namespace that match. If no index answers the search, it reads only a bounded number of rows: the newest of
    /// the time range, or the rows that come next if the search goes backwards. It then returns where it stopped.
    async fn search_runs(&self, namespace: NamespaceId, search: &RunSearch) -> Result<FoundRuns>;
}
