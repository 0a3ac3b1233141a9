//! Requests to the tick from other parts of a node.

use rondel_core::Run;

/// A request to the tick.
#[derive(Debug)]
pub(crate) enum Command {
    /// Claimed runs, all of them in memory from now on.
    Put(Vec<Run>),
    /// The lease has ended: runs that are not at the dispatcher yet belong to the next holder.
    Clear,
}
