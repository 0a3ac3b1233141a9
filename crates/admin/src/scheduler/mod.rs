//! The path of a run from its job's next fire to the instant at which it is due: scan, ring, tick.

pub(crate) mod caught_up;
mod claim_rows;
pub(crate) mod command;
pub(crate) mod heal;
pub(crate) mod in_memory;
mod low_water;
pub(crate) mod ring;
pub(crate) mod scan;
pub(crate) mod share;
pub(crate) mod shares;
pub(crate) mod take_up;
pub(crate) mod tick;
