//! Runs for callers who may not look at every job: which of the jobs that they name are out of sight.

use std::collections::BTreeSet;

use rondel_core::sight::{self, named_jobs};
use rondel_core::{AppId, NamespaceId, Run};
use rondel_store::StoreError;

use crate::node::Node;

/// Names that one question asks for.
const BATCH: usize = 500;

/// Takes the names of jobs out of runs that belong to none of these apps; `None` for a caller who may look at all of them.
///
/// # Errors
/// The store's.
pub(crate) async fn conceal(
    node: &Node,
    namespace: NamespaceId,
    within: Option<&[AppId]>,
    runs: &mut [Run],
) -> Result<(), StoreError> {
    let Some(within) = within else { return Ok(()) };
    let named = named_jobs(runs);
    // What cannot be a name is not looked up: messages are the words of handlers too.
    let names: Vec<&str> =
        named.iter().map(String::as_str).filter(|name| rondel_core::name::check(name).is_ok()).collect();
    let (mut seen, mut hidden) = (BTreeSet::new(), BTreeSet::new());
    for batch in names.chunks(BATCH) {
        for job in node.store().jobs_named(namespace, batch).await? {
            if within.contains(&job.app) {
                seen.insert(job.spec.name)
            } else {
                hidden.insert(job.spec.name)
            };
        }
    }
    runs.iter_mut().for_each(|run| sight::conceal(run, &seen, &hidden));
    Ok(())
}
