//! What the caller wants, what is known of all jobs, and a job on its way.

use std::collections::{BTreeMap, HashMap};

use clap::ValueEnum;
use serde_json::{Map, Value};

use crate::import::dump::Row;
use crate::import::found::Entry;

/// Who runs the scripts of GLUE jobs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(in crate::import) enum Scripts {
    /// XXL-JOB's executors, as before
    #[default]
    Executors,
    /// `rondel agent` with --allow-scripts, without Groovy
    Agent,
}

/// What the caller wants.
#[derive(Clone, Copy, Debug)]
pub(in crate::import) struct ImportOptions<'a> {
    /// Where XXL-JOB reads cron expressions.
    pub(in crate::import) zone: &'a str,
    pub(in crate::import) namespace: &'a str,
    pub(in crate::import) scripts: Scripts,
    /// Where earlier scripts go.
    pub(in crate::import) history: Option<&'a std::path::Path>,
}

/// What is known of all jobs.
pub(super) struct Place<'a> {
    pub(super) options: ImportOptions<'a>,
    /// The names of apps there by the ids of their groups.
    pub(super) apps: HashMap<&'a str, &'a str>,
    /// The names of jobs here by their ids.
    pub(super) names: HashMap<&'a str, String>,
    /// How many earlier scripts a job has.
    pub(super) versions: BTreeMap<&'a str, usize>,
}

/// A job on its way.
pub(super) struct JobDraft<'a> {
    pub(super) id: &'a str,
    pub(super) row: &'a Row,
    pub(super) entry: Entry,
    /// Its definition, or why it has none.
    pub(super) job: Result<Map<String, Value>, String>,
}
