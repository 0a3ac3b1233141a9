//! Applies a list of definitions. A plan states which jobs are created, changed, kept and removed, and how this affects the coming fires.
//! Everything is checked before anything is saved.

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

use super::checks::CheckedDefinition;
use super::params::JobWarning;
use crate::node::Node;

/// A list of definitions to apply.
#[derive(Clone, Debug)]
pub struct ApplyRequest {
    pub namespace: NamespaceId,
    pub specs: Vec<JobSpec>,
    /// Jobs of this app that are not in the list are removed, unless code declares them.
    pub prune: Option<AppId>,
}

/// Why nothing of a list was saved.
#[derive(Debug, thiserror::Error)]
pub enum ApplyError {
    /// Some definitions are invalid: pointers begin with the position in the list.
    #[error("{} in the list, the first is {}", counted(.0.len(), "error"), .0.first().map_or_else(String::new, ToString::to_string))]
    Invalid(Vec<FieldError>),
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// The effect on a job of applying the list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// The job is created.
    Create,
    /// The job gets another definition.
    Change,
    /// The job already has the definition in the list.
    Keep,
    /// The job is not in the list and is removed.
    Remove,
}

/// The plan for one job.
#[derive(Clone, Debug, PartialEq)]
pub struct PlannedJob {
    /// The job's position in the list; `None` if it is not in the list.
    pub index: Option<usize>,
    pub name: String,
    pub action: Action,
    /// The job's current version; `None` if the job is to be created.
    pub version: Option<i64>,
    /// The app to which the job currently belongs; `None` if the job is to be created.
    pub app: Option<AppId>,
    /// The changes of the job's definition, field by field.
    pub changes: Vec<Change>,
    /// The changes of the job's fires in the next week; `None` if there are none.
    pub fires: Option<FireChanges>,
    /// Warnings for the author of the definition.
    pub warnings: Vec<JobWarning>,
}

/// A plan that can be carried out.
#[derive(Debug)]
pub struct ApplyPlan {
    namespace: NamespaceId,
    jobs: Vec<(PlannedJob, PlannedEdit)>,
    /// The names of the jobs, parents before their children.
    order: Vec<String>,
}

/// The work that a plan has for one job. The records of existing jobs have no parameters here, since these may be large.
#[derive(Debug)]
enum PlannedEdit {
    Create(Box<CheckedDefinition>),
    Change(Box<(JobRecord, CheckedDefinition)>),
    Keep,
    Remove(Box<JobRecord>),
}

impl ApplyPlan {
    /// The jobs in the order of the list, then the jobs to be removed.
    pub fn jobs(&self) -> impl ExactSizeIterator<Item = &PlannedJob> {
        self.jobs.iter().map(|(job, _)| job)
    }
}

/// Compares a list of definitions with the existing jobs. Saves nothing.
///
/// # Errors
/// [`ApplyError::Invalid`] with all errors of the list; the store's.
pub async fn plan(node: &Node, request: ApplyRequest) -> Result<ApplyPlan, ApplyError> {
    let namespace = request.namespace;
    let mut jobs = Vec::with_capacity(request.specs.len());
    let order = compare::compare(node, request, |job, edit| jobs.push((job, edit))).await?;
    Ok(ApplyPlan { namespace, jobs, order })
}

/// Like [`plan`], but keeps no plan in memory: `report` receives each planned job, in the order of [`ApplyPlan::jobs`]. If an error is
/// returned, the reported jobs must be discarded.
///
/// # Errors
/// Those of [`plan`].
pub async fn dry_run(
    node: &Node,
    request: ApplyRequest,
    mut report: impl FnMut(PlannedJob) + Send,
) -> Result<(), ApplyError> {
    compare::compare(node, request, |job, _| report(job)).await.map(drop)
}

/// An error for each name that is in the list twice.
fn duplicate_name_errors(specs: &[JobSpec]) -> Vec<FieldError> {
    let mut index_by_name: HashMap<&str, usize> = HashMap::new();
    let mut errors = Vec::new();
    for (index, spec) in specs.iter().enumerate() {
        match index_by_name.get(spec.name.as_str()) {
            Some(earlier_index) => {
                let message = format!("{:?} is the name of /{earlier_index} too", spec.name);
                errors.push(FieldError::new(format!("/{index}/name"), message));
            }
            None => drop(index_by_name.insert(&spec.name, index)),
        }
    }
    errors
}

fn with_index(index: usize, error: FieldError) -> FieldError {
    FieldError { pointer: format!("/{index}{}", error.pointer), ..error }
}

/// The position in the list with which a pointer begins.
fn list_index(pointer: &str) -> usize {
    let list_index = pointer.split('/').nth(1).and_then(|index| index.parse().ok());
    list_index.unwrap_or(usize::MAX)
}
