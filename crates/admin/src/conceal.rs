//! Conceals names of jobs in runs from callers who may not see these jobs.

use std::collections::BTreeSet;

use rondel_core::visibility::{self, named_jobs};
use rondel_core::{AppId, NamespaceId, Run};
use rondel_store::StoreError;

use crate::node::Node;

/// Maximum number of names that one query looks up.
const BATCH: usize = 500;

/// Removes from these runs the names of jobs that the caller may not see. The caller may see the jobs of the apps in `visible_apps`; with `None`,
/// all jobs.
///
/// # Errors
/// The store's.
pub(crate) async fn conceal(
    node: &Node,
    namespace: NamespaceId,
    visible_apps: Option<&[AppId]>,
    runs: &mut [Run],
) -> Result<(), StoreError> {
    let Some(visible_apps) = visible_apps else { return Ok(()) };
    let named_jobs = named_jobs(runs);
    // Text that cannot be a name is not looked up, since messages may contain arbitrary text of handlers.
    let names: Vec<&str> =
        named_jobs.iter().map(String::as_str).filter(|name| rondel_core::name::check(name).is_ok()).collect();
    let (mut visible_jobs, mut hidden_jobs) = (BTreeSet::new(), BTreeSet::new());
    for batch in names.chunks(BATCH) {
        for job in node.store().listed_jobs_named(namespace, batch).await? {
            let is_visible = visible_apps.contains(&job.app());
            let names = if is_visible { &mut visible_jobs } else { &mut hidden_jobs };
            names.insert(job.name().to_owned());
        }
    }
    runs.iter_mut().for_each(|run| visibility::conceal(run, &visible_jobs, &hidden_jobs));
    Ok(())
}
