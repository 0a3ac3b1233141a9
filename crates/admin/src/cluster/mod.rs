//! The node in its cluster: its lease, and the jobs, runs and limits that it takes over from dead nodes.

mod adopt;
mod beat;
mod database;
mod departing;
mod end_requests;
pub(crate) mod leave;
mod maintenance;
mod membership;
mod moves;
mod orphans;
mod strays;
mod switches;

pub(crate) use adopt::AdoptLoop;
pub use beat::StartError;
pub(crate) use beat::{BeatLoop, join};
pub(crate) use database::DatabaseWatch;
pub use database::{DatabaseTrouble, LostHistory};
pub(crate) use departing::DepartureBoard;
pub(crate) use maintenance::MaintenanceBoard;
pub(crate) use membership::{EndedLease, HeldLease, LeaseToAdopt, Membership, ended_leases, fences};
pub(crate) use moves::MoveLoop;
pub(crate) use switches::SwitchBoard;
