//! What due runs wait for: their turn at a gate, a limit, an executor, or answers. The queues order ids; the runs are in the table of
//! [open runs](super::runs::OpenRuns).

pub(crate) mod limits;
pub(crate) mod noted;
pub(crate) mod overlap;
pub(crate) mod parked;
pub(crate) mod probes;
pub(crate) mod turns;
