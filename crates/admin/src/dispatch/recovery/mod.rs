//! What this node cannot know by itself: what became of runs under leases that have ended, with executors that are silent, and in rows
//! that other nodes change.

pub(crate) mod fences;
pub(crate) mod look;
pub(crate) mod overdue;
pub(crate) mod roll;
pub(crate) mod rollcall;
pub(crate) mod seek;
pub(crate) mod unanswered;
