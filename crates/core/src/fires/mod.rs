//! The history of fires: for each fire that a job's definitions planned in a stretch of time, its verdict and the reason.
//!
//! The history is computed from the definitions, the instants at which they took effect, and the rows of the ledger. A fire
//! with a row is described by that row; a fire without one is described by the definition (removed by a calendar, paused), by
//! the current time (planned, not decided yet) or by the retention (its row may have been removed). This module reads no
//! store: the caller passes the facts as [`FireInput`].

mod attempts;
mod bilingual;
mod context;
mod fold;
mod history;
mod lateness;
mod sentence_writer;
mod walk;
mod why;

#[cfg(test)]
mod tests;

pub use self::context::{AnswerContext, CAUSE_STEP_COUNT_MAX, ExecutorState, NAMED_COUNT_MAX, OtherRun, ServerState};
pub use self::history::{
    Definition, ENTRY_COUNT_MAX, Entry, FOLD_ABOVE, FireHistory, FireInput, FireVerdict, RANGE_MAX, Range,
};
pub use self::walk::fire_history;
pub use self::why::{AnswerSubject, NEAREST_RUN_WITHIN, Why, nearest_fires, nearest_run, why, why_never, why_run};
