//! The node among others: its lease, and what it takes over from dead ones.

mod adopt;
mod beat;
mod closures;
mod database;
mod departing;
pub(crate) mod leave;
mod membership;
mod moves;
mod strays;
mod switches;

pub(crate) use adopt::AdoptLoop;
pub use beat::StartError;
pub(crate) use beat::{BeatLoop, join};
pub(crate) use closures::MaintenanceBoard;
pub(crate) use database::DatabaseWatch;
pub use database::{DatabaseTrouble, Regression};
pub(crate) use departing::Departing;
pub(crate) use membership::{Held, Membership, Over, fences, leases_over};
pub(crate) use moves::{MayGo, MoveLoop, unsent_by_job};
pub(crate) use switches::SwitchBoard;
