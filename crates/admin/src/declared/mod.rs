//! Jobs declared by executors' code. Every node keeps them in line with the declarations of living executors.
//!
//! A hello only stores its declared set here. The loop records which sets are living and, after a change, applies them to the app's jobs by
//! the rules of [`rondel_core::declared`]. An invalid declaration does not block the others; problems are sent to the executors and shown
//! with the app.

mod apply;
mod audit;
mod board;
mod run;

pub(crate) use board::{DeclarationBoard, DeclaredSet, DeclaringExecutor};
pub(crate) use run::DeclareLoop;

/// A problem of a job that code declares.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct DeclarationProblem {
    /// The job's name, or `job` with its index if it has none; `all` for a problem of the whole set.
    pub job: String,
    /// Location in the definition, as a JSON pointer; empty for the whole definition.
    pub pointer: String,
    /// The problem, as a sentence.
    pub message: String,
}
