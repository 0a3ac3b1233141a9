//! The options of an import, the facts about all jobs, and a job under conversion.

use std::collections::{BTreeMap, HashMap};

use clap::ValueEnum;
use serde_json::{Map, Value};

use crate::import::dump::Row;
use crate::import::result::Entry;

/// Who runs the scripts of GLUE jobs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(in crate::import) enum Scripts {
    /// XXL-JOB's executors, as before
    #[default]
    Executors,
    /// `rondel agent` with --allow-scripts, without Groovy
    Agent,
}

#[derive(Clone, Copy, Debug)]
pub(in crate::import) struct ImportOptions<'a> {
    /// The zone in which XXL-JOB reads cron expressions.
    pub(in crate::import) zone: &'a str,
    pub(in crate::import) namespace: &'a str,
    /// The prefix of the jobs' names.
    pub(in crate::import) prefix: &'a str,
    pub(in crate::import) scripts: Scripts,
    /// The folder for earlier scripts.
    pub(in crate::import) history: Option<&'a std::path::Path>,
}

/// The facts about all groups and jobs that the conversion of a job needs.
pub(super) struct ImportContext<'a> {
    pub(super) options: ImportOptions<'a>,
    /// The names of apps in Rondel, keyed by the ids of their groups.
    pub(super) apps: HashMap<&'a str, String>,
    /// The names of jobs in Rondel, keyed by their ids in XXL-JOB.
    pub(super) names: HashMap<&'a str, String>,
    /// How many earlier scripts each job has, keyed by its id in XXL-JOB.
    pub(super) versions: BTreeMap<&'a str, usize>,
}

/// A job under conversion.
pub(super) struct JobDraft<'a> {
    pub(super) id: &'a str,
    pub(super) row: &'a Row,
    pub(super) entry: Entry,
    /// The job's definition, or why it has none.
    pub(super) job: Result<Map<String, Value>, String>,
}
