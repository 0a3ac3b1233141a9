//! The types of the history of fires: its input and its entries.

use std::sync::Arc;
use std::time::Duration;

use super::context::AnswerContext;
use crate::id::RunId;
use crate::job::Job;
use crate::maintenance::{FiresInside, MaintenanceWindow};
use crate::reason::{Reason, ReasonDetail};
use crate::run::{Attempt, Run};
use crate::status::RunStatus;
use crate::time::Timestamp;

/// The longest range of fires that one [`FireHistory`] covers.
pub const RANGE_MAX: Duration = Duration::from_secs(366 * 24 * 3600);
/// Maximum number of entries of one history.
pub const ENTRY_COUNT_MAX: usize = 1_000;
/// More consecutive fires than this with the same verdict become one entry.
pub const FOLD_ABOVE: u64 = 24;

/// A definition that a job had, or has.
#[derive(Clone, Debug)]
pub struct Definition {
    /// When it was saved: it plans the fires after this instant, up to and including the instant at which the next definition
    /// was saved.
    pub from: Timestamp,
    /// The definition, compiled with its calendar.
    pub job: Job,
}

/// The input of a history.
#[derive(Clone, Copy, Debug)]
pub struct FireInput<'a> {
    /// The definitions that were in force in the range, the oldest first.
    pub definitions: &'a [Definition],
    /// The instant from which `every` schedules count.
    pub anchor: Timestamp,
    /// When the job was deleted: nothing later is planned.
    pub deleted_at: Option<Timestamp>,
    /// The rows of the range, and an earlier row whose span reaches into the range, in any order. Rows that no schedule planned
    /// and the rows of single shards are ignored.
    pub rows: &'a [Run],
    /// The earlier attempts of the run that an answer is about.
    pub attempts: &'a [Attempt],
    /// The context of the run that an answer is about.
    pub context: Option<&'a AnswerContext>,
    /// The first fire without a row.
    pub next_fire_at: Option<Timestamp>,
    /// The maintenance windows that apply to the job.
    pub windows: &'a [MaintenanceWindow],
    pub now: Timestamp,
    /// Rows of fires before this instant may have been removed.
    pub kept_from: Timestamp,
}

/// The fires that a history covers: from `from` to `to`, both included.
#[derive(Clone, Copy, Debug)]
pub struct Range {
    /// The first instant.
    pub from: Timestamp,
    /// The last instant; at most [`RANGE_MAX`] later.
    pub to: Timestamp,
    /// Maximum number of entries, at most [`ENTRY_COUNT_MAX`].
    pub limit: usize,
}

/// Fires with one verdict.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    pub first: Timestamp,
    /// The last fire; the same as `first` for a single fire.
    pub last: Timestamp,
    /// How many fires there are.
    pub count: u64,
    /// The verdict that the fires share.
    pub verdict: FireVerdict,
}

/// The verdict of a fire, or why it has none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FireVerdict {
    /// It has its own row, which holds the details.
    Row {
        run: RunId,
        status: RunStatus,
        /// Why it has this status.
        reason: Option<Reason>,
        /// The parameters of the reason.
        detail: Option<Arc<ReasonDetail>>,
        /// Whether the definition in force at its instant plans it; false for a fire that an edit took out of the
        /// schedule.
        is_planned: bool,
    },
    /// It was skipped together with others; one row covers all of them.
    Span {
        run: RunId,
        reason: Option<Reason>,
        /// The parameters of the reason.
        detail: Option<Arc<ReasonDetail>>,
    },
    /// The schedule alone would fire, but the job's calendar removes or moves this fire.
    Calendar {
        calendar: String,
        /// The calendar's name for the day.
        day: Option<String>,
        /// The instant that the fire moves to; `None` if it is removed.
        moved_to: Option<Timestamp>,
    },
    /// The job was paused.
    Paused,
    /// It has no row, and its instant is in a maintenance window that has not ended: the window skips the fire, or holds it back.
    Maintenance {
        /// The end of the window.
        ends_at: Timestamp,
        /// What the window does to the fire.
        fires: FiresInside,
    },
    /// It is due, and no server has claimed it yet.
    Undecided,
    /// It is in the future.
    Planned,
    /// Its row was removed because of its age.
    Removed,
    /// It has no row although it should have one. This must not happen.
    Missing,
}

impl FireVerdict {
    /// The verdict of a row.
    pub(crate) fn of_run(run: &Run, is_planned: bool) -> Self {
        let detail = run.detail.clone();
        if run.span_end_at.is_some() {
            return Self::Span { run: run.id, reason: run.reason, detail };
        }
        Self::Row { run: run.id, status: run.shown_status(), reason: run.reason, detail, is_planned }
    }

    /// The fire's run, if it has one.
    #[must_use]
    pub const fn run(&self) -> Option<RunId> {
        match self {
            Self::Row { run, .. } | Self::Span { run, .. } => Some(*run),
            Self::Calendar { .. }
            | Self::Paused
            | Self::Maintenance { .. }
            | Self::Undecided
            | Self::Planned
            | Self::Removed
            | Self::Missing => None,
        }
    }

    /// Each word of [`code`](Self::code): the statuses of runs, then those of fires without a row.
    pub fn codes() -> impl Iterator<Item = &'static str> {
        let without_row = ["calendar", "paused", "maintenance", "undecided", "planned", "removed", "missing"];
        RunStatus::WORDS.iter().copied().chain(without_row)
    }

    /// Its word in JSON: the status of its row or, without a row, a word of its own.
    #[must_use]
    pub const fn code(&self) -> &'static str {
        match self {
            Self::Row { status, .. } => status.as_str(),
            Self::Span { .. } => RunStatus::Skipped.as_str(),
            Self::Calendar { .. } => "calendar",
            Self::Paused => "paused",
            Self::Maintenance { .. } => "maintenance",
            Self::Undecided => "undecided",
            Self::Planned => "planned",
            Self::Removed => "removed",
            Self::Missing => "missing",
        }
    }

    /// Whether this is the verdict of a fire, rather than of an instant that a calendar removed or moved.
    #[must_use]
    pub const fn is_fire(&self) -> bool {
        !matches!(self, Self::Calendar { .. })
    }
}

/// The verdicts of the fires of a range.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FireHistory {
    /// The entries, sorted by instant; they do not overlap.
    pub entries: Vec<Entry>,
    /// The instant from which the next history continues; `None` if this history covers its whole range.
    pub next: Option<Timestamp>,
}
