//! The node among others: its lease, and what it takes over from dead ones.

mod adopt;
mod beat;
mod membership;

pub(crate) use adopt::AdoptLoop;
pub(crate) use beat::{BeatLoop, join};
pub(crate) use membership::{Held, Membership, leases_over};
