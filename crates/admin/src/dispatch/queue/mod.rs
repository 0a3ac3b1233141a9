//! The queues in which due runs wait for their turn at a gate, for a limit, for an executor, or for answers. The queues order ids; the runs are in
//! the table of [open runs](super::runs::OpenRuns).

pub(crate) mod limits;
pub(crate) mod noted;
pub(crate) mod overlap;
pub(crate) mod parked;
pub(crate) mod probes;
mod round_robin;
pub(crate) mod turns;
