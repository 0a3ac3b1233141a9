//! Runs whose state this node's memory does not show: those of leases that have ended, those of silent executors, and those whose rows
//! other nodes change.

pub(crate) mod deadlines;
pub(crate) mod elsewhere;
pub(crate) mod fences;
pub(crate) mod look;
pub(crate) mod lose;
pub(crate) mod overdue;
pub(crate) mod relay;
pub(crate) mod roll;
pub(crate) mod rollcall;
pub(crate) mod seek;
pub(crate) mod silence;
pub(crate) mod unanswered;
