//! A list of definitions against what is there: which jobs it creates, changes, leaves and removes, and what that does
//! to the fires ahead. Everything is checked before anything is saved.

mod compare;
mod graph;
mod save;

use std::collections::HashMap;

use rondel_core::ahead::FireChanges;
use rondel_core::diff::Change;
use rondel_core::words::counted;
use rondel_core::{AppId, FieldError, JobSpec, NamespaceId};
use rondel_store::StoreError;
use rondel_store::catalog::JobRecord;

pub use save::{SavedJob, Saving};

use super::checks::Checked;
use super::params::JobWarning;
use crate::node::Node;

/// A list of definitions that is to be what is there.
#[derive(Clone, Debug)]
pub struct Application {
    /// Where.
    pub namespace: NamespaceId,
    /// The definitions.
    pub specs: Vec<JobSpec>,
    /// Jobs of this app that are not in the list are removed, unless code declares them.
    pub prune: Option<AppId>,
}

/// Why nothing of a list was saved.
#[derive(Debug, thiserror::Error)]
pub enum ApplyError {
    /// Some definitions are wrong: pointers begin with the position in the list.
    #[error("{} in the list, the first is {}", counted(.0.len(), "error"), .0.first().map_or_else(String::new, ToString::to_string))]
    Invalid(Vec<FieldError>),
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// What becomes of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// It comes into being.
    Create,
    /// It gets another definition.
    Change,
    /// It is as in the list.
    Keep,
    /// It is not in the list and goes.
    Remove,
}

/// What is planned for a job.
#[derive(Clone, Debug, PartialEq)]
pub struct PlannedJob {
    /// Its place in the list; none for one that is not in it.
    pub index: Option<usize>,
    /// Its name.
    pub name: String,
    /// What becomes of it.
    pub action: Action,
    /// The version that it has now.
    pub version: Option<i64>,
    /// The app that it belongs to now.
    pub app: Option<AppId>,
    /// What changes in its definition, field by field.
    pub changes: Vec<Change>,
    /// What that does to its fires of the next week; none where the schedule stays as it is.
    pub fires: Option<FireChanges>,
    /// What its author should know.
    pub warnings: Vec<JobWarning>,
}

/// A plan that can be carried out.
#[derive(Debug)]
pub struct ApplyPlan {
    namespace: NamespaceId,
    jobs: Vec<(PlannedJob, Work)>,
    /// Names in an order in which parents come before those that follow from them.
    order: Vec<String>,
}

/// What there is to do. Records are without their parameters.
#[derive(Debug)]
enum Work {
    Create(Box<Checked>),
    Change(Box<(JobRecord, Checked)>),
    Keep,
    Remove(Box<JobRecord>),
}

impl ApplyPlan {
    /// The jobs, in the order of the list, and after them those that are removed.
    pub fn jobs(&self) -> impl ExactSizeIterator<Item = &PlannedJob> {
        self.jobs.iter().map(|(job, _)| job)
    }
}

/// Compares a list of definitions with what is there. Nothing is saved.
///
/// # Errors
/// [`ApplyError::Invalid`] with everything that is wrong with the list; the store's.
pub async fn plan(node: &Node, wanted: Application) -> Result<ApplyPlan, ApplyError> {
    let namespace = wanted.namespace;
    let mut jobs = Vec::with_capacity(wanted.specs.len());
    let order = compare::compare(node, wanted, |job, work| jobs.push((job, work))).await?;
    Ok(ApplyPlan { namespace, jobs, order })
}

/// The same for a look alone: `report` gets each job that would be planned, in the order of [`ApplyPlan::jobs`], and
/// nothing is kept. What it got stands for nothing where there is an error.
///
/// # Errors
/// As of [`plan_jobs`](plan_jobs).
pub async fn try_out(
    node: &Node,
    wanted: Application,
    mut report: impl FnMut(PlannedJob) + Send,
) -> Result<(), ApplyError> {
    compare::compare(node, wanted, |job, _| report(job)).await.map(drop)
}

/// Names that are in the list twice.
fn doubles(specs: &[JobSpec]) -> Vec<FieldError> {
    let mut first: HashMap<&str, usize> = HashMap::new();
    let mut errors = Vec::new();
    for (index, spec) in specs.iter().enumerate() {
        match first.get(spec.name.as_str()) {
            Some(before) => {
                let message = format!("{:?} is the name of /{before} too", spec.name);
                errors.push(FieldError::new(format!("/{index}/name"), message));
            }
            None => drop(first.insert(&spec.name, index)),
        }
    }
    errors
}

fn located(index: usize, error: FieldError) -> FieldError {
    FieldError { pointer: format!("/{index}{}", error.pointer), ..error }
}

/// The place in the list that a pointer begins with.
fn position(pointer: &str) -> usize {
    let first = pointer.split('/').nth(1).and_then(|index| index.parse().ok());
    first.unwrap_or(usize::MAX)
}
