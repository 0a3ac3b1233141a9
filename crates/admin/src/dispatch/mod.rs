//! The path of a due run to its verdict: its order among other runs, its executor, and its result.
//!
//! One loop ([`DispatchLoop`]) owns all in-memory state of open runs ([`state`]). The state is neither shared nor locked, and the loop never waits
//! for the database. The loop receives an [`Event`], calls [`transition`] to decide, and performs the [effects](effect). Steps that must be durable
//! before a run continues go through [`persist`], ends of attempts go through [`results`], and both answer with an event.

mod active;
mod ahead;
mod answers;
mod assign;
mod decision;
mod effect;
mod ends;
mod event;
mod executors;
mod expand;
mod flow;
mod groups;
mod messages;
mod outbox;
pub(crate) mod persist;
mod place;
mod queue;
mod ready;
mod recovery;
pub(crate) mod results;
mod round;
mod routing;
mod run_loop;
mod runs;
mod shadow;
mod shared_details;
mod silences;
mod starts;
mod state;
mod step;
mod step_back;
mod streams;
mod switches;
#[cfg(test)]
pub(crate) mod tests_support;
mod timer;
mod transition;
pub(crate) mod waits;

pub(crate) use event::{
    Event, ExecutorStream, FenceAnswer, IncomingResult, Reply, Report, Responder, RollCallRun, SessionHandle,
};
pub use executors::given_name;
pub(crate) use messages::{fence, incoming_result};
pub(crate) use ready::{ReadyRun, end_of_unsent, jitter};
pub(crate) use run_loop::DispatchLoop;
pub(crate) use starts::{Start, StartReports, reported_instant};
