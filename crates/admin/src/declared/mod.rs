//! Jobs that executors' code declares: kept in step with what living executors declare, on every node alike.
//!
//! A hello only leaves its set here. The loop notes which sets live, and where something changed brings the app's jobs
//! in line by [`rondel_core::declared`]. One bad declaration keeps no other out; what is wrong is sent to the executors
//! and shown with the app.

mod apply;
mod audit;
mod board;
mod run;

pub(crate) use board::{Board, DeclaredSet, Declaring};
pub(crate) use run::DeclareLoop;

/// What is wrong with a job that code declares.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct DeclarationProblem {
    /// The job's name, or what stands in its place.
    pub job: String,
    /// Where in the definition, as a JSON pointer; empty for the whole.
    pub pointer: String,
    /// What is wrong, in a sentence.
    pub message: String,
}
