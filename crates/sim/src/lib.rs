//! The simulation: the real engine of `rondel-admin` (scan, ring, tick, dispatch, results, adoption, beat, sessions), one to
//! three nodes in one process, on a simulated clock, network and database, with simulated executors. One seed decides
//! everything: the jobs, the faults, what each message meets on its way. Then everything heals, and a checker compares what
//! handlers did with the ledger.
//!
//! It is no test of the databases (those have the conformance suite) nor of the wire (those have whole processes): it is
//! there for the order of things, of which it sees more in an hour than clusters do in years.
//!
//! - `simulation` puts a world together and runs it; `profile`, `jobs`, `faults`, `switches` and `maintenance` are what a seed
//!   draws;
//! - `process` stops and kills a node at any of its seams; `store` and `net` are the places at which calls and messages
//!   are late, lost and doubled; `node` and `executor` are the two kinds of hosts;
//! - `pumps` is a world of pump jobs, with the same faults;
//! - `outage`, `neighbours` and `relay` are worlds with one fault each, over which more is known;
//! - `truth` is what really happened, `check` the rules.

mod chance;
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
mod simulation;
mod store;
mod switches;
mod trace;
mod truth;
mod watch;
mod world;

pub use neighbours::{NeighbourReport, neighbours};
pub use outage::{Away, OutageReport, outage};
pub use pumps::pumps;
pub use relay::{RelayReport, relay};
pub use rondel_failpoint::mutant::Mutant;
pub use simulation::{Options, Outcome, simulate};
