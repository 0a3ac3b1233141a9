//! The parts of a filter.

use super::value::{InstantBound, LabelTest, LengthRange, Pattern};
use crate::folded_state::FoldedState;
use crate::status::{RunStatus, Trigger};
use crate::word_enum::word_enum;

/// The longest filter, in characters.
pub const FILTER_LEN_MAX: usize = 1000;
/// Maximum number of terms of a filter.
pub const TERM_COUNT_MAX: usize = 40;

/// What a filter is applied to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// A list of runs.
    Runs,
    /// A list of jobs.
    Jobs,
}

word_enum! {
    /// What a term of a filter is about.
    Key {
        /// The status of a run.
        Status = "status",
        /// The app.
        App = "app",
        /// The name of the job.
        Job = "job",
        /// The executor that has or had the run.
        Executor = "executor",
        /// Why the run exists.
        Trigger = "trigger",
        /// Runs that were planned for this instant or later, or created then or later.
        Since = "since",
        /// Runs that were planned for this instant or earlier, and created by then.
        Until = "until",
        /// How long the run took.
        Duration = "duration",
        /// How much later than planned its handler began.
        Late = "late",
        /// A label of the job.
        Label = "label",
        /// A state or a problem of the job or of the run.
        Is = "is",
    }
}

word_enum! {
    /// The problems and the states of a job. [`JobState::folded`] maps a word to the state that is folded from the job's runs.
    JobState {
        /// Its newest verdict is a failure.
        Failing = "failing",
        /// It has runs, none of which succeeded.
        NeverSucceeded = "never_succeeded",
        /// No executor that is online offers its handler.
        NoExecutor = "no_executor",
        /// It is off.
        Paused = "paused",
        /// Its next fire is overdue, or a run of the last hour began 10 s late or more.
        Late = "late",
        /// It is in shadow mode: its fires are planned and sent to no executor.
        Shadow = "shadow",
        /// Its state is `error`: as `failing`, but verdicts that are not in the counts yet are included.
        Error = "error",
        /// Its state is `running`.
        Running = "running",
        /// Its state is `complete`.
        Complete = "complete",
        /// Its state is `waiting`.
        Waiting = "waiting",
    }
}

impl JobState {
    /// The marks that lists show on a job: its problems, and whether it is paused or in shadow mode.
    pub const MARKS: &'static [Self] =
        &[Self::Failing, Self::NeverSucceeded, Self::NoExecutor, Self::Paused, Self::Late, Self::Shadow];

    /// The folded state that the word stands for. `paused` has none: it matches every paused job, whether its folded state is
    /// `error`, `running` or another.
    #[must_use]
    pub const fn folded(self) -> Option<FoldedState> {
        match self {
            Self::Error => Some(FoldedState::Error),
            Self::Running => Some(FoldedState::Running),
            Self::Complete => Some(FoldedState::Complete),
            Self::Waiting => Some(FoldedState::Waiting),
            Self::Failing | Self::NeverSucceeded | Self::NoExecutor | Self::Paused | Self::Late | Self::Shadow => None,
        }
    }
}

word_enum! {
    /// What still has to be done about a run.
    RunState {
        /// It failed for good, no later run of its job has succeeded, and it was neither acknowledged nor run again.
        Dead = "dead",
    }
}

impl Scope {
    /// The keys of this list, in the order in which they are suggested.
    #[must_use]
    pub const fn keys(self) -> &'static [Key] {
        use Key::{App, Duration, Executor, Is, Job, Label, Late, Since, Status, Trigger, Until};
        match self {
            Self::Runs => &[Status, App, Job, Since, Until, Executor, Trigger, Duration, Late, Label, Is],
            Self::Jobs => &[Is, App, Job, Label],
        }
    }
}

/// A condition on a value: at least one of `any` must match, and none of `none`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ValueCondition<T> {
    /// One of these; empty for any.
    pub any: Vec<T>,
    pub none: Vec<T>,
}

impl<T> Default for ValueCondition<T> {
    fn default() -> Self {
        Self { any: Vec::new(), none: Vec::new() }
    }
}

impl<T> ValueCondition<T> {
    /// Whether every value passes.
    #[must_use]
    pub const fn admits_all(&self) -> bool {
        self.any.is_empty() && self.none.is_empty()
    }

    /// Whether an item passes; `is_value` decides whether the item has a value.
    pub fn admits(&self, is_value: impl Fn(&T) -> bool) -> bool {
        (self.any.is_empty() || self.any.iter().any(&is_value)) && !self.none.iter().any(&is_value)
    }
}

impl<T: Copy + Ord> ValueCondition<T> {
    /// The values of `values` that pass; `None` if there is no restriction.
    #[must_use]
    pub fn of(&self, values: &[T]) -> Option<Vec<T>> {
        let chosen_values =
            || values.iter().copied().filter(|value| self.admits(|candidate| candidate == value)).collect();
        (!self.admits_all()).then(chosen_values)
    }
}

/// A condition on labels: a job must have at least one of them or, if negated, none of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LabelTerm {
    pub any: Vec<LabelTest>,
    /// Whether a job must have none of them.
    pub is_not: bool,
}

/// A text to search for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Text {
    pub text: String,
    /// Whether it must not occur.
    pub is_not: bool,
}

/// A parsed filter.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    /// The states and problems of jobs.
    pub states: ValueCondition<JobState>,
    /// What still has to be done about a run.
    pub run_states: Vec<RunState>,
    pub statuses: ValueCondition<RunStatus>,
    pub apps: ValueCondition<Pattern>,
    pub jobs: ValueCondition<Pattern>,
    /// Only runs that were planned for this instant or later, or created then or later.
    pub since: Option<InstantBound>,
    /// Only runs that were planned for this instant or earlier, and created by then.
    pub until: Option<InstantBound>,
    pub executors: ValueCondition<Pattern>,
    pub triggers: ValueCondition<Trigger>,
    /// How long a run took.
    pub duration: LengthRange,
    /// How late the run began.
    pub late: LengthRange,
    /// The labels; each term must hold.
    pub labels: Vec<LabelTerm>,
    /// Texts that must occur, or must not.
    pub texts: Vec<Text>,
}

impl Filter {
    /// Whether the filter tests the folded states of jobs.
    #[must_use]
    pub fn needs_folded_states(&self) -> bool {
        self.states.any.iter().chain(&self.states.none).any(|state| state.folded().is_some())
    }
}
