//! From a run that is due to its verdict: who gets it, in which order, and what comes back.
//!
//! One loop ([`DispatchLoop`]) owns everything that is known of open runs in memory ([`state`]); nothing is shared, nothing is
//! locked, and it never waits for the database. It receives an [`Event`], has [`transition`] decide what that means, and performs
//! the [effects](effect). What must be durable before the next step goes through [`steps`], what ends goes through [`results`],
//! and both answer with an event.

mod active;
mod answers;
mod effect;
mod event;
mod executors;
mod expand;
mod fences;
pub(crate) mod foreign;
mod gates;
mod hand_over;
mod limits;
mod look;
mod messages;
mod outbox;
mod overdue;
mod parked;
mod place;
mod probes;
mod ready;
mod reporter;
pub(crate) mod results;
mod roll;
mod rollcall;
mod round;
mod routing;
mod run_loop;
mod runs;
mod seek;
mod state;
mod step;
pub(crate) mod steps;
mod streams;
mod switches;
#[cfg(test)]
pub(crate) mod tests_support;
mod transition;
mod turns;
mod verdicts;
pub(crate) mod waits;

pub(crate) use event::{
    Answer, CalledRun, Event, ExecutorStream, FenceAnswer, IncomingResult, Reply, Report, SessionHandle,
};
pub(crate) use messages::{fence, incoming};
pub(crate) use ready::{Ready, finish_unsent, jitter};
pub(crate) use run_loop::DispatchLoop;
