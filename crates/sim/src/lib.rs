//! The simulation: the real engine of `rondel-admin` (scan, ring, tick, dispatch, results, adoption, beat, sessions)
//! with one to three nodes in one process, on a simulated clock, network and database, with simulated executors. One
//! seed decides everything: the jobs, the faults, and the delays, losses and duplicates of messages. Then all faults
//! end, and a checker compares what handlers did with the ledger.
//!
//! It tests neither the databases (the conformance suite does) nor the wire (tests with whole processes do). It tests
//! the order of events: it sees more different orders in an hour than clusters do in years.
//!
//! - `simulation` builds a world and runs it; `profile`, `jobs`, `faults`, `switches` and `maintenance` draw its parts
//!   from the seed;
//! - `process` stops and kills a node at any of its seams, which are the places before and after its calls of the
//!   store, and before its messages; `store` and `net` delay, lose and duplicate calls and messages; `node` and
//!   `executor` are the two kinds of hosts;
//! - `pumps` is a world of pump jobs, with the same faults;
//! - `outage`, `neighbours` and `relay` are worlds with one fault each, for which stricter rules hold;
//! - `truth` records what really happened, `check` has the rules.

mod check;
mod executor;
mod faults;
mod jobs;
mod link;
mod maintenance;
mod neighbours;
mod net;
mod node;
mod outage;
mod process;
mod profile;
mod pumps;
mod relay;
mod requests;
mod rng;
mod simulation;
mod store;
mod switches;
mod trace;
mod truth;
mod watch;
mod world;

pub use neighbours::{NeighbourReport, neighbours};
pub use outage::{OutageReport, OutageScope, outage};
pub use pumps::pumps;
pub use relay::{RelayReport, relay};
pub use rondel_failpoint::mutant::Mutant;
pub use simulation::{Options, Outcome, simulate};
