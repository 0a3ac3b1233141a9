//! The result of applying a list of jobs, or of its dry run, as the API shows it.

use rondel_admin::jobs::{Action, PlannedJob, SavedJob};
use rondel_core::Timestamp;
use rondel_core::ahead::{FireChanges, FireList};
use schemars::JsonSchema;
use serde::Serialize;

use super::versions::ChangeJson;
use crate::problem::{Complaint, Problem};

/// The outcome for the whole list.
#[derive(JsonSchema)]
#[schemars(rename = "Applied")]
#[expect(dead_code, reason = "it describes the answer, which is written item by item")]
pub(super) struct ApplyReport {
    dry_run: bool,
    items: Vec<Item>,
    /// With `dry_run` and `prune_app`: stands for the jobs that would be removed.
    #[serde(skip_serializing_if = "Option::is_none")]
    removals: Option<String>,
    summary: Summary,
}

/// How many jobs there are for each action.
#[derive(Debug, Default, Serialize, JsonSchema)]
#[schemars(rename = "AppliedSummary")]
pub(super) struct Summary {
    created: usize,
    changed: usize,
    unchanged: usize,
    removed: usize,
    failed: usize,
}

/// What happened, or would happen, to a job.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "AppliedJob")]
pub(super) struct Item {
    name: String,
    #[schemars(extend("enum" = ["created", "changed", "unchanged", "removed", "failed"]))]
    action: &'static str,
    /// Its place in the list.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) index: Option<usize>,
    /// The version that it has now, or had until it was removed.
    #[serde(skip_serializing_if = "Option::is_none")]
    version: Option<i64>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    changes: Vec<ChangeJson>,
    #[serde(skip_serializing_if = "Option::is_none")]
    fires: Option<FiresJson>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    warnings: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<ErrorJson>,
}

/// What happens to the fires of the next week.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "AppliedFires")]
struct FiresJson {
    /// The end of the range in which fires were compared.
    to: Timestamp,
    /// Whether the range is the whole week. If false, the jobs have too many fires to compare, and `to` is earlier.
    is_whole: bool,
    vanishing: FireChangeJson,
    appearing: FireChangeJson,
}

/// The number of these fires, and the first of them.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "AppliedFireKind")]
struct FireChangeJson {
    count: u64,
    first: Vec<Timestamp>,
}

/// Why the action failed for the job.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "AppliedError")]
struct ErrorJson {
    code: &'static str,
    message: String,
    errors: Vec<Complaint>,
}

impl Summary {
    pub(super) fn add(&mut self, item: &Item) {
        let count = match item.action {
            "created" => &mut self.created,
            "changed" => &mut self.changed,
            "unchanged" => &mut self.unchanged,
            "removed" => &mut self.removed,
            _ => &mut self.failed,
        };
        *count += 1;
    }
}

impl Item {
    pub(super) fn planned(job: PlannedJob) -> Self {
        Self {
            name: job.name,
            action: action_word(job.action),
            index: job.index,
            version: job.version,
            changes: job.changes.into_iter().map(ChangeJson::from).collect(),
            fires: job.fires.as_ref().map(FiresJson::from),
            warnings: job.warnings.iter().map(ToString::to_string).collect(),
            error: None,
        }
    }

    pub(super) fn saved(job: SavedJob) -> Self {
        let planned_item = Self::planned(job.planned);
        match &job.result {
            Ok(None) => planned_item,
            Ok(Some(record)) => Self { version: Some(record.version), ..planned_item },
            Err(error) => {
                let problem = Problem::of_job_error(error);
                let (code, message) = (problem.code().as_str(), problem.detail().to_owned());
                let error = ErrorJson { code, message, errors: problem.complaints().to_vec() };
                Self { action: "failed", error: Some(error), ..planned_item }
            }
        }
    }
}

/// The word for an action on a job.
pub(super) const fn action_word(action: Action) -> &'static str {
    match action {
        Action::Create => "created",
        Action::Change => "changed",
        Action::Keep => "unchanged",
        Action::Remove => "removed",
    }
}

impl From<&FireChanges> for FiresJson {
    fn from(changes: &FireChanges) -> Self {
        let change = |fires: &FireList| FireChangeJson { count: fires.count, first: fires.first.clone() };
        Self {
            to: changes.to,
            is_whole: changes.is_whole,
            vanishing: change(&changes.vanishing),
            appearing: change(&changes.appearing),
        }
    }
}
