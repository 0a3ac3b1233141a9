//! The state of a job in one word, folded from its runs, its switch and its schedule: lists show it first.
//!
//! [`StateFacts`] are read from the store in one statement for a page of jobs; [`FoldedState::fold`] decides. Other problems of
//! a job, such as a missing executor, are not states; the [`filter`](crate::filter) has words for them.

use crate::word_enum::word_enum;

word_enum! {
    /// The state of a job: the first of these that applies.
    FoldedState {
        /// The newest of its verdicts that is a success or a failure is a failure.
        Error = "error",
        /// A run of it has the status `running`, which a run without shards or children gets only after about a second.
        Running = "running",
        /// It is switched off.
        Paused = "paused",
        /// Its schedule will not fire again, and no run of it is open. Jobs without a schedule or that follow others are never complete.
        Complete = "complete",
        /// It waits for its next fire, for the jobs that it follows, or for a trigger.
        Waiting = "waiting",
    }
}

/// The facts that the state of a job is folded from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StateFacts {
    /// Whether the newest of its verdicts is a failure; only successes and failures count.
    pub is_failing: bool,
    /// Whether a run of it is `running`.
    pub is_running: bool,
    /// Whether it is switched on.
    pub is_enabled: bool,
    /// Whether its definition has planned instants: see [`JobSpec::fires_by_time`](crate::JobSpec::fires_by_time).
    pub fires_by_time: bool,
    /// Whether no run of it is open, and its schedule will not fire again.
    pub is_over: bool,
}

impl FoldedState {
    /// The state for these facts. A failure comes first: a job that was paused or has ended after a failure still needs
    /// attention.
    #[must_use]
    pub const fn fold(facts: StateFacts) -> Self {
        if facts.is_failing {
            Self::Error
        } else if facts.is_running {
            Self::Running
        } else if !facts.is_enabled {
            Self::Paused
        } else if facts.fires_by_time && facts.is_over {
            Self::Complete
        } else {
            Self::Waiting
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FRESH: StateFacts =
        StateFacts { is_failing: false, is_running: false, is_enabled: true, fires_by_time: true, is_over: false };

    #[test]
    fn the_first_state_that_holds_is_the_job_s() {
        let over = StateFacts { is_over: true, ..FRESH };
        let paused = StateFacts { is_enabled: false, ..over };
        let running = StateFacts { is_running: true, ..paused };
        let failing = StateFacts { is_failing: true, ..running };
        for (facts, state) in [
            (FRESH, FoldedState::Waiting),
            // Triggers or other jobs can always start such a job, so it is never complete.
            (StateFacts { fires_by_time: false, ..over }, FoldedState::Waiting),
            (StateFacts { fires_by_time: false, ..FRESH }, FoldedState::Waiting),
            (over, FoldedState::Complete),
            (paused, FoldedState::Paused),
            (StateFacts { is_enabled: false, ..FRESH }, FoldedState::Paused),
            (StateFacts { is_enabled: false, fires_by_time: false, ..over }, FoldedState::Paused),
            (running, FoldedState::Running),
            (StateFacts { is_running: true, ..FRESH }, FoldedState::Running),
            (failing, FoldedState::Error),
            (StateFacts { is_failing: true, ..FRESH }, FoldedState::Error),
            (StateFacts { is_failing: true, ..over }, FoldedState::Error),
            (StateFacts { is_failing: true, ..paused }, FoldedState::Error),
        ] {
            assert_eq!(FoldedState::fold(facts), state, "{facts:?}");
        }
    }

    #[test]
    fn every_combination_gives_the_first_of_the_order() {
        for bits in 0_u8..32 {
            let is = |bit: u8| bits >> bit & 1 == 1;
            let facts = StateFacts {
                is_failing: is(0),
                is_running: is(1),
                is_enabled: !is(2),
                fires_by_time: is(3),
                is_over: is(4),
            };
            let holds = [is(0), is(1), is(2), is(3) && is(4), true];
            let first = holds.iter().position(|holds| *holds).unwrap();
            assert_eq!(FoldedState::fold(facts), FoldedState::ALL[first], "{facts:?}");
        }
    }
}
