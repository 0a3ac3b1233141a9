//! Gives a job a definition that is stored already: one of its earlier versions, or its declaration in code.

use rondel_core::JobSpec;
use rondel_store::catalog::JobRecord;

use super::checks::CheckedDefinition;
use super::{JobError, catch_up_with_calendar, check_name, checks, save, settle_if_paused};
use crate::node::Node;

/// Like [`change`](super::change), for a definition that was stored before. An `at` in the past does not run, even if its `if_past` is `run`:
/// it may have run already, and a second run would do more harm.
///
/// # Errors
/// Each variant of [`JobError`].
pub async fn restore(
    node: &Node,
    record: &JobRecord,
    spec: JobSpec,
    expected_version: Option<i64>,
    author: &str,
) -> Result<JobRecord, JobError> {
    check_name(record, &spec)?;
    let definition = checks::check(node, record.namespace, spec, node.now(), Some(&record.spec)).await?;
    let definition = CheckedDefinition { is_restored: true, ..definition };
    let saved_record = save(node, record, definition, expected_version, (None, author)).await?;
    let saved_record = catch_up_with_calendar(node, saved_record).await;
    settle_if_paused(node, record, &saved_record, author).await?;
    Ok(saved_record)
}
