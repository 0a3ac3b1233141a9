//! Requests to the tick from other parts of a node.

use rondel_core::Run;

#[derive(Debug)]
pub(crate) enum TickCommand {
    /// Claimed runs to put into the ring; `InMemory` has admitted them already.
    Put(Vec<Run>),
    /// The lease has ended: runs that are not at the dispatcher yet belong to the next holder.
    Clear,
}
