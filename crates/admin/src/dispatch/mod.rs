//! From a run that is due to its verdict: who gets it, in which order, and what comes back.
//!
//! One loop ([`DispatchLoop`]) owns everything that is known of open runs in memory ([`state`]); nothing is shared, nothing is
//! locked, and it never waits for the database. It receives an [`Event`], has [`transition`] decide what that means, and performs
//! the [effects](effect). What must be durable before the next step goes through [`persist`], what ends goes through [`results`],
//! and both answer with an event.

mod active;
mod answers;
mod assign;
mod begin;
mod decision;
mod effect;
mod ends;
mod event;
mod executors;
mod expand;
mod flow;
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
mod silences;
mod state;
mod step;
mod streams;
mod switches;
#[cfg(test)]
pub(crate) mod tests_support;
mod transition;
pub(crate) mod waits;

pub(crate) use begin::{Begins, Start, instant};
pub(crate) use event::{
    Answer, CalledRun, Event, ExecutorStream, FenceAnswer, IncomingResult, Reply, Report, SessionHandle,
};
pub use executors::given_name;
pub(crate) use messages::{fence, incoming};
pub(crate) use ready::{Ready, finish_unsent, jitter};
pub(crate) use run_loop::DispatchLoop;
