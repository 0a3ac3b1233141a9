//! The account of fires: what became of each fire that a job's definitions planned in a stretch of time, and why.
//!
//! The account is computed from the definitions, the instants at which they took effect, and the rows of the ledger. A fire
//! with a row is described by that row; a fire without one is described by the definition (removed by a calendar, paused), by
//! the present (planned, not decided yet) or by the retention. This module reads no store: the caller passes the facts as
//! [`FireInput`].

mod account;
mod attempts;
mod bilingual;
mod context;
mod fold;
mod sentence_writer;
mod walk;
mod why;

#[cfg(test)]
mod tests;

pub use self::account::{
    Account, Definition, ENTRY_COUNT_MAX, Entry, FOLD_ABOVE, FireInput, RANGE_MAX, Range, Verdict,
};
pub use self::context::{AnswerContext, CAUSE_STEP_COUNT_MAX, ExecutorState, NAMED_COUNT_MAX, OtherRun, ServerState};
pub use self::walk::account;
pub use self::why::{AnswerSubject, NEAR, Why, nearest, nearest_run, why, why_never, why_run};
